"""The launcher answers for its engine: it has the engine's user, and sees what is private to the unit.

`launcher/evidence.sock` in the engine's directory, for root and the supervisor: one JSON line a connection,

    {"verb": "stacks"}   where each process is, py-spy's stacks where the runtime has it, NCCL's view of its ranks
    {"verb": "shm"}      what lies in the unit's own /dev/shm
    {"verb": "lines"}    the last lines of output, with their times
    {"verb": "abort", "cause": "hang-collective", "reason": "...", "incident": "ID"}   ends vLLM, tells its last stacks
    {"verb": "again", "start": "ID"}   the run of that id is over and its launcher waits: the next one begins, at once

Each may name the run that it means (`"run"`): the launcher of another one refuses, since in a unit the next one
begins where the one before has ended. Back come `{"part": "stacks", "text": "..."}` lines, then `{"done": true, "ok":
true, "message": ""}`. An abort without a cause is an end that was asked for. Everything happens in the launcher's own
loop: nothing here waits, and every connection has an end.
"""

from __future__ import annotations

import json
import select
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance import clock, names
from appliance.host import peer
from appliance.host.proc import Process
from appliance.policy.causes import CAUSES
from appliance.wire.vllmlog import KEPT_LINES

from . import processes, tree
from .abort import LOOK_S, Abort
from .collectives import Status
from .spies import Spies

VERBS = ("stacks", "shm", "lines", "abort", "again")
CONNECTIONS = 8
REQUEST_LIMIT = 8192
DEADLINE_S = 20.0  # of a connection; an abort's own limit is below it
LONGEST_LINE = 4096
LINES_LIMIT = 4 << 20
PIECE = 16 << 10  # characters of text in one line of an answer


@dataclass(frozen=True, slots=True)
class Order:
    """An abort that was asked for. `cause` is empty where the end itself was what was asked for."""

    cause: str
    reason: str
    incident: str


class _Connection:
    """One asker, in the poll loop."""

    def __init__(self, accepted: socket.socket, poll: select.poll) -> None:
        self.descriptor = accepted.fileno()
        self.until = clock.monotonic() + DEADLINE_S
        self.spies: Spies | None = None
        self.collectives: Status | None = None
        self.abort: Abort | None = None
        self.gone = False
        self._socket, self._poll = accepted, poll
        self._heard = b""
        self._unsent = bytearray()
        self._whole = False
        accepted.setblocking(False)
        poll.register(accepted, select.POLLIN)

    def read(self) -> bytes | None:
        """The request once it is whole; empty for an asker that left or says too much. Asks for no more after it."""
        try:
            data = self._socket.recv(REQUEST_LIMIT)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        self._heard += data
        line, newline, _ = self._heard.partition(b"\n")
        if newline:
            self._poll.modify(self.descriptor, 0)
            return line
        return b"" if not data or len(self._heard) > REQUEST_LIMIT else None

    def add(self, part: str, text: str) -> None:
        """A part of the answer."""
        for start in range(0, len(text), PIECE):
            piece = {"part": part, "text": text[start : start + PIECE]}
            self._unsent += json.dumps(piece).encode() + b"\n"

    def end(self, ok: bool, message: str = "") -> None:
        """The answer is whole."""
        self._unsent += json.dumps({"done": True, "ok": ok, "message": message}).encode() + b"\n"
        self._whole = True
        self.send()

    def send(self) -> None:
        """As much as goes without waiting; `gone` once nothing is left to do."""
        try:
            while self._unsent and not self.gone:
                del self._unsent[: self._socket.send(self._unsent[: 1 << 16])]
        except BlockingIOError:
            self._poll.modify(self.descriptor, select.POLLOUT)
            return
        except OSError:
            self.close()
            return
        if self._whole:
            self.close()

    def send_all(self, patience_s: float) -> None:
        """The rest, waiting for at most `patience_s`; then it is gone."""
        if not self.gone:
            try:
                self._socket.settimeout(max(patience_s, 0.01))
                self._socket.sendall(self._unsent)
            except OSError:
                self._unsent.clear()
        self.close()

    @property
    def limits(self) -> tuple[float, ...]:
        """Until when what was asked for it may take."""
        return tuple(asked.until for asked in (self.spies, self.collectives) if asked is not None)

    def looked(self, now: float) -> bool:
        """Whether all that was asked for it has told, or has had its time; what it told is a part of the answer."""
        spies, collectives = self.spies, self.collectives
        assert spies is not None and collectives is not None
        if any(asked.running and now < asked.until for asked in (spies, collectives)):
            return False
        self.drop()
        self.add("stacks", spies.text)
        self.add("nccl", collectives.text)
        return True

    def drop(self) -> None:
        """Nothing is asked for it any more."""
        for asked in (self.spies, self.collectives):
            if asked is not None:
                asked.end()
        self.spies = self.collectives = None

    def close(self) -> None:
        """The asker is done or has left."""
        if not self.gone:
            self.gone = True
            self._poll.unregister(self.descriptor)
            self._socket.close()
            self._unsent.clear()


