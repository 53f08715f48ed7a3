"""What was seen, and when: a type for each source of evidence.

A timeline is a sequence of samples ordered by `t`. A live supervisor makes them from the world (`host/`), a replay from
a recording (`wire/timeline`); policies judge them without knowing which. What a source did not tell is UNKNOWN; a
source that failed says so in `error` and tells nothing else.

`t` is seconds on one monotonic scale per timeline. The lower half holds what formats make of raw lines: policies see
findings, `wire/` alone knows their wording.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, Union

from appliance.quantity import UNKNOWN, Maybe


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """An engine's /metrics. `values`: vLLM's names, summed over labels; empty with an `error`."""

    t: float
    http: Maybe[int] = UNKNOWN
    latency_ms: Maybe[float] = UNKNOWN
    values: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """An engine's /health: proof of nothing but of an API process that answers."""

    t: float
    http: Maybe[int] = UNKNOWN
    latency_ms: Maybe[float] = UNKNOWN
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU in an NVML reading. `pci` is dddd:bb:dd in lower case; `util`, `mem_util` are percent."""

    pci: str = ""
    uuid: str = ""
    idx: Maybe[int] = UNKNOWN  # for people only: CUDA and NVML count differently
    name: str = ""
    util: Maybe[float] = UNKNOWN
    mem_util: Maybe[float] = UNKNOWN
    power_w: Maybe[float] = UNKNOWN
    power_limit_w: Maybe[float] = UNKNOWN
    temp_c: Maybe[float] = UNKNOWN
    mem_used_mib: Maybe[float] = UNKNOWN
    mem_total_mib: Maybe[float] = UNKNOWN
    pids: Maybe[tuple[int, ...]] = UNKNOWN
    recovery_action: Maybe[int] = UNKNOWN  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    remapped_rows: Maybe[tuple[int, int, bool, bool]] = UNKNOWN  # correctable, uncorrectable, pending, failed
    ecc_uncorrected: Maybe[int] = UNKNOWN  # since the driver was loaded
    throttle: Maybe[int] = UNKNOWN  # bits of nvmlDeviceGetCurrentClocksEventReasons
    error: str = ""  # this GPU's own fault: lost, or in need of a reset
    code: Maybe[int] = UNKNOWN  # NVML's number of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvml:
    """All GPUs at one instant, or why there is no reading. `code` is NVML's error number, UNKNOWN for a deadline.

    `stuck` counts processes of ours that wait in the driver and cannot be killed: driver-unresponsive.
    """

    t: float
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    error: str = ""
    code: Maybe[int] = UNKNOWN
    stuck: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The gateway's open requests at one engine. `inflight`: sent to the engine and unfinished."""

    t: float
    inflight: Maybe[int] = UNKNOWN
    oldest_silent_s: Maybe[float] = UNKNOWN  # of the open request that is silent for longest
    since_any_byte_s: Maybe[float] = UNKNOWN  # since the engine sent any byte that is no comment
    structured: Maybe[int] = UNKNOWN  # open requests that ask for a grammar or schema
    largest_prompt_tokens: Maybe[int] = UNKNOWN  # estimate, of requests that have no first token yet
    suspects: Maybe[int] = (
        UNKNOWN  # requests, open or just failed, that were in flight at earlier crashes, the most often
    )
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proc:
    """A process of the engine. `event` is `exit` for its last sample, which has an `exit_code` (negative: signal)."""

    t: float
    pid: int
    ppid: Maybe[int] = UNKNOWN
    name: str = ""
    state: str = ""  # one letter, as in /proc/PID/stat
    cpu_pct: Maybe[float] = UNKNOWN  # of one core
    wchan: str = ""
    cgroup: str = ""
    event: str = ""
    exit_code: Maybe[int] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a log as it was written. `src`: `journal` (a unit's output), `kernel`, `systemd`."""

    t: float
    src: str
    msg: str
    unit: str = ""
    proc: str = ""
    boot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """The engine's control group. `events` are the counters of memory.events."""

    t: float
    events: Mapping[str, int] = field(default_factory=dict)
    current_gib: Maybe[float] = UNKNOWN
    peak_gib: Maybe[float] = UNKNOWN
    read_bytes: Maybe[int] = UNKNOWN  # of io.stat
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The observer itself was held up: what is older than `t` minus `late_s` says nothing of the time between."""

    t: float
    late_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """Whether the one-token request of our own, which asks an idle engine for a sign of life, is unanswered."""

    t: float
    outstanding: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fs:
    """A file that was removed, or that lies where it matters."""

    t: float
    path: str
    removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A value in a file of state, for instance the boot id."""

    t: float
    path: str
    value: str


# --- findings: what formats make of lines -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """A start has come to a phase of the engine's state file; `serving` when requests are answered.

    `start` is the launcher's id of the run, empty where a log line tells. `joining`: the ranks are about to find one
    another, which is where a start hangs for ever.
    """

    t: float
    phase: str
    start: str = ""
    joining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """vLLM said something that is no milestone: `shm-wait`, `jit`, `death`, or `line` for any other line."""

    t: float
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What an engine's own lines give as the cause of its end; `cause` is a word of policy/causes or an envelope."""

    t: float
    cause: str
    message: str
    hint: str = ""  # what the lines say beyond the cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """The driver's report of a fault. `number` of an NVSwitch (`switch`) is an SXid, which is numbered apart."""

    t: float
    number: int
    pci: str = ""
    pid: Maybe[int] = UNKNOWN
    process: str = ""
    switch: bool = False  # an NVSwitch's SXid
    recovery_action: Maybe[int] = UNKNOWN  # of Xid 154
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomKill:
    """The kernel or systemd-oomd killed for memory. `scope`: `cgroup`, `global`, `oomd`, empty where unsaid."""

    t: float
    scope: str
    pid: Maybe[int] = UNKNOWN
    process: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The engine's unit ended: systemd's Result, and code (CLD_*) and status of its main process."""

    t: float
    result: str
    code: int = 0
    status: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """The machine runs anew; `clean` where it was shut down before."""

    t: float
    clean: bool


# --- what a timeline is about -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What is usual for one GPU of an engine: medians of watts and of percent."""

    idle_power_w: Maybe[float] = UNKNOWN
    busy_power_w: Maybe[float] = UNKNOWN
    busy_mem_util: Maybe[float] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What earlier runs of this model on these GPUs have shown. `gpus`: by PCI id, "" for all of them."""

    gpus: Mapping[str, Usual] = field(default_factory=dict)
    prefill_rate: Maybe[float] = UNKNOWN  # prompt tokens a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a timeline's samples are to be judged against. `gpus`: how many the engine has; 0 on a CPU."""

    engine: str = "default"
    tp: int = 1
    pp: int = 1
    gpus: Maybe[int] = UNKNOWN
    engine_gpu_pci: tuple[str, ...] = ()
    learned: Learned = field(default_factory=Learned)
    service_user: str = "llm-engine"

    @property
    def ranks(self) -> int:
        """Processes that work on one step together."""
        return self.tp * self.pp


Raw: TypeAlias = Union[Metrics, Health, Nvml, Ledger, Proc, Line, Cgroup, Lag, Canary, Fs, StateFile]  # noqa: UP007
Finding: TypeAlias = Union[Milestone, Notice, Said, Xid, OomKill, Ended, Boot]  # noqa: UP007
Sample: TypeAlias = Union[Raw, Finding]  # noqa: UP007
