"""Taking an engine down so that the next one can start: evidence, abort, kill, and what it held is free again.

`policy/reclaim` says which step is next; this carries it out, one task for each engine, and keeps on disk what a
supervisor that takes over must know: `recoveries/NAME` is there from before the first step to after the last. While it
is there the loop's own plan for the engine is not carried out.

Order on disk, so that being killed anywhere loses nothing and does nothing twice: the recovery's file, then the ledger
(the death that the kill is going to be, or the operator's wish), then the bundle, then the abort and the kill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import clock, names
from appliance.errors import ApplianceError
from appliance.host import files, proc, systemd
from appliance.host.journal import ERR, NOTICE, WARNING
from appliance.policy import reclaim
from appliance.policy.reclaim import Left, Look, Progress, Step
from appliance.policy.reconcile import RUNNING, UnitState, View
from appliance.policy.restart import PAST, Record
from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Nvml
from appliance.wire.incident import Incident

from . import sources, story
from .act import Refusal
from .observe import run_of, unit_state

if TYPE_CHECKING:
    from .daemon import Daemon

PAUSE_S = 0.25
UNKILLABLE = "driver-unresponsive"
_NEXT = {
    Step.RECORD: "evidence is taken, then it is killed and started again",
    Step.ABORT: "its processes tell their stacks, then it is killed and started again",
    Step.KILL: "it is killed and started again",
    Step.CUT: "it is started again when what it held is free",
    Step.WAIT: "it is started again when what it held is free",
}
_TEXTS = ("run", "kind", "incident", "start", "cause", "reason", "verdict", "action", "group", "pci")
Memory = Callable[[str], Maybe[Nvml]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is on disk of one recovery. `group` is the unit's control group, `pids` what was seen in it."""

    at: float
    run: str
    kind: str
    incident: str
    start: str = ""  # the launcher's name of the run
    cause: str = ""
    reason: str = ""
    verdict: str = ""
    action: str = ""
    evidence: tuple[str, ...] = ()
    group: str = ""
    pci: str = ""  # of the GPU at fault
    step: int = 0  # on its ladder, as `hardware.Step` numbers it
    pids: tuple[int, ...] = ()
    recorded: bool = False
    aborted: float | None = None
    killed: float | None = None