class Desk:
    """Serves the socket from the launcher's poll loop; `main` gives vLLM's main process, `told` hears of an abort,
    `again` hears after which run the next one shall begin, and answers with what speaks against it.

    `run` is its name to systemd, empty without. `ordered` is the abort that was begun, None before.
    """

    def __init__(self, path: str, poll: select.poll, *, run: str, spy: str, main: Callable[[], int],
                 told: Callable[[Order, int], None], again: Callable[[str], str], nccl: tuple[str, int] | None = None,
                 shm: str = "/dev/shm") -> None:  # fmt: skip
        self._path, self._poll, self._spy, self._main, self._told, self._shm = path, poll, spy, main, told, shm
        self._run, self._again, self._nccl = run, again, nccl
        self._listener: socket.socket | None = None
        self._connections: list[_Connection] = []
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.ordered: Order | None = None

    def open(self) -> None:
        """Listen. Raises OSError; an engine serves without it as well."""
        Path(self._path).parent.mkdir(mode=0o750, exist_ok=True)
        Path(self._path).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(self._path)
            listener.listen(4 * CONNECTIONS)  # a full one makes `connect` fail at once
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._poll.register(listener, select.POLLIN)

    def close(self, patience_s: float = 1.0) -> None:
        """Hand out what is owed, for at most `patience_s`, and close. Never raises."""
        end = clock.monotonic() + patience_s
        for connection in self._connections:
            connection.drop()
            connection.send_all(end - clock.monotonic())
        self._connections.clear()
        if self._listener is not None:
            self._poll.unregister(self._listener)
            self._listener.close()
            self._listener = None
            Path(self._path).unlink(missing_ok=True)

    @property
    def busy(self) -> bool:
        """Whether an abort is under way, which the launcher must outlive."""
        return any(connection.abort is not None for connection in self._connections)

    @property
    def deadline(self) -> float:
        """When `tick` has something to do; infinity for never."""
        if self.busy:
            return clock.monotonic() + LOOK_S
        ends = [connection.until for connection in self._connections]
        ends += [each for connection in self._connections for each in connection.limits]
        return min(ends, default=float("inf"))

    def heard(self, line: str) -> None:
        """A line of vLLM's output."""
        line = line[:LONGEST_LINE]
        self._lines.append(f"{clock.wall():.3f} {line}")
        for connection in self._connections:
            if connection.abort is not None:
                connection.abort.hear(line)

    def ready(self, descriptor: int, mask: int) -> None:
        """The poll has something for one of the desk's descriptors."""
        if self._listener is not None and descriptor == self._listener.fileno():
            self._accept()
        for connection in list(self._connections):
            if connection.spies is not None and connection.spies.owns(descriptor):
                connection.spies.hear(descriptor)
            elif connection.collectives is not None and connection.collectives.owns(descriptor):
                connection.collectives.ready()
            elif connection.descriptor == descriptor and not connection.gone:
                self._serve(connection, mask)

    def tick(self, now: float) -> None:
        """What is due: the next step of an abort, spies that have ended or are late, late connections."""
        for connection in list(self._connections):
            abort = connection.abort
            if connection.spies is not None and connection.looked(now):
                connection.end(True)
            if abort is not None and not abort.step(now):
                connection.abort = None
                connection.add("stacks", abort.text)
                connection.end(True, f"{len(abort.targets)} processes were aborted")
            if now >= connection.until:
                connection.close()
            # An abort goes on when its asker has left: processes that were frozen must not stay so.
            if connection.gone and connection.abort is None:
                connection.drop()
                self._connections.remove(connection)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return
        try:
            welcome = peer.is_trusted(peer.uid_of(accepted)) and len(self._connections) < CONNECTIONS
        except OSError:
            welcome = False
        if welcome:
            self._connections.append(_Connection(accepted, self._poll))
        else:
            accepted.close()

    def _serve(self, connection: _Connection, mask: int) -> None:
        if mask & select.POLLIN:
            line = connection.read()
            if line is None:
                return
            if line:
                self._begin(connection, line)
            else:
                connection.close()
        elif mask & select.POLLOUT:
            connection.send()
        else:  # it hung up
            connection.close()

    def _begin(self, connection: _Connection, line: bytes) -> None:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        verb, run = (request.get("verb"), request.get("run")) if isinstance(request, dict) else (None, None)
        if run and self._run and run != self._run:
            connection.end(False, names.ANOTHER_RUN)
        elif verb == "shm":
            connection.add("shm", processes.shared_memory(self._shm))
            connection.end(True)
        elif verb == "lines":
            connection.add("lines", "\n".join(self._lines)[-LINES_LIMIT:] + "\n")
            connection.end(True)
        elif verb == "stacks":
            living = self._living()
            connection.add("processes", processes.describe(living))
            now = clock.monotonic()
            connection.spies = Spies(self._spy, self._poll, living, now)
            connection.collectives = Status(self._nccl, self._poll, now)
        elif verb == "abort":
            self._abort(connection, request)
        elif verb == "again":
            refusal = self._again(str(request.get("start") or ""))
            connection.end(not refusal, refusal)
        else:
            connection.end(False, f"the verbs are {', '.join(VERBS)}")

    def _abort(self, connection: _Connection, request: dict[str, object]) -> None:
        cause = str(request.get("cause") or "")
        if self.ordered is not None:
            connection.end(False, "an abort was begun already")
        elif cause and cause not in CAUSES:
            connection.end(False, f"there is no cause {cause[:40]!r}")
        else:
            reason, incident = (str(request.get(key) or "") for key in ("reason", "incident"))
            self.ordered = Order(cause, reason[:2000], incident[:200])
            targets = self._living()
            self._told(self.ordered, len(targets))
            connection.abort = Abort(targets, self._main(), clock.monotonic())

    def _living(self) -> tuple[Process, ...]:
        """vLLM's processes, without py-spy."""
        spies = [connection.spies.pids for connection in self._connections if connection.spies is not None]
        return tuple(process for process in tree.vllm() if process.pid not in frozenset().union(*spies))
