"""Why an engine ended: what the machine, systemd and the launcher say of it -> cause and class of remedy.

Evidence is weighed in this order, the first that speaks wins:

    1. the GPUs and their driver: an Xid that stops a GPU, a recovery action, a GPU that is gone.
    2. the kernel's and systemd-oomd's kills for want of memory, in the kernel's lines, the control group or systemd.
    3. shared memory that was removed, or a worker's SIGBUS, which is what a full /dev/shm looks like.
    4. the launcher's cause, where it is no envelope (`engine-died` carries a cause, it is none). Of it is asked what
       the log cannot know: who holds the GPU's memory, whether a GPU is missing, whether an Xid goes with it.
    5. an Xid that stops a program, a worker's signal.
    6. a limit of systemd's, the launcher's status, the signal, or that systemd could not even start the launcher.

Where that gives a crash of an engine that served, and the gateway has one request in flight that was in flight at an
earlier crash, the request is the cause (`poison-request`). Not where a process of the engine got SIGKILL: no program
does that to itself, so somebody did it from outside, or the kernel for want of memory, which no request is refused for.

The launcher's status for "will not get better by itself" is believed with its word: such an engine is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from appliance import names
from appliance.quantity import UNKNOWN, Maybe, format_signal
from appliance.samples import Gpu, OomKill, Proc, Xid

from .causes import CAUSES, ENVELOPES, UNKNOWN_CAUSE, Remedy
from .hardware import BURST_AHEAD_S, BURST_BEHIND_S, MISMATCH, NOT_LOADED, Fault, Owner, Past, Step, stops_gpu
from .hardware import fault_of as gpu_fault
from .hardware import reading_of as gpu_reading

EXITED, KILLED, DUMPED = 1, 2, 3  # waitid(2): CLD_*, as systemd's ExecMainCode
_UNIT_SETUP = range(200, 250)  # systemd.exec(5): the unit's own set-up failed, our program never ran
_SIGBUS, _SIGKILL = 7, 9
_KILLED_HINT = "killed"  # the launcher's hint that a process of the engine got SIGKILL
# How old a hang is when vLLM itself notices it: 300 s for its own calls, 600 s for torch's watchdog.
_HANG_BEHIND_S = 660.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How systemd says a unit ended: its Result, and code and status of the main process."""

    result: str
    code: int = 0
    status: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the launcher wrote when it ended; only the one that belongs to the run in question.

    `status` and `signal` are vLLM's own; `hint` is what the log says beyond the cause (`compile-cache`, `killed`).
    """

    cause: str = ""
    message: str = ""
    phase: str = ""
    requested: bool = False
    status: Maybe[int] = UNKNOWN
    signal: Maybe[int] = UNKNOWN
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of an engine's GPU.

    `engine` is the instance that it serves in, empty where it is none's; `leftover`: an engine's user owns it, and no
    engine's unit has it any more.
    """

    pid: int
    name: str = ""
    engine: str = ""
    leftover: bool = False

    def __str__(self) -> str:
        return f"{self.name or 'a process'} ({self.pid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was found around an end, on the samples' scale of time. Nothing known is the default.

    `ended` is the instant of the end, UNKNOWN where all that is given belongs to it. `oom_kills_counted` is how far
    memory.events' oom_kill grew in the run. `gpus`, `nvml_code`, `nvml_silent` are the last reading: its GPUs, or the
    error as a whole, or that there was no answer within the deadline.
    """

    ended: Maybe[float] = UNKNOWN
    unit: str = ""
    owner: Owner = field(default_factory=Owner)
    killed_at: Maybe[float] = UNKNOWN  # our own last SIGKILL
    xids: Sequence[Xid] = ()
    past: Past = field(default_factory=Past)
    oom_kills: Sequence[OomKill] = ()
    oom_kills_counted: Maybe[int] = UNKNOWN
    gpus: Sequence[Gpu] = ()
    nvml_code: Maybe[int] = UNKNOWN
    nvml_silent: bool = False
    exits: Sequence[Proc] = ()  # last samples of the engine's processes
    unkillable: Sequence[Proc] = ()  # what is still there long after a SIGKILL
    shm_removed: Sequence[str] = ()  # files of the engine that somebody removed from /dev/shm
    holders: Maybe[Sequence[Holder]] = UNKNOWN  # who holds memory of the engine's GPUs now that it is gone
    unclean_boot: bool = False  # the machine stopped without a shutdown while the engine used its GPUs
    suspects: Maybe[int] = UNKNOWN  # requests in flight at the end and at earlier crashes (`samples.Ledger`)


@dataclass(frozen=True, slots=True)
class Failure:
    """A cause with what is to be done about it, a sentence for the operator, and the facts that it rests on."""

    cause: str
    remedy: Remedy
    reason: str
    evidence: tuple[str, ...] = ()
    pci: str = ""  # of the GPU at fault
    step: Step = Step.NOTHING  # on that GPU's ladder
    killed: bool = False  # a process of the engine got SIGKILL: no request brings that about


def failure_of(end: Exit, verdict: Verdict | None = None, evidence: Evidence = Evidence()) -> Failure | None:
    """The failure that an end was; None when it was asked for or went well."""
    if verdict is not None and verdict.requested:
        return None
    said = _said(verdict)
    if end.result in ("success", "") and not said and not evidence.unclean_boot:
        return None
    serving = verdict is not None and verdict.phase == "serving"
    found = (
        hardware_of(evidence)
        or _of_host_memory(end, said, evidence)
        or _of_shared_memory(said, evidence)
        or _of_launcher(said, serving, evidence)
        or _of_program(said, evidence)
        or _of_status(end, said, serving)
    )
    if verdict is not None and verdict.message.strip() and found.cause == said:
        found = replace(found, reason=_joined(verdict.message.strip(), found.reason))
    elif not found.reason:
        found = replace(found, reason=f"{CAUSES[found.cause].meaning.rstrip('.')} ({_facts(end)})")
    if verdict is not None and verdict.hint == _KILLED_HINT and found.cause == said:
        found = replace(found, killed=True)
    if serving:
        found = _of_a_request(found, evidence)
    never = end.code == EXITED and end.status == names.LAUNCHER_CONFIG and found.cause in (said, "config-error")
    if never and found.remedy in (Remedy.NONE, Remedy.RESTART, Remedy.WAIT):
        found = replace(found, remedy=Remedy.HOLD)
    return replace(found, evidence=(*found.evidence, _facts(end)))


def _of_a_request(found: Failure, evidence: Evidence) -> Failure:
    """A crash with one request in flight that was in flight at an earlier one: the request is the cause behind it.

    With several of them nobody can tell which it is. Memory that ran out keeps its own cause, and its own remedy.
    """
    if found.cause not in _OF_A_REQUEST or found.killed or evidence.suspects is UNKNOWN or evidence.suspects < 1:
        return found
    if evidence.suspects > 1:
        told = f"{evidence.suspects} requests were in flight at this crash and at an earlier one"
        return replace(found, evidence=(*found.evidence, told))
    cause = CAUSES["poison-request"]
    reason = f"a request was in flight at this crash and at an earlier one; {found.cause}: {found.reason}"
    return replace(found, cause="poison-request", remedy=cause.remedy, reason=reason)


_OF_A_REQUEST = frozenset({"engine-exception", "cuda-fault", "worker-died"})


def hardware_of(evidence: Evidence) -> Failure | None:
    """What stops a whole GPU, or the machine; None when nothing does. Beats whatever else is seen, hangs included."""
    if evidence.unclean_boot:
        return Failure("unclean-reset", CAUSES["unclean-reset"].remedy, CAUSES["unclean-reset"].meaning)
    fault = gpu_fault(_near(evidence, 0.0), evidence.owner, evidence.past, killed_at=evidence.killed_at)
    if fault is not None and (fault.step >= Step.RESET or fault.cause == "gpu-ecc"):
        return _failure(fault)
    fault = gpu_reading(evidence.gpus, evidence.owner, code=evidence.nvml_code)
    if fault is not None and fault.cause != "driver-mismatch":
        return _failure(fault)
    return None


def _said(verdict: Verdict | None) -> str:
    """The launcher's word, empty when it has none that is a fault."""
    word = verdict.cause if verdict is not None else ""
    return word if word in CAUSES and CAUSES[word].remedy is not Remedy.NONE else ""