class Recovery:
    """One engine being taken down. `run` returns when nothing is left to do."""

    def __init__(self, daemon: Daemon, instance: str, case: Case, memory: Memory) -> None:
        self._daemon, self._instance, self._memory = daemon, instance, memory
        self._path = path_of(daemon, instance)
        self._asked: float | None = None
        self._taken: float | None = None
        self._empty: float | None = None
        self.case = case
        self.step = Step.RECORD

    @property
    def view(self) -> View:
        """What `status` shows meanwhile."""
        return View("restarting", self.case.reason, self.case.cause, _NEXT.get(self.step, ""))

    async def run(self) -> None:
        """Step by step to the end. A fault of the disk or of systemd is told once and tried again."""
        while True:
            look = await self._look()
            case = self.case
            progress = Progress(case.run, case.recorded, case.aborted, case.killed)
            self.step, reason = reclaim.next_step(progress, look)
            if self.step in (Step.DONE, Step.OVERTAKEN, Step.UNKILLABLE):
                await self._end(reason)
                return
            try:
                await self._carry_out()
                self._daemon.complain(f"recovery {self._instance}", "", "systemd-refused", WARNING)
            except (OSError, Refusal) as error:
                fault = f"{self._instance}: {error}"
                self._daemon.complain(f"recovery {self._instance}", fault, "systemd-refused", WARNING, self._instance)
            await asyncio.sleep(PAUSE_S)

    async def _look(self) -> Look:
        unit: systemd.Unit | None = None
        try:
            name = names.engine_unit(self._instance)
            unit = (await systemd.ask_async(systemd.show([name]))).get(name)
        except ApplianceError:
            pass  # not known: the policy waits
        now = clock.monotonic()
        left = self._left(unit)
        if left is not UNKNOWN:
            self._empty = None if left else self._empty if self._empty is not None else now
            self.case = replace(self.case, pids=tuple(sorted({*self.case.pids, *(one.pid for one in left)})))
        state = unit_state(unit) if unit is not None else UnitState.UNKNOWN
        return Look(
            run=self._run(unit) if unit is not None else "",
            known=unit is not None and state is not UnitState.UNKNOWN,
            running=state in RUNNING or state is UnitState.STOPPING,
            net=state is UnitState.NET,
            left=left,
            held=reclaim.is_held(self._memory(self._instance), frozenset(self.case.pids)),
            now=clock.wall(),
            asked_s=None if self._asked is None else now - self._asked,
            taken_s=None if self._taken is None else now - self._taken,
            empty_s=None if self._empty is None else now - self._empty,
        )

    def _run(self, unit: systemd.Unit) -> str:
        """The run that the unit is at; a launcher's file that cannot be read changes nothing."""
        state = files.read_json(names.engine_state(self._instance, self._daemon.places.run))
        own = names.invocation_of(self.case.run) == unit.invocation
        return self.case.run if state is None and own else run_of(unit, state or {})

    def _left(self, unit: systemd.Unit | None) -> Maybe[tuple[Left, ...]]:
        """What lives in the group that the run had; a group that is gone with its unit is empty."""
        found = proc.unit_processes(self.case.group)
        if found is UNKNOWN:
            return () if unit is not None and not unit.control_group else UNKNOWN
        return tuple(Left(one.pid, one.comm, one.state) for one in found if one.state not in "ZX")

    async def _carry_out(self) -> None:
        """The step that was decided. Raises OSError, Refusal."""
        if self.step is Step.RECORD:
            await self._record()
        elif self.step is Step.ABORT:
            await self._abort()
        elif self.step is Step.KILL:
            await self._kill()
        elif self.step is Step.CUT:
            await self._daemon.hand.ask("stop", names.engine_unit(self._instance))

    async def _record(self) -> None:
        case = self.case
        await self._daemon.first_looks.settled(self._instance)
        about = Incident(
            id=case.incident, engine=self._instance, at=case.at, kind=case.kind, cause=case.cause, reason=case.reason,
            verdict=case.verdict, action=case.action, evidence=case.evidence, run=case.run,
        )  # fmt: skip
        await self._daemon.recorder.record(about, self._daemon.subject(self._instance, case.run, case.group))
        self._keep(replace(self.case, recorded=True))

    async def _abort(self) -> None:
        """At most once: what a supervisor that was killed had asked for is not asked for again."""
        self._keep(replace(self.case, aborted=clock.wall()))
        case, subject = self.case, self._daemon.subject(self._instance, self.case.run, self.case.group)
        order = {"cause": case.cause, "reason": case.reason, "incident": case.incident}
        try:
            told = await sources.ask_launcher(subject, "abort", sources.ABORT_S, **order)
            text = "\nPrinted at the abort:\n\n" + told.get("stacks.txt", "nothing\n")
        except sources.Missing as missing:
            text = f"\nNothing was printed at an abort: {missing}\n"
        await self._daemon.recorder.add(case.incident, "stacks.txt", text, subject)

    async def _kill(self) -> None:
        if self.case.killed is None:
            self._keep(replace(self.case, killed=clock.wall()))
            self._daemon.judges.killed(self._instance)
            self._tell(WARNING, "engine-killed", f"all its processes are killed: {self.case.reason}")
        self._asked = clock.monotonic()
        await self._daemon.hand.ask("kill", names.engine_unit(self._instance), "SIGKILL")
        self._taken = self._taken if self._taken is not None else clock.monotonic()

    async def _end(self, reason: str) -> None:
        """The matter is over: the loop's plan goes on from here."""
        if self.step is Step.UNKILLABLE:
            text = f"{reason}; reboot the machine"
            self._tell(ERR, "engine-unkillable", text, UNKILLABLE)
            record = self._daemon.ledger.records.get(self._instance, Record())
            past = (*record.past, self.case.run)[-PAST:]  # its end, if it ever comes, is no news
            held = replace(
                record, hold=text, wanted="", over="", not_before=None, cause=UNKILLABLE, reason=text, past=past
            )
            self._daemon.save({**self._daemon.ledger.records, self._instance: held})
        else:
            self._tell(NOTICE, "engine-reclaimed", reason)
        await self._daemon.recorder.conclude(self.case.incident, f"{self.step.value}: {reason}")
        Path(self._path).unlink(missing_ok=True)

    def _keep(self, case: Case) -> None:
        """Put the case on disk before anything follows from it. Raises OSError."""
        self.case = case
        write(self._path, case)

    def _tell(self, priority: int, event: str, text: str, cause: str = "") -> None:
        story.line(
            self._daemon.journal, priority, f"{self._instance}: {text}", event=event, instance=self._instance,
            cause=cause or self.case.cause, incident=self.case.incident, entry=cause,
        )  # fmt: skip


def path_of(daemon: Daemon, instance: str) -> str:
    """Where the case of an engine lies."""
    return f"{daemon.places.under_state(names.RECOVERIES)}/{instance}"


def write(path: str, case: Case) -> None:
    """Put a case on disk. Raises OSError."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    files.replace_json(path, asdict(case), mode=0o640)


def read(path: str) -> Case | None:
    """A case from disk; None where there is none that can be read."""
    value = files.read_json(path)
    if value is None or not isinstance(value.get("run"), str):
        return None
    texts = {key: str(value.get(key) or "") for key in _TEXTS}
    evidence, pids = value.get("evidence"), value.get("pids")
    return Case(
        at=_instant(value, "at") or 0.0,
        evidence=tuple(map(str, evidence)) if isinstance(evidence, list) else (),
        step=step if isinstance(step := value.get("step"), int) else 0,
        pids=tuple(pid for pid in pids if isinstance(pid, int)) if isinstance(pids, list) else (),
        recorded=value.get("recorded") is True,
        aborted=_instant(value, "aborted"),
        killed=_instant(value, "killed"),
        **texts,
    )


def _instant(value: Mapping[str, object], key: str) -> float | None:
    found = value.get(key)
    return float(found) if isinstance(found, (int, float)) else None
