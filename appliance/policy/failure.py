"""Why an engine's unit ended: launcher's verdict, systemd's result and exit status -> cause and class of remedy.

Evidence is weighed in this order, the first that speaks wins:

    1. systemd saw the kernel's OOM killer: nothing inside the unit can know better.
    2. the launcher named a cause that is no envelope (`engine-died` carries a cause, it is none).
    3. a limit of systemd's ended it: start or stop timeout.
    4. the launcher's own exit status.
    5. the signal, or the status with which systemd could not even start the launcher.

Whatever the cause, the launcher's status for "will not get better by itself" is believed: such an engine is held.
Later evidence (cgroup counters, kernel lines, GPU readings) takes its place above the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance import names
from appliance.quantity import format_signal

from .causes import CAUSES, ENVELOPES, UNKNOWN_CAUSE, Remedy

EXITED, KILLED, DUMPED = 1, 2, 3  # waitid(2): CLD_*, as systemd's ExecMainCode
_UNIT_SETUP = range(200, 250)  # systemd.exec(5): the unit's own set-up failed, our program never ran


@dataclass(frozen=True, slots=True)
class Exit:
    """How systemd says a unit ended: its Result, and code and status of the main process."""

    result: str
    code: int = 0
    status: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the launcher wrote when it ended; only the one that belongs to the run in question."""

    cause: str = ""
    message: str = ""
    phase: str = ""
    requested: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A cause with what is to be done about it and a sentence for the operator."""

    cause: str
    remedy: Remedy
    reason: str


def failure_of(end: Exit, verdict: Verdict | None = None) -> Failure | None:
    """The failure that an end was; None when it was asked for or went well."""
    if verdict is not None and verdict.requested:
        return None
    if end.result in ("success", "") and (verdict is None or not verdict.cause):
        return None
    cause, facts = _cause(end, verdict)
    remedy = CAUSES[cause].remedy
    never = end.code == EXITED and end.status == names.LAUNCHER_CONFIG
    if never and remedy in (Remedy.NONE, Remedy.RESTART, Remedy.WAIT):
        remedy = Remedy.HOLD
    said = verdict.message.strip() if verdict is not None else ""
    return Failure(cause, remedy, said or f"{CAUSES[cause].meaning.rstrip('.')} ({facts})")


def _cause(end: Exit, verdict: Verdict | None) -> tuple[str, str]:
    """The word, and the facts that it rests on."""
    named = verdict.cause if verdict is not None and verdict.cause in CAUSES else ""
    named = "" if named and CAUSES[named].remedy is Remedy.NONE else named
    serving = verdict is not None and verdict.phase == "serving"
    facts = _facts(end)
    if end.result == "oom-kill":
        return (named if named.startswith("host-oom") else "host-oom-cgroup"), facts
    if named and named not in ENVELOPES:
        return named, facts
    if end.result == "timeout":
        return (named or "engine-died") if serving else "start-timeout", facts
    if end.code == EXITED:
        return _of_status(end.status, named), facts
    if end.code in (KILLED, DUMPED):
        return named or "engine-died", facts
    return named or UNKNOWN_CAUSE, facts


def _of_status(status: int, named: str) -> str:
    if status == names.LAUNCHER_CONFIG:
        return named if named and named not in ENVELOPES else "config-error"
    if status == names.LAUNCHER_ENGINE_DIED:
        return named or "engine-died"
    if status == names.LAUNCHER_START_FAILED or status in _UNIT_SETUP:
        return named or "start-failed"
    return named or UNKNOWN_CAUSE


def _facts(end: Exit) -> str:
    if end.code in (KILLED, DUMPED):
        return f"its launcher ended by {format_signal(end.status)}, result {end.result}"
    if end.code == EXITED and end.status in _UNIT_SETUP:
        return f"systemd could not start the launcher, status {end.status}"
    if end.code == EXITED:
        return f"the launcher ended with status {end.status}, result {end.result}"
    return f"result {end.result}"
