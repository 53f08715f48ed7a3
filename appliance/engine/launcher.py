"""vLLM's only parent: starts it, follows it, proves that it serves, and tells how it ended.

One thread waits on three things: vLLM's output, signals, and the readiness probe's word. Deadlines, each ending vLLM's
whole process tree:

    start     not serving within the engine's startup_timeout
    gone      its engine core has ended, which it would notice some seconds later: it is told, by SIGTERM
    death     vLLM announced that its engine is gone and its main process stays: it has been seen to stay for minutes
    stop      asked to stop, and still there after vLLM's own grace and a margin
    closing   its engine is gone and its HTTP server waits for clients that will never get another byte
    word      its run is over, and nobody says that the next one shall begin in its place

After a run that served and crashed a launcher with a standby stays for a while: the supervisor, who alone decides, may
say `again` at `evidence`'s socket, and the next run begins in the unit.

Exit status: 0 only when asked to stop; see `appliance.names.LAUNCHER_*`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from appliance import clock, names
from appliance.host import notify
from appliance.host.journal import ERR, INFO, NOTICE, WARNING
from appliance.host.realwork import Outcome
from appliance.wire.vllmargs import SHUTDOWN_S, LaunchPlan
from appliance.wire.vllmcauses import Cause
from appliance.wire.vllmfigures import figures
from appliance.wire.vllmlog import (
    KEPT_LINES,
    Line,
    Progress,
    Reader,
    advance,
    announces_death,
    core_is_gone,
    is_trivia,
    notice,
    waits_for_clients,
)

from . import collectives, leftovers, tree
from .evidence import Desk, Order
from .ready import Probe
from .report import Report, prepare
from .standby import Standby, Unfit
from .verdict import Ending, verdict_of
from .wake import Wake
from .word import Word

LONGEST_LINE = 64 << 10  # the journal splits longer ones itself
_DROPPED = ("NOTIFY_SOCKET", "JOURNAL_STREAM", "INVOCATION_ID", "PYTHONPATH", "PYTHONHOME")  # not vLLM's


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. `start` is the engine's startup_timeout."""

    start: float
    gone: float = 0.3  # for the errors that its clients get
    death: float = 15.0  # a dead engine core takes 1 s to end the rest, a dead worker 10 s
    stop: float = SHUTDOWN_S + 15.0
    closing: float = 3.0
    orphan: float = 3.0  # from SIGTERM to SIGKILL for what outlives vLLM's main process
    kill: float = 20.0  # a process in a driver call cannot be killed; the launcher does not wait for it for ever
    output: float = 1.0  # for the last lines after the end
    word: float = 20.0  # for the supervisor's word: the pauses before the first two restarts, or a GPU that settles


def environment(plan: LaunchPlan) -> dict[str, str]:
    """vLLM's environment: the launcher's own as far as it is vLLM's, with the plan's over it."""
    return {key: value for key, value in os.environ.items() if key not in _DROPPED} | plan.env


