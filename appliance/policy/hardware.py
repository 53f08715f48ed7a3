"""What the driver and NVML say of a GPU -> the cause, and how far up the ladder of that GPU the answer is.

    restart the engine -> reset the GPU -> reboot the machine -> take the GPU out

The rules that weigh more than the table:

    - an Xid of a GPU that is not the engine's, or of a process that is not, is no evidence; those that stop a whole GPU
      count whoever set them off
    - in a burst the first that is no echo of another is the cause; the gravest says how far the answer goes
    - Xid 154, in which the driver itself says what is needed, overrides the table
    - 43 and 45 after our own SIGKILL are what a SIGKILL looks like
    - the answer for a GPU never goes down within a day, and what comes again within it goes one step up
    - a fault that comes with different GPUs is a program's, one that comes with one GPU is that GPU's

A reset needs every process off the GPU and root; this product asks for it, as it asks for a reboot, and does neither.
The numbers' meaning is NVIDIA's Xid catalogue; the answers to some are stricter where its own reads "investigate".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Gpu, Xid

from .causes import Remedy

BURST_BEHIND_S = 5.0  # the kernel's lines may be older than the death that follows from them
BURST_AHEAD_S = 5.0  # or be written after it
OWN_KILL_S = 60.0
REPEATED_WITHIN_S = 3600.0
REPEATED = 3
LADDER_S = 86400.0


class Step(enum.IntEnum):
    """The ladder of one GPU."""

    NOTHING = 0
    RESTART = 1
    RESET = 2
    REBOOT = 3
    REMOVE = 4


REMEDIES: Mapping[Step, Remedy] = {
    Step.NOTHING: Remedy.NONE,
    Step.RESTART: Remedy.RESTART,
    Step.RESET: Remedy.FIX_HOST,
    Step.REBOOT: Remedy.REBOOT,
    Step.REMOVE: Remedy.FIX_HOST,
}


@dataclass(frozen=True, slots=True)
class Row:
    """What a number stands for. `echo`: it follows from another, or from the end of a process."""

    step: Step
    cause: str
    meaning: str
    echo: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """What is the matter with a GPU; `pci` is empty where the source does not say which."""

    cause: str
    step: Step
    reason: str
    pci: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def remedy(self) -> Remedy:
        """The class of answer that its step is."""
        return REMEDIES[self.step]


_N, _A, _R, _B = Step.NOTHING, Step.RESTART, Step.RESET, Step.REBOOT
_ROWS: tuple[tuple[tuple[int, ...], Row], ...] = (
    ((8,), Row(_A, "gpu-hardware-suspect", "the GPU stopped processing a channel")),
    ((11, 25, 69), Row(_A, "cuda-fault", "graphics engine error")),
    ((32,), Row(_A, "cuda-fault", "corrupted push buffer; when it comes again, look at slot, riser and cable")),
    ((13,), Row(_A, "cuda-fault", "a GPU program did something illegal")),
    ((31,), Row(_A, "cuda-fault", "a GPU program used an illegal address")),
    ((39, 40, 41, 70, 71, 72, 75, 76, 77, 85), Row(_A, "cuda-fault", "copy engine error")),
    ((159,), Row(_A, "cuda-fault", "unified memory error")),
    ((43,), Row(_A, "cuda-fault", "the GPU stopped a program's channel", echo=True)),
    ((45,), Row(_N, "cuda-fault", "a program's channels were removed", echo=True)),
    ((137,), Row(_A, "cuda-fault", "a GPU program used an illegal address over NVLink", echo=True)),
    ((48,), Row(_R, "gpu-ecc", "uncorrectable memory error")),
    ((63,), Row(_N, "gpu-ecc", "a row of memory is to be remapped at the next reset", echo=True)),
    ((64,), Row(_R, "gpu-ecc", "remapping a row of memory failed")),
    ((94,), Row(_A, "gpu-ecc", "contained memory error", echo=True)),
    ((95,), Row(_R, "gpu-ecc", "uncontained memory error")),
    ((140,), Row(_R, "gpu-ecc", "unrecovered memory error")),
    ((171, 172), Row(_N, "gpu-ecc", "where the memory error was", echo=True)),
    ((46, 109), Row(_R, "gpu-hardware-suspect", "the GPU stopped processing")),
    ((54,), Row(_B, "gpu-hardware-suspect", "auxiliary power is missing: look at its cable and at the power supply")),
    ((61, 62), Row(_R, "gpu-hardware-suspect", "the GPU's power unit halted")),
    ((110,), Row(_B, "gpu-hardware-suspect", "security fault: the machine needs a power cycle")),
    ((136, 143, 155, 156, 158), Row(_R, "gpu-hardware-suspect", "the GPU needs a reset")),
    ((142,), Row(_R, "gpu-hardware-suspect", "the vendor asks to be called")),
    ((74,), Row(_R, "nvlink-fault", "NVLink error")),
    ((144, 145, 146, 147, 148, 149, 150), Row(_R, "nvlink-fault", "NVLink error")),
    ((79,), Row(_B, "gpu-lost", "the GPU has fallen off the bus; power supply, cable and riser are the usual causes")),
    ((167,), Row(_B, "gpu-lost", "fatal PCIe time-out")),
    ((119,), Row(_B, "driver-unresponsive", "the GPU's system processor does not answer")),
    ((120,), Row(_B, "driver-unresponsive", "the GPU's system processor failed")),
    ((141,), Row(_N, "gpu-hardware-suspect", "follows from another", echo=True)),
)
TABLE: Mapping[int, Row] = {number: row for numbers, row in _ROWS for number in numbers}
SWITCH = Row(_R, "nvlink-fault", "NVSwitch error")
STOPS_GPU = frozenset({62, 79, 95, 119, 120, 154})  # whoever's process it was
_OURS = ("VLLM::", "vllm")

# Xid 154 and NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; 5 and more are younger drivers'.
ACTIONS: Mapping[int, tuple[Step, str]] = {
    0: (_N, "none"),
    1: (_R, "GPU reset"),
    2: (_B, "node reboot"),
    3: (_R, "drain peer-to-peer traffic"),
    4: (_R, "drain and reset"),
    5: (_R, "recover the IMEX domain"),
    6: (_R, "bus reset"),
    7: (_B, "system reboot"),
}
LOST, RESET_REQUIRED, MISMATCH, NOT_LOADED = 15, 16, 18, 9  # NVML_ERROR_*


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose GPUs and processes are the engine's; UNKNOWN counts all as its own."""

    gpus: Maybe[frozenset[str]] = UNKNOWN
    pids: Maybe[frozenset[int]] = UNKNOWN

    def has_gpu(self, pci: str) -> bool:
        """Whether a GPU is the engine's; one without an address may be, unless the engine has none."""
        if self.gpus is UNKNOWN:
            return True
        return pci in self.gpus if pci else bool(self.gpus)

    def has(self, xid: Xid) -> bool:
        """Whether an Xid concerns the engine."""
        if not self.has_gpu(xid.pci):
            # A switch belongs to all GPUs behind it, and has an address of its own.
            return xid.switch and self.gpus is not UNKNOWN and len(self.gpus) > 1
        if xid.switch or xid.number in STOPS_GPU:
            return True
        if xid.pid is not UNKNOWN and self.pids is not UNKNOWN and xid.pid in self.pids:
            return True
        if xid.process:
            return xid.process.startswith(_OURS)
        return xid.pid is UNKNOWN or self.pids is UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What came before the present burst: Xids of the last day, and each GPU's highest step within it."""

    xids: Sequence[Xid] = ()
    steps: Mapping[str, Step] = field(default_factory=dict)