def _plain(cause: str, reason: str = "", remedy: Remedy | None = None, *facts: str) -> Failure:
    return Failure(cause, remedy or CAUSES[cause].remedy, reason, facts)


def _failure(fault: Fault) -> Failure:
    return Failure(fault.cause, fault.remedy, fault.reason, fault.evidence, fault.pci, fault.step)


def _joined(message: str, more: str) -> str:
    return f"{message}; {more}" if more and more not in message else message


def _near(evidence: Evidence, behind_s: float) -> tuple[Xid, ...]:
    """The Xids that belong to the end. What stops a whole GPU stays true until somebody mends it, however old it is."""
    if evidence.ended is UNKNOWN:
        return tuple(evidence.xids)
    first, last = evidence.ended - max(behind_s, BURST_BEHIND_S), evidence.ended + BURST_AHEAD_S
    return tuple(x for x in evidence.xids if x.t <= last and (x.t >= first or stops_gpu(x)))


def _of_host_memory(end: Exit, said: str, evidence: Evidence) -> Failure | None:
    """Killed for want of memory; the kernel's own line tells a limit of the unit from the host's."""
    ours = [kill for kill in evidence.oom_kills if _is_ours(kill, evidence)]
    counted = evidence.oom_kills_counted is not UNKNOWN and evidence.oom_kills_counted > 0
    scopes = {kill.scope for kill in ours}
    facts = tuple(f"{kill.scope or 'an'} OOM kill of {kill.process or kill.unit or 'a process'}" for kill in ours)
    for scope in ("oomd", "global", "cgroup"):
        if scope in scopes:
            return _plain(f"host-oom-{scope}", "", None, *facts)
    if end.result == "oom-kill" or ours or counted:
        return _plain(said if said.startswith("host-oom") else "host-oom-cgroup", "", None, *facts)
    return None


