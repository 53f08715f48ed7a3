"""What is gathered of an engine's runs, so that an end finds its evidence: processes, kernel lines, memory, the log.

Bounded: of each kind the last ones are kept. The kernel's lines come before a death or after it, so an end is settled
only when `failure.BURST_AHEAD_S` have gone by.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Cgroup, Fs, Gpu, Ledger, Nvml, OomKill, Proc, Said, Setting, Xid

from .causes import CAUSES
from .failure import Evidence, Exit, Failure, Holder, Verdict, failure_of, hardware_of
from .hardware import BURST_AHEAD_S, Owner, Past, Step, notes_of
from .witness import CORE

KEPT = 256
LOOK_AHEAD_S = BURST_AHEAD_S
UNKILLABLE_S = 30.0  # after which a process that was killed and is still there waits in the driver
LEFT_S = 10.0  # after which a process of an ended engine is left over
SILENT_S = 15.0  # without an answer of NVML; a slow driver is not yet a sick one
PAST_S = 86400.0
FIRST_S = 10.0  # of a timeline, in which every source that is asked regularly has spoken
_PROCESSES = ("VLLM::", "vllm")


@dataclass(frozen=True, slots=True)
class End:
    """An end that nobody asked for. `phase` is how far the run was; `status`, `signal` are vLLM's own."""

    t: float
    exit: Exit
    phase: str
    status: Maybe[int] = UNKNOWN
    signal: Maybe[int] = UNKNOWN
    unclean_boot: bool = False