def fault_of(
    xids: Sequence[Xid], owner: Owner, past: Past = Past(), *, killed_at: Maybe[float] = UNKNOWN
) -> Fault | None:
    """The fault behind a burst of Xids in any order; None when it asks for nothing.

    `killed_at` is the instant of the last SIGKILL that we sent to the engine, on the scale of the samples.
    """
    burst = sorted((x for x in xids if owner.has(x) and not _own_noise(x, killed_at)), key=lambda x: x.t)
    told = [x for x in burst if x.number != 154 or x.switch]
    actions = [x for x in burst if x.number == 154 and not x.switch and x.recovery_action in ACTIONS]
    first = _first(told)
    if first is None and not actions:
        return None
    row = _row(first) if first is not None else Row(_N, "gpu-hardware-suspect", "")
    step = max((_row(x).step for x in told), default=_N)
    pci = (first or actions[-1]).pci
    reason = f"{name_of(first)}: {row.meaning}" if first is not None else ""
    if actions:
        step, wanted = _action(actions[-1])
        step = max(step, _A) if first is not None else step
        reason = f"{reason}; the driver asks for: {wanted}" if reason else f"the driver asks for: {wanted}"
    if first is not None and step is _A and (spread := _spread(first, told, past)):
        row = Row(row.step, spread[0], row.meaning)
        reason += spread[1]
    return escalated(Fault(row.cause, step, reason, pci, tuple(map(name_of, burst))), past)