def _is_ours(kill: OomKill, evidence: Evidence) -> bool:
    if kill.unit:
        return not evidence.unit or kill.unit == evidence.unit
    if kill.pid is not UNKNOWN and evidence.owner.pids is not UNKNOWN and kill.pid in evidence.owner.pids:
        return True
    # The name alone cannot tell two engines apart; without a list of pids it is all there is.
    return evidence.owner.pids is UNKNOWN and (not kill.process or kill.process.startswith("VLLM::"))


def _of_shared_memory(said: str, evidence: Evidence) -> Failure | None:
    sigbus = any(process.exit_code == -_SIGBUS for process in evidence.exits) or said == "shm-full"
    if evidence.shm_removed and (sigbus or said in _CARRIERS or said == "shm-removed"):
        return _plain("shm-removed", f"{evidence.shm_removed[0]} was removed while it was in use")
    if sigbus and (said in _CARRIERS or said == "shm-full"):
        return _plain("shm-full", "" if said else "a process was ended by SIGBUS, as when /dev/shm is full")
    return None


def _of_launcher(said: str, serving: bool, evidence: Evidence) -> Failure | None:
    """The launcher's cause, with what its log could not know."""
    if not serving and said in _CARRIERS | _DEVICE_ERRORS and evidence.nvml_code in (MISMATCH, NOT_LOADED):
        fault = gpu_reading((), evidence.owner, code=evidence.nvml_code)
        if fault is not None:
            return _failure(fault)
    if not said or said in ENVELOPES:
        return None
    if said in ("gpu-memory-taken", "cuda-oom-load", "start-contention") and evidence.holders is not UNKNOWN:
        return _of_holders(said, evidence.holders)
    if not serving and said in ("gpu-lost", "nvlink-fault"):
        # At boot, device nodes and the fabric manager may come later than the engine; what stays away is held then.
        return _plain(said, "", Remedy.WAIT)
    fault = _program_fault(said, evidence)
    if fault is not None:
        cause = said if fault.cause == "cuda-fault" else fault.cause
        return replace(_failure(fault), cause=cause, remedy=CAUSES[said].remedy)
    return _plain(said)