class Ending:
    """Evidence of one engine, over all its runs."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.unit = ""
        self.killed_at: Maybe[float] = UNKNOWN
        self._xids: deque[Xid] = deque(maxlen=KEPT)
        self._older: deque[Xid] = deque(maxlen=KEPT)  # of earlier boots
        self._kills: deque[OomKill] = deque(maxlen=KEPT)
        self._exits: deque[Proc] = deque(maxlen=KEPT)
        self._removed: deque[str] = deque(maxlen=KEPT)
        self._processes: dict[int, Proc] = {}
        self._gpus: tuple[Gpu, ...] = ()
        self._code: Maybe[int] = UNKNOWN
        self._unanswered_since: Maybe[float] = UNKNOWN
        self._is_stuck = False  # processes that asked wait in the driver and cannot be killed
        self._oom_before: Maybe[int] = UNKNOWN
        self._oom_now: Maybe[int] = UNKNOWN
        self._first_t = float("inf")
        self._steps: dict[str, Step] = {}
        self._own_step: tuple[str, Step] | None = None  # of this run's own end
        self._suspects: Maybe[int] = UNKNOWN
        self.said: Said | None = None

    def begin(self) -> None:
        """A run begins: what belonged to the one before it is over."""
        if self._own_step is not None:
            self.keep_step(*self._own_step)
            self._own_step = None
        self._exits.clear()
        self._removed.clear()
        self._oom_before = self._oom_now
        self._suspects = UNKNOWN
        self.said = None

    def boot(self) -> None:
        """The machine runs anew: what the driver had said before is history."""
        self._older.extend(self._xids)
        self._xids.clear()
        self._processes.clear()
        self._gpus, self._code = (), UNKNOWN
        self._unanswered_since, self._is_stuck = UNKNOWN, False

    def see_process(self, sample: Proc) -> None:
        """A process; its last sample has an `event`."""
        self._began(sample.t)
        if sample.event:
            self._exits.append(sample)
            self._processes.pop(sample.pid, None)
            return
        self._processes[sample.pid] = sample
        if len(self._processes) > KEPT:
            self._processes.pop(min(self._processes, key=lambda pid: self._processes[pid].t))

    def is_own(self, process: Proc) -> bool:
        """Whether a process is the engine's, as far as its control group tells; without one it is taken for one."""
        if not process.cgroup:
            return True
        unit = self.unit or f"llm-engine@{self._setting.engine}.service"
        if "llm-engine@" in process.cgroup:
            return unit in process.cgroup
        return process.name.startswith(_PROCESSES)

    def is_parent(self, pid: int) -> bool:
        """Whether a process is the one that vLLM's engine core is a child of, whatever it is called."""
        cores = (process for process in self._processes.values() if CORE.search(process.name))
        return any(process.ppid == pid for process in cores)

    def is_gone(self, pid: int, since: float) -> bool:
        """Whether a process was there before and was not seen alive since; one that was never seen is not known."""
        process = self._processes.get(pid)
        return process is not None and process.t < since

    def see_nvml(self, sample: Nvml) -> None:
        """A reading of NVML, or why there is none."""
        self._began(sample.t)
        if sample.error or sample.code is not UNKNOWN:
            self._code = sample.code
            if sample.code is not UNKNOWN:
                self._unanswered_since, self._is_stuck = UNKNOWN, False
                return
            if self._unanswered_since is UNKNOWN:
                self._unanswered_since = sample.t
            self._is_stuck = sample.stuck > 0
            return
        self._gpus, self._code = sample.gpus, UNKNOWN
        self._unanswered_since, self._is_stuck = UNKNOWN, False

    def see_cgroup(self, sample: Cgroup) -> None:
        """Counters of the control group; they begin anew with the unit."""
        count = sample.events.get("oom_kill")
        if count is None:
            return
        self._began(sample.t)
        if self._oom_before is UNKNOWN:
            # A counter that is told from the beginning on has its history; one that is told later is told for its news.
            self._oom_before = count if sample.t <= self._first_t + FIRST_S else 0
        elif count < self._oom_before:
            self._oom_before = 0
        self._oom_now = count

    def see_xid(self, sample: Xid) -> None:
        """The driver's report of a fault."""
        self._xids.append(sample)

    def see_kill(self, sample: OomKill) -> None:
        """Somebody was killed for want of memory."""
        self._kills.append(sample)

    def see_ledger(self, sample: Ledger) -> None:
        """What the gateway has open, or has just lost, at the engine; one that does not answer changes nothing."""
        if sample.suspects is not UNKNOWN:
            self._suspects = sample.suspects

    def see_file(self, sample: Fs) -> None:
        """A file was removed."""
        if sample.removed and "/dev/shm/" in sample.path:
            self._removed.append(sample.path)

    def failure(self, end: End, now: float) -> Failure:
        """The failure that an end was which nobody asked for, by what is known at `now`."""
        said, carrier = self.said, "engine-died" if end.phase == "serving" else "start-failed"
        verdict = Verdict(
            cause=carrier if said is None else said.cause,
            message="" if said is None else said.message,
            phase=end.phase,
            status=end.status,
            signal=end.signal,
            hint=self.hint,
        )
        found = failure_of(end.exit, verdict, self.evidence(end.t, now, unclean_boot=end.unclean_boot))
        assert found is not None  # the verdict names a cause and was not requested
        return found

    @property
    def hint(self) -> str:
        """What the log says beyond the cause."""
        return "" if self.said is None else self.said.hint

    def hardware(self, now: float, since: float) -> Failure | None:
        """What stops a GPU of the engine, whatever the engine itself still does; the kernel's lines from `since` on."""
        known = self.evidence(now, now)
        return hardware_of(replace(known, xids=tuple(xid for xid in known.xids if xid.t >= since)))

    def keep_step(self, pci: str, step: Step) -> None:
        """A failure of a GPU was judged: the next one of that GPU begins from here."""
        if pci:
            self._steps[pci] = max(step, self._steps.get(pci, Step.NOTHING))

    def keep_end(self, pci: str, step: Step) -> None:
        """The same of this run's end. Who asks for its evidence once more is not told that it was there before."""
        self._own_step = pci, step

    @property
    def owner(self) -> Owner:
        """Whose GPUs and processes are the engine's."""
        pci = frozenset(self._setting.engine_gpu_pci)
        gpus: Maybe[frozenset[str]] = pci if pci or self._setting.gpus == 0 else UNKNOWN
        seen = (*self._processes.values(), *self._exits)
        pids = frozenset(process.pid for process in seen if self.is_own(process))
        return Owner(gpus=gpus, pids=pids if pids else UNKNOWN)

    def nvml(self, now: float) -> tuple[Maybe[int], bool]:
        """(the error with which NVML answers, whether it does not answer at all)."""
        since = self._unanswered_since
        return self._code, self._is_stuck or (since is not UNKNOWN and now - since >= SILENT_S)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be done to its GPUs in the next maintenance."""
        return notes_of(self._gpus, self.owner)

    def leftover(self, ended: float, now: float) -> Failure | None:
        """What is left of an engine that ended, where that is worse than its end."""
        left = self._left(ended, now)
        who = ", ".join(f"{process.name} ({process.pid})" for process in left)
        if any(process.state in ("D", "R") for process in left) and now >= ended + UNKILLABLE_S:
            told = f"{who} cannot be killed: it is in a call of the driver"
            return Failure("driver-unresponsive", CAUSES["driver-unresponsive"].remedy, told, (told,))
        if any(process.ppid == 1 for process in left):
            told = f"{who} is left over from the ended engine and holds the GPU's memory"
            return Failure("gpu-memory-leaked", CAUSES["gpu-memory-leaked"].remedy, told, (told,))
        return None

    def _left(self, ended: float, now: float) -> tuple[Proc, ...]:
        return tuple(
            process
            for process in self._processes.values()
            if process.name.startswith(_PROCESSES) and process.t >= ended + LEFT_S and process.t > now - LEFT_S
        )

    def _began(self, t: float) -> None:
        self._first_t = min(self._first_t, t)

    def evidence(self, ended: float, now: float, *, unclean_boot: bool = False) -> Evidence:
        """What was seen around an end at `ended`, as known at `now`."""
        recent = tuple(x for x in self._xids if x.t <= ended + LOOK_AHEAD_S)
        counted: Maybe[int] = UNKNOWN
        if self._oom_now is not UNKNOWN and self._oom_before is not UNKNOWN:
            counted = self._oom_now - self._oom_before
        past = [x for x in (*self._older, *recent) if ended - PAST_S < x.t < ended - 60.0]
        code, silent = self.nvml(now)
        stuck = [p for p in self._left(ended, now) if p.state in ("D", "R") and now - ended >= UNKILLABLE_S]
        return Evidence(
            ended=ended,
            unit=self.unit,
            owner=self.owner,
            killed_at=self.killed_at,
            xids=recent,
            past=Past(xids=tuple(past), steps=dict(self._steps)),
            oom_kills=tuple(k for k in self._kills if ended - 60.0 <= k.t <= ended + LOOK_AHEAD_S),
            oom_kills_counted=counted,
            gpus=self._gpus,
            nvml_code=code,
            nvml_silent=silent,
            exits=tuple(self._exits),
            unkillable=tuple(stuck),
            shm_removed=tuple(self._removed),
            holders=self._holders(),
            unclean_boot=unclean_boot,
            suspects=self._suspects,
        )

    def _holders(self) -> Maybe[tuple[Holder, ...]]:
        """Who holds memory of the engine's GPUs, by the last reading."""
        wanted = self._setting.engine_gpu_pci
        gpus = [gpu for gpu in self._gpus if not wanted or gpu.pci in wanted]
        known = [gpu.pids for gpu in gpus if gpu.pids is not UNKNOWN]
        if not known:
            return UNKNOWN
        ended = {process.pid for process in self._exits}
        found = (self._holder(pid) for pid in sorted({pid for pids in known for pid in pids} - ended))
        return tuple(holder for holder in found if holder is not None)

    def _holder(self, pid: int) -> Holder | None:
        """Whose process it is; None for one of the run in question."""
        process = self._processes.get(pid)
        if process is None:
            return Holder(pid)
        unit = next((part for part in reversed(process.cgroup.split("/")) if part.startswith("llm-engine@")), "")
        orphan = process.ppid == 1 and process.name.startswith(_PROCESSES)
        if unit and not orphan:
            mine = self.unit or f"llm-engine@{self._setting.engine}.service"
            if unit == mine:
                return None
            return Holder(pid, process.name, engine=unit[len("llm-engine@") :].removesuffix(".service"))
        if process.name.startswith(_PROCESSES) and not process.cgroup and process.ppid not in (1, UNKNOWN):
            return None
        return Holder(pid, process.name, leftover=process.name.startswith(_PROCESSES))