def escalated(fault: Fault, past: Past) -> Fault | None:
    """A fault with its GPU's past: never below the day's highest step, one above it when it is reached again."""
    before = past.steps.get(fault.pci, Step.NOTHING) if fault.pci else Step.NOTHING
    if fault.step is Step.NOTHING:
        return None
    step = max(fault.step, before)
    hardware = fault.cause != "cuda-fault" or before >= Step.RESET
    if hardware and step is before and before is not Step.REMOVE:
        step = Step(before + 1)
    if step is fault.step:
        return Fault(fault.cause, step, fault.reason + _what_next(step, fault.pci), fault.pci, fault.evidence)
    cause = "gpu-hardware-suspect" if step is Step.REMOVE else fault.cause
    reason = f"{fault.reason}; not for the first time within a day{_what_next(step, fault.pci)}"
    return Fault(cause, step, reason, fault.pci, fault.evidence)


def reading_of(gpus: Sequence[Gpu], owner: Owner, *, code: Maybe[int] = UNKNOWN, silent: bool = False) -> Fault | None:
    """What NVML says is the matter with the engine's GPUs; None when nothing is, or when it does not say.

    `code` is the error with which NVML answered as a whole, `silent` that it did not answer within its deadline. For an
    engine that serves this is news for people and nothing else: it works on.
    """
    if owner.gpus is not UNKNOWN and not owner.gpus:
        return None
    if silent:
        return _read("driver-unresponsive", _B, "NVML does not answer")
    if code is not UNKNOWN and code in _CODES:
        cause, step, text = _CODES[code]
        return _read(cause, step, text)
    worst: Fault | None = None
    for gpu in gpus:
        found = _of_gpu(gpu) if owner.has_gpu(gpu.pci) else None
        if found is not None and (worst is None or found.step > worst.step):
            worst = found
    missing = owner.gpus - {gpu.pci for gpu in gpus} if owner.gpus is not UNKNOWN and gpus else frozenset()
    if missing and all(gpu.pci for gpu in gpus):
        return _read("gpu-lost", _B, f"GPU {', '.join(sorted(missing))} is not there any more", min(missing))
    return worst


def notes_of(gpus: Sequence[Gpu], owner: Owner) -> tuple[str, ...]:
    """What is to be told and to be done in the next maintenance, without any haste."""
    return tuple(
        f"GPU {gpu.pci} remaps rows of its memory at its next reset"
        for gpu in gpus
        if owner.has_gpu(gpu.pci) and gpu.remapped_rows is not UNKNOWN and gpu.remapped_rows[2]
    )


def name_of(xid: Xid) -> str:
    """An Xid as evidence shows it."""
    who = f" of {xid.process or 'process'}" if xid.process or xid.pid is not UNKNOWN else ""
    who += f" ({xid.pid})" if xid.pid is not UNKNOWN else ""
    return f"{'SXid' if xid.switch else 'Xid'} {xid.number} on {xid.pci or 'a GPU'}{who}"