def _of_holders(said: str, holders: Sequence[Holder]) -> Failure:
    """Who holds the GPU's memory decides: a leftover of ours goes, another engine is the configuration's fault."""
    engines = sorted({holder.engine for holder in holders if holder.engine})
    leftover = [holder for holder in holders if holder.leftover]
    foreign = [holder for holder in holders if not holder.engine and not holder.leftover]
    if leftover:
        return _plain("gpu-memory-leaked", f"an earlier run's {', '.join(map(str, leftover))} still hold it")
    if foreign:
        return _plain("gpu-memory-taken", f"{', '.join(map(str, foreign))} hold it")
    if engines and said != "start-contention":
        text = f"engine {', '.join(engines)} uses the same GPU: their gpu_memory_utilization must add up to less than 1"
        return _plain(said, text, Remedy.HOLD if said == "gpu-memory-taken" else None)
    if said == "gpu-memory-taken":
        return _plain("gpu-memory-leaked", "no process holds it: the driver lost it, and a reset of the GPU frees it")
    return _plain(said)


def _of_program(said: str, evidence: Evidence) -> Failure | None:
    """What stops a process behind the launcher's back."""
    if evidence.unkillable:
        left = ", ".join(f"{process.name or 'a process'} ({process.pid})" for process in evidence.unkillable)
        return _plain("driver-unresponsive", f"{left} cannot be killed: it is in a call of the driver")
    if evidence.nvml_silent and (fault := gpu_reading((), evidence.owner, silent=True)) is not None:
        return _failure(fault)
    fault = _program_fault(said, evidence)
    if fault is not None:
        return _failure(fault)
    workers = [p for p in evidence.exits if p.name.startswith("VLLM::Worker") and p.exit_code is not UNKNOWN]
    for process in workers:
        if process.exit_code is not UNKNOWN and process.exit_code < 0:
            ended = format_signal(-process.exit_code)
            found = _plain("worker-died", f"{process.name} ({process.pid}) was ended by {ended}")
            return replace(found, killed=process.exit_code == -_SIGKILL)
    return None


def _program_fault(said: str, evidence: Evidence) -> Fault | None:
    """An Xid that goes with a program's fault, for causes that one may be behind."""
    if said not in _CARRIERS and said not in ("cuda-fault", "hang-collective"):
        return None
    behind_s = _HANG_BEHIND_S if said.startswith("hang-") else 0.0
    fault = gpu_fault(_near(evidence, behind_s), evidence.owner, evidence.past, killed_at=evidence.killed_at)
    return None if fault is None or (said == "hang-collective" and fault.cause == "cuda-fault") else fault


_CARRIERS = ENVELOPES | {"", "worker-died", "engine-exception"}
# What a start says that finds no usable GPU; the driver may be why.
_DEVICE_ERRORS = frozenset({"config-error", "gpu-lost", "cuda-fault", "driver-mismatch"})


def _of_status(end: Exit, said: str, serving: bool) -> Failure:
    """What is left: systemd's limit, the launcher's status, the signal."""
    if end.result == "timeout":
        return _plain((said or "engine-died") if serving else "start-timeout")
    if end.code == EXITED:
        if end.status == names.LAUNCHER_CONFIG:
            return _plain("config-error")
        if end.status == names.LAUNCHER_ENGINE_DIED:
            return _plain(said or "engine-died")
        if end.status == names.LAUNCHER_START_FAILED or end.status in _UNIT_SETUP:
            return _plain(said or "start-failed")
        return _plain(said or UNKNOWN_CAUSE)
    if end.code in (KILLED, DUMPED):
        return _plain(said or "engine-died")
    if end.result == "start-limit-hit":
        return _plain(said or "start-failed", "systemd's own limit of starts was hit")
    return _plain(said or UNKNOWN_CAUSE)


def _facts(end: Exit) -> str:
    if end.code in (KILLED, DUMPED):
        return f"its launcher ended by {format_signal(end.status)}, result {end.result}"
    if end.code == EXITED and end.status in _UNIT_SETUP:
        return f"systemd could not start the launcher, status {end.status}"
    if end.code == EXITED:
        return f"the launcher ended with status {end.status}, result {end.result}"
    return f"result {end.result}"
