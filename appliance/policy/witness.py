"""What GPUs, processes and log say during one silence: the witnesses for a hang, and those against it.

For, each over the whole silence and in at least four of five readings:

    spin       every GPU of the engine at full utilisation, with power near idle or its memory unused: a collective
               that waits, or a kernel that never ends
    asymmetry  one GPU does nothing while another is full: a rank is absent
    dead air   no GPU does anything
    livelock   the engine core uses a whole core of the CPU, or all that it is given, while no GPU does anything
    notices    vLLM's own note that it waits for a worker, twice (one a minute)
    stuck      a process of the engine that is stopped, in an uninterruptible wait, or in one kernel function

Against: power of work (a long step), compilers at work or a kernel that was just compiled, a grammar being compiled.

A GPU that somebody else uses as well, or that does not tell, is no witness: the engine's counters must do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Cgroup, Gpu, Notice, Nvml, Proc, Setting

from .baseline import Baseline

SHARE = 0.8  # of the readings of a silence that must agree
FEWEST = 3  # readings from which a share says anything
SPIN_UTIL, STILL_UTIL, DEAD_UTIL = 90.0, 5.0, 2.0
SPIN_POWER = 0.35  # of the way from idle to busy
SPIN_MEMORY, USED_MEMORY = 2.0, 8.0  # percent: unused now, used when busy
WORK_POWER = 0.8  # of busy
WHOLE_CORE = 90.0
PRESSED_CORE = 10.0  # of a process that is never seen to wait: a busy machine gives it no more
JIT_S = 120.0  # after vLLM's line about a kernel; compiles of up to 70 s were seen (dynamo#14735)
NOTICES = 2
STUCK_READINGS = 3
DISK_RATE = 1e6  # bytes a second that are more than chance
FRESH_S = 30.0

COMPILERS = frozenset({
    "nvcc", "cicc", "ptxas", "fatbinary", "nvlink", "cudafe++", "ninja", "cc1plus", "cc1", "g++", "gcc", "c++", "clang",
    "clang++", "ld", "as", "cmake",
})  # fmt: skip
CORE = re.compile(r"EngineCor")  # the kernel cuts names at 15 characters
WORKER = re.compile(r"Worker")
API = re.compile(r"APIServer|^vllm\b")
_OWN = re.compile(r"EngineCor|Worker|APIServer|^vllm|^VLLM")


@dataclass(frozen=True, slots=True)
class Testimony:
    """What the witnesses say of the silence so far."""

    spin: bool = False
    asymmetry: bool = False
    dead_air: bool = False
    livelock: bool = False
    notices: bool = False
    stuck: str = ""  # which process, and how
    stopped: bool = False  # that process is stopped: nothing could make it go on but a signal
    full: bool = False  # every GPU at full utilisation, whatever its power
    busy_core: bool = False
    working: bool = False
    compiling: bool = False
    transferring: bool = False  # the disk is read: weights or a KV cache on their way
    has_gpus: bool = False
    gpus: str = ""


class _Share:
    """How many of a silence's readings showed something."""

    def __init__(self) -> None:
        self.seen = self.shown = 0

    def add(self, shown: bool) -> None:
        self.seen += 1
        self.shown += shown

    def holds(self, share: float = SHARE) -> bool:
        return self.seen >= FEWEST and self.shown >= share * self.seen


@dataclass(slots=True)
class _Known:
    """The last of a process: its state and kernel function, and for how many readings they have been so."""

    name: str
    mark: str = ""
    readings: int = 0
    at: float = 0.0