_CODES: Mapping[int, tuple[str, Step, str]] = {
    LOST: ("gpu-lost", _B, "NVML: a GPU is lost"),
    RESET_REQUIRED: ("gpu-hardware-suspect", _R, "NVML: a GPU needs a reset"),
    MISMATCH: ("driver-mismatch", _B, "NVML: the driver in the kernel and its library differ in version"),
    NOT_LOADED: ("driver-mismatch", _R, "NVML: no driver is loaded; compare `uname -r` with `dkms status`"),
}


def _read(cause: str, step: Step, text: str, pci: str = "") -> Fault:
    what = "" if cause == "driver-mismatch" and step is _R else _what_next(step, pci)
    return Fault(cause, step, text + what, pci, (text,))


def _of_gpu(gpu: Gpu) -> Fault | None:
    if gpu.code in (LOST, RESET_REQUIRED):
        cause, step, _ = _CODES[gpu.code]
        text = "is lost" if gpu.code == LOST else "needs a reset"
        return _read(cause, step, f"NVML: GPU {gpu.pci} {text}", gpu.pci)
    if gpu.recovery_action is not UNKNOWN and (action := ACTIONS.get(gpu.recovery_action, (_N, "")))[0] is not _N:
        return _read("gpu-hardware-suspect", action[0], f"NVML: GPU {gpu.pci} asks for: {action[1]}", gpu.pci)
    if gpu.remapped_rows is not UNKNOWN and gpu.remapped_rows[3]:
        return _read("gpu-hardware-suspect", Step.REMOVE, f"NVML: GPU {gpu.pci} failed to remap a row", gpu.pci)
    return None


def stops_gpu(xid: Xid) -> bool:
    """Whether an Xid leaves its GPU unusable until somebody mends it."""
    return _row(xid).step >= _R or (xid.number == 154 and not xid.switch)


def _own_noise(xid: Xid, killed_at: Maybe[float]) -> bool:
    return (
        xid.number in (43, 45) and not xid.switch and killed_at is not UNKNOWN and 0 <= xid.t - killed_at < OWN_KILL_S
    )


def _row(xid: Xid) -> Row:
    return SWITCH if xid.switch else TABLE.get(xid.number, Row(_N, "gpu-hardware-suspect", "no meaning known here"))


def _first(burst: Sequence[Xid]) -> Xid | None:
    """The cause in a burst: the first that is no echo, one that stops a GPU before one that stops a program."""
    asking = [x for x in burst if _row(x).step is not _N]
    own = [x for x in asking if not _row(x).echo]
    grave = [x for x in own if _row(x).step >= _R]
    for group in (grave, own, asking):
        if group:
            return group[0]
    return None


def _action(xid: Xid) -> tuple[Step, str]:
    assert xid.recovery_action is not UNKNOWN
    return ACTIONS[xid.recovery_action]


def _spread(first: Xid, burst: Sequence[Xid], past: Past) -> tuple[str, str] | None:
    """What repetition tells: one GPU only is that GPU, several are the program."""
    alike = [x for x in past.xids if x.number == first.number and not x.switch]
    recent = [x for x in alike if 0 <= first.t - x.t < REPEATED_WITHIN_S and x not in burst]
    if first.number not in (13, 31) or len(recent) + 1 < REPEATED:
        return None
    if {x.pci for x in recent} == {first.pci}:
        return "gpu-hardware-suspect", f"; {len(recent) + 1} times within an hour and on this GPU alone"
    text = "; it moves between GPUs, so a program is at fault: another attention or MoE backend, or enforce_eager"
    return "cuda-fault", text


def _what_next(step: Step, pci: str) -> str:
    if step is _R:
        which = f" -i {pci}" if pci else ""
        return f"; stop what uses the GPU, then `nvidia-smi --gpu-reset{which}`, then resume the engine"
    if step is _B:
        return "; reboot the machine"
    return "; take the GPU out of the configuration and have it checked" if step is Step.REMOVE else ""