class Launcher:
    """One run of one engine. `run` may be called once, from the main thread; `again` says then whether the next one is
    to begin in the same unit. `obstacle` as for `word.Word`."""

    def __init__(
        self,
        plan: LaunchPlan,
        report: Report,
        limits: Limits,
        wake: Wake,
        standby: Standby | None = None,
        obstacle: Callable[[], str] = lambda: "",
    ) -> None:
        self._plan, self._report, self._limits = plan, report, limits
        self._wake, self._standby = wake, standby
        self._word = Word(report.identity.start, standby, obstacle)
        self._reader = Reader()
        self._lines: deque[Line] = deque(maxlen=KEPT_LINES)
        self._rest = b""
        self._poll = select.poll()
        self._status: int | None = None
        self._pid = 0
        self._requested = self._served = self._silent = False
        self._late: tuple[float | None, int | None] = None, None
        self._deadlines: dict[str, float] = {}
        self._ending = False
        self._outcomes: deque[Outcome | None] = deque()
        self._desk = Desk(
            names.engine_evidence(report.identity.engine, report.identity.run),
            self._poll,
            run=names.run_name(report.identity.unit, report.identity.again),
            spy=os.path.join(os.path.dirname(plan.argv[0]), "py-spy"),
            main=lambda: self._pid,
            told=self._aborted,
            again=self._word.say,
            nccl=collectives.address_of(plan.env),
        )
        self._prefix = not sys.stdout.isatty()

    def run(self) -> int:
        """Start vLLM, stay until it is gone with everything it left, and return the launcher's exit status."""
        tree.become_subreaper()
        os.umask(0o007)  # vLLM's socket is for its group: the gateway
        output, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(theirs, True)
        known: Cause | None = None
        told: tuple[Line, ...] = ()
        probe: Probe | None = None
        clean = False
        try:
            try:
                self._clear()
                prepare(self._plan.directories)
                self._poll.register(output, select.POLLIN)
                self._poll.register(self._wake.reading, select.POLLIN)
                self._deadlines["start"] = clock.monotonic() + self._limits.start  # what waits for the standby counts
                self._pid = self._begin(output, theirs)
            except OSError as error:
                known = Cause("start-failed", f"vLLM cannot be started: {error}", "llm-appliance runtime list", -1)
            finally:
                os.close(theirs)
            if self._pid:
                self._report.started_as(self._pid)
                probe = Probe(self._plan.socket, self._report.identity.served[0], self._told)
                probe.start()
                self._open_desk()
                self._follow(output)
                self._read_all(output)
                told = tuple(self._lines)  # what comes now is said by processes that the launcher ends
                clean = self._bury(output)
                probe.stop()
            self._clear()
            return self._finish(told, known, clean=clean)
        finally:
            self._desk.close()
            if probe is not None:
                probe.stop()
            os.close(output)

    def _begin(self, output: int, theirs: int) -> int:
        """vLLM's main process, from the standby where that is fit; 0 when its end was asked for before it was there."""
        env = environment(self._plan)
        if self._standby is not None:
            self._report.moved(Progress("starting", "importing vLLM"))
            self._poll.register(self._standby, select.POLLIN)

            def pause() -> None:
                self._wait(output, 1.0)
                if self._requested:
                    raise Unfit("asked to stop")

            try:
                return self._standby.start(self._plan.argv, env, theirs, pause)
            except Unfit as fault:
                if not self._requested:
                    self._report.log(NOTICE, f"started without the standby: {fault}")
            finally:
                self._poll.unregister(self._standby)
        return 0 if self._requested else tree.spawn(self._plan.argv, env, theirs)

    # --- while it lives -------------------------------------------------------------------------------------------

    def _follow(self, output: int) -> None:
        """Until vLLM's main process has been reaped, or cannot be ended, and an abort has told what it found."""
        while self._status is None or self._desk.busy:
            now = clock.monotonic()
            for name, deadline in list(self._deadlines.items()):
                if now >= deadline:
                    del self._deadlines[name]
                    self._expire(name)
            if (self._ending or self._status is not None) and not self._desk.busy:
                return
            self._wait(output, min(self._deadlines.values(), default=now + 3600.0) - now)

    def _wait(self, output: int, seconds: float) -> None:
        """Handle what comes within `seconds`; returns after the first things that came."""
        seconds = min(seconds, self._desk.deadline - clock.monotonic())
        for descriptor, mask in self._poll.poll(max(0.0, seconds) * 1000):
            if descriptor == output:
                self._read(output)
            elif descriptor == self._wake.reading:
                self._woken()
            else:
                self._desk.ready(descriptor, mask)
        self._desk.tick(clock.monotonic())

    def _open_desk(self) -> None:
        try:
            self._desk.open()
        except OSError as error:
            self._report.log(WARNING, f"no evidence can be asked for: {error}")

    def _aborted(self, order: Order, count: int) -> None:
        """The supervisor wants vLLM ended so that it tells its stacks."""
        self._report.incident = order.incident or None
        if not order.cause:
            self._requested = True
            self._report.moved(Progress("stopping", "asked to stop"))
        why = f"{order.cause}: {order.reason}" if order.cause else order.reason or "asked for"
        text = f"aborting {count} processes for their stacks: {why}"
        self._report.log(WARNING, text, event="engine-aborted", cause=order.cause or None)

    def _expire(self, name: str) -> None:
        if name == "start":
            self._late = self._limits.start, len(self._lines)
            self._report.log(ERR, f"not serving after {self._limits.start:.0f} s: ending it", event="engine-ending")
            # Python's fault handler prints every thread's stack at SIGABRT: the only evidence there will be.
            tree.send(signal.SIGABRT, (process.pid for process in tree.vllm()))
            self._deadlines["abort"] = clock.monotonic() + self._limits.orphan
            return
        if name == "gone":
            tree.send(signal.SIGTERM, (self._pid,))
            return
        why = {
            "death": "vLLM's engine is dead and its main process stays: ending it",
            "stop": f"still there {self._limits.stop:.0f} s after SIGTERM: killing it",
            "closing": "its HTTP server waits for clients that it cannot answer any more: ending it",
        }
        if name in why:
            self._report.log(WARNING, why[name], event="engine-ending")
        self._ending = True

    def _told(self, outcome: Outcome | None) -> None:
        """The probe's thread has something for the main thread."""
        self._outcomes.append(outcome)
        self._wake.stir()

    def _woken(self) -> None:
        if self._wake.stirred():
            self._stop()
        self._reap()
        while self._outcomes:
            outcome = self._outcomes.popleft()
            if self._requested or self._ending or self._status is not None:
                continue
            if outcome is None:
                self._report.moved(Progress("warming", "waiting for the first real answer"))
            elif not self._served:
                self._served = True
                self._deadlines.pop("start", None)
                self._report.serving(outcome.message, outcome.proven)

    def _stop(self) -> None:
        if self._requested:
            return
        self._requested = True
        if self._word.awaited:  # its end is told already
            return
        self._report.moved(Progress("stopping", "asked to stop"))
        notify.stopping("stopping")
        # Only vLLM's main process: it ends its own children, after the requests that run.
        tree.send(signal.SIGTERM, (self._pid,) if self._pid else ())
        self._deadlines = {"stop": clock.monotonic() + self._limits.stop}

    def _reap(self) -> None:
        self._status = tree.reap().get(self._pid, self._status)

    # --- its output -----------------------------------------------------------------------------------------------

    def _read_all(self, output: int) -> None:
        """What is there now; a torrent is cut off after some megabytes."""
        for _ in range(100):
            if self._silent or not self._read(output):
                return

    def _read(self, output: int) -> bool:
        """One piece of output; False when there was none."""
        try:
            data = os.read(output, 1 << 16)
        except BlockingIOError:
            return False
        if not data:  # every writer is gone
            if not self._silent:
                self._poll.unregister(output)
            self._silent = True
            data = b"\n" if self._rest else b""
        pieces = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = pieces.pop()
        if len(self._rest) > LONGEST_LINE:
            pieces.append(self._rest)
            self._rest = b""
        written: list[str] = []
        for raw in pieces:
            text = raw.decode(errors="replace")
            line = self._reader.read(text)
            if not is_trivia(line):
                self._desk.heard(text.rstrip())
                self._heed(line)
                written.append(self._show(line, raw))
        if written:
            _write("".join(written))
        return True

    def _heed(self, line: Line) -> None:
        kind = notice(line.text, self._lines[-1].text if self._lines else "")
        if kind and (kind != "line" or not self._served):  # of one that serves, requests tell whether it works
            self._report.noticed(kind)
        self._lines.append(line)
        if not self._served and not self._requested:
            if found := figures(line.text):
                self._report.measured(found)
            self._report.moved(advance(self._report.progress, line.text))
            self._report.alive()
        if announces_death(line) and not self._requested:
            self._deadlines.setdefault("death", clock.monotonic() + self._limits.death)
            if self._served and core_is_gone(line):  # of a start its own last words tell the cause
                self._deadlines.setdefault("gone", clock.monotonic() + self._limits.gone)
        if waits_for_clients(line) and (self._requested or "death" in self._deadlines):
            self._deadlines.setdefault("closing", clock.monotonic() + self._limits.closing)

    def _show(self, line: Line, raw: bytes) -> str:
        text = raw.decode(errors="replace").rstrip()
        return f"<{line.priority}>{text}\n" if self._prefix else f"{text}\n"

    # --- its end --------------------------------------------------------------------------------------------------

    def _bury(self, output: int) -> bool:
        """End what is left of the tree and read the last lines; whether nothing is left."""

        def pause(seconds: float) -> None:
            self._wait(output, seconds)
            self._reap()

        spared = (self._standby.pid,) if self._standby is not None else ()
        left = tree.end(0.0 if self._ending else self._limits.orphan, self._limits.kill, pause, spared)
        self._reap()
        if left:
            told = ", ".join(f"{process.comm} ({process.pid}, state {process.state})" for process in left)
            self._report.log(ERR, f"cannot be killed: {told}", event="engine-unkillable")
        until = clock.monotonic() + self._limits.output
        while not self._silent and (seconds := until - clock.monotonic()) > 0:
            self._wait(output, seconds)
        if not self._silent:
            self._poll.unregister(output)
        return not left

    def _finish(self, lines: tuple[Line, ...], known: Cause | None, *, clean: bool) -> int:
        order = self._desk.ordered
        if order is not None and order.cause:
            known = Cause(order.cause, order.reason or "the supervisor ended it", "", -1)
        ending = Ending(self._status, self._requested, self._served, *self._late)
        verdict = verdict_of(ending, lines, known)
        waits = clean and order is None and self._word.is_worth_waiting_for(verdict)
        until = clock.wall() + self._limits.word if waits else None
        told = self._report.ended(verdict, self._status, requested=self._requested, served=self._served, awaits=until)
        if waits and told and self._stopped_while_waiting():
            return names.LAUNCHER_STOPPED
        return verdict.exit_status

    def _stopped_while_waiting(self) -> bool:
        """Wait for the word, as long as it may come; True when the unit was asked to stop meanwhile."""
        end = clock.monotonic() + self._limits.word
        self._word.awaited = True
        while not self._word.said and self._word.may_come and (left_s := end - clock.monotonic()) > 0:
            self._wait(-1, left_s)
            if self._requested:
                return True
        return False

    @property
    def again(self) -> bool:
        """Whether the next run is to begin in this unit."""
        return self._word.said and not self._requested

    # --- around it ------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        """Remove what this run, or one before it, left behind."""
        if removed := leftovers.clear(self._plan.socket, self._plan.directories[-1]):
            self._report.log(INFO, f"removed {removed} abandoned shared memory segments")


def _write(text: str) -> None:
    """To the journal by standard output; an engine outlives a reader that went away."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError):
        return