class Witness:
    """Collects readings; `clear` begins a silence. `now` are observed seconds."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.baseline = Baseline(setting.learned)
        self._processes: dict[int, _Known] = {}
        self._compiled_at = self._jit_at = self._read_at = float("-inf")
        self._read_bytes: Maybe[int] = UNKNOWN
        self._read_t = 0.0
        self._last: tuple[Gpu, ...] = ()
        self.clear()

    def clear(self) -> None:
        """A silence begins."""
        self._spin, self._asymmetry, self._dead, self._still = _Share(), _Share(), _Share(), _Share()
        self._full, self._working, self._core = _Share(), _Share(), _Share()
        self._notices = 0
        self._gpus_at = float("-inf")
        for known in self._processes.values():
            known.readings = 0

    def own(self, sample: Nvml) -> tuple[Gpu, ...]:
        """The engine's GPUs in a reading; empty where one is missing."""
        wanted = self._setting.engine_gpu_pci
        if not wanted:
            return () if self._setting.gpus == 0 else sample.gpus
        if not any(gpu.pci for gpu in sample.gpus):
            return sample.gpus if len(sample.gpus) == len(wanted) else ()
        found = tuple(gpu for gpu in sample.gpus if gpu.pci in wanted)
        return found if len(found) == len(wanted) else ()

    def see_gpus(self, sample: Nvml, now: float) -> tuple[Gpu, ...]:
        """A reading of NVML; the GPUs that can be witnesses in it."""
        gpus = self.own(sample)
        if not gpus or sample.error or any(self._is_shared(gpu) or gpu.error for gpu in gpus):
            return ()
        self._last, self._gpus_at = gpus, now
        utils = [gpu.util for gpu in gpus if gpu.util is not UNKNOWN]
        if len(utils) == len(gpus):
            self._spin.add(min(utils) >= SPIN_UTIL and all(self._spins(gpu) for gpu in gpus))
            self._asymmetry.add(min(utils) <= STILL_UTIL and max(utils) >= SPIN_UTIL)
            self._dead.add(max(utils) <= DEAD_UTIL)
            self._still.add(max(utils) <= STILL_UTIL)
            self._full.add(min(utils) >= SPIN_UTIL)
        self._working.add(all(self._works(gpu) for gpu in gpus))
        return gpus

    def see_process(self, sample: Proc, now: float) -> None:
        """A reading of one process of the engine."""
        if sample.name in COMPILERS:
            self._compiled_at = now
            return
        if sample.event:
            self._processes.pop(sample.pid, None)
            return
        known = self._processes.setdefault(sample.pid, _Known(sample.name))
        known.at, known.name = now, sample.name or known.name  # a spawned process takes its name after a while
        if CORE.search(sample.name) and sample.cpu_pct is not UNKNOWN:
            self._core.add(sample.cpu_pct >= (PRESSED_CORE if sample.state == "R" else WHOLE_CORE))
        mark = sample.state if sample.state in ("D", "T", "t", "Z") else ""
        if not mark and sample.wchan and sample.state != "R" and _in_driver(sample.wchan):
            mark = sample.wchan
        known.readings = known.readings + 1 if mark and mark == known.mark else int(bool(mark))
        known.mark = mark
        self._forget(now)

    def see_notice(self, sample: Notice, now: float) -> None:
        """A line of vLLM's that says why it waits."""
        if sample.kind == "shm-wait":
            self._notices += 1
        elif sample.kind == "jit":
            self._jit_at = now

    def see_cgroup(self, sample: Cgroup, now: float) -> bool:
        """A reading of the engine's control group; whether its disk was read since the last one."""
        before, since = self._read_bytes, sample.t - self._read_t
        if sample.read_bytes is UNKNOWN:
            return False
        self._read_bytes, self._read_t = sample.read_bytes, sample.t
        if before is UNKNOWN or since <= 0.0 or sample.read_bytes - before < DISK_RATE * since:
            return False
        self._read_at = now
        return True

    def testimony(self, now: float, usual_s: float) -> Testimony:
        """What is known at `now` of the silence."""
        fresh = max(FRESH_S, 5.0 * usual_s)
        gpus = now - self._gpus_at <= fresh
        stuck, stopped = self._stuck()
        return Testimony(
            spin=gpus and self._spin.holds(),
            asymmetry=gpus and self._asymmetry.holds(),
            dead_air=gpus and self._dead.holds(),
            livelock=gpus and self._still.holds() and self._core.holds(),
            notices=self._notices >= NOTICES,
            stuck=stuck,
            stopped=stopped,
            full=gpus and self._full.holds(),
            busy_core=self._core.holds(),
            # Half is enough for what speaks against: a step's power is not even.
            working=gpus and self._working.holds(0.5),
            compiling=self.is_compiling(now, usual_s),
            transferring=now - self._read_at <= fresh,
            has_gpus=bool(self._last),
            gpus="; ".join(self._show(gpu) for gpu in self._last) if gpus else "",
        )

    def is_compiling(self, now: float, usual_s: float) -> bool:
        """Whether a compiler runs, or vLLM has just said that it compiles a kernel."""
        return now - self._compiled_at <= 3.0 * usual_s or now - self._jit_at <= JIT_S

    def _spins(self, gpu: Gpu) -> bool:
        usual = self.baseline.usual(gpu.pci)
        if gpu.power_w is not UNKNOWN and usual.busy_power_w is not UNKNOWN:
            idle = 0.0 if usual.idle_power_w is UNKNOWN else usual.idle_power_w  # 0: the narrower bound
            if gpu.power_w <= idle + SPIN_POWER * (usual.busy_power_w - idle):
                return True
        known = gpu.mem_util is not UNKNOWN and usual.busy_mem_util is not UNKNOWN
        return known and gpu.mem_util <= SPIN_MEMORY and usual.busy_mem_util >= USED_MEMORY  # type: ignore[operator]

    def _works(self, gpu: Gpu) -> bool:
        usual = self.baseline.usual(gpu.pci)
        if gpu.power_w is not UNKNOWN and usual.busy_power_w is not UNKNOWN:
            return gpu.power_w >= WORK_POWER * usual.busy_power_w
        if gpu.mem_util is not UNKNOWN and usual.busy_mem_util is not UNKNOWN and usual.busy_mem_util >= USED_MEMORY:
            return gpu.mem_util >= WORK_POWER * usual.busy_mem_util
        return False

    def _is_shared(self, gpu: Gpu) -> bool:
        """Whether a process that is not the engine's works on the GPU beside one that is."""
        if gpu.pids is UNKNOWN:
            return False
        ours = [pid for pid in gpu.pids if pid in self._processes]
        return bool(ours) and len(ours) < len(gpu.pids)

    def _stuck(self) -> tuple[str, bool]:
        """The first process that does not move, workers before the core, and whether it is stopped."""
        found = [
            (pid, known)
            for pid, known in self._processes.items()
            if known.readings >= STUCK_READINGS and _OWN.search(known.name)
        ]
        found.sort(key=lambda each: (each[1].mark not in ("T", "t", "Z"), not WORKER.search(each[1].name), each[0]))
        for pid, known in found:
            how = {"D": "in an uninterruptible wait", "T": "stopped", "t": "stopped", "Z": "dead"}.get(
                known.mark, f"in the kernel's {known.mark}"
            )
            return f"{known.name or 'process'} ({pid}) is {how}", known.mark in ("T", "t", "Z")
        return "", False

    def _forget(self, now: float) -> None:
        """Processes that have gone are not kept for ever."""
        if len(self._processes) > 256:
            self._processes = {pid: known for pid, known in self._processes.items() if known.at >= now - FRESH_S}

    def _show(self, gpu: Gpu) -> str:
        usual = self.baseline.usual(gpu.pci)
        util = "?" if gpu.util is UNKNOWN else f"{gpu.util:.0f}%"
        power = "?" if gpu.power_w is UNKNOWN else f"{gpu.power_w:.0f} W"
        busy = "" if usual.busy_power_w is UNKNOWN else f" (busy: {usual.busy_power_w:.0f} W)"
        return f"GPU {gpu.pci or gpu.idx}: utilisation {util}, power {power}{busy}"


def _in_driver(wchan: str) -> bool:
    """Whether a kernel function is the GPU driver's: ordinary waits (futex, poll) are no sign of anything."""
    return wchan.startswith(("nv", "uvm", "os_acquire", "_nv"))
