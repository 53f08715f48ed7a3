"""How an engine is taken down so that the next one can start: the next step, from what is on disk and what is seen.

    record -> abort -> (3 s) -> kill -> all processes gone -> systemd's own restart cut -> GPU memory back -> done

Each step is decided anew from what the world shows, so that a supervisor that was killed between two steps goes on with
the right one. Laws:
    - nothing is killed before the record is made (or was found impossible, which is on record itself)
    - nothing of another run is touched: a run that has begun meanwhile ends the matter
    - UNKNOWN blocks nothing: without a reading of the GPUs the start goes on, and what cannot be seen is not unkillable
    - nor is what nobody is known to have killed: that is counted from the first kill that systemd took from this
      supervisor, not from an instant on disk, behind which a clock may have been set or a supervisor have been away
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from appliance.quantity import UNKNOWN, Maybe, format_duration
from appliance.samples import Gpu, Nvml

ABORT_S = 3.0  # from the abort to the kill: what can still print its stacks has done so
EMPTY_S = 30.0  # a killed process that stays longer hangs in the kernel
MEMORY_S = 60.0  # the driver frees tens of GiB in seconds
REPEAT_S = 5.0  # a kill that shows no effect is asked for again
TOLERANCE = 1.05  # of the memory that a GPU uses when idle


class Judged(Protocol):
    """What a recovery needs of a judgement."""

    @property
    def verdict(self) -> str: ...
    @property
    def cause(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def evidence(self) -> tuple[str, ...]: ...


class Step(enum.Enum):
    """What is to be done next."""

    RECORD = "record"
    ABORT = "abort"
    KILL = "kill"
    CUT = "cut"  # stop the unit, whose own restart would come too early
    WAIT = "wait"
    UNKILLABLE = "unkillable"
    DONE = "done"
    OVERTAKEN = "overtaken"  # another run has begun: nothing is left to do


@dataclass(frozen=True, slots=True)
class Left:
    """A process of the engine that is still there."""

    pid: int
    name: str
    state: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What is on disk: of which run, whether the record was made, and when (wall clock) what was asked for."""

    run: str
    recorded: bool = False
    aborted: float | None = None
    killed: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen now. `run` is the unit's present or last run, `known` False while systemd does not answer.

    `asked_s`, `taken_s` and `empty_s` are the seconds since the last kill was asked for, since systemd took the first
    one, and since the last process was seen, None for never. `held` says whether our GPU memory is still held.
    """

    run: str
    known: bool
    running: bool
    net: bool  # systemd restarts the unit soon by itself
    left: Maybe[Sequence[Left]]
    held: Maybe[bool]
    now: float
    asked_s: float | None = None
    taken_s: float | None = None
    empty_s: float | None = None


def next_step(progress: Progress, look: Look) -> tuple[Step, str]:
    """The next step, with its reason."""
    if not look.known:
        return Step.WAIT, "systemd does not answer"
    if look.run != progress.run and look.running and not look.net:
        return Step.OVERTAKEN, "another run has begun"
    if not progress.recorded:
        return Step.RECORD, "no kill without a record"
    gone = not look.running if look.left is UNKNOWN else not look.left
    if not gone:
        return _kill(progress, look)
    if look.net:
        return Step.CUT, "systemd would restart it too early"
    if look.held is True:
        if (look.empty_s or 0.0) < MEMORY_S:
            return Step.WAIT, "its GPU memory is still held"
        return Step.DONE, f"its GPU memory is still held {format_duration(MEMORY_S)} after its last process ended"
    return Step.DONE, "its processes are gone" + ("" if look.held is UNKNOWN else " and its GPU memory is free")


def _kill(progress: Progress, look: Look) -> tuple[Step, str]:
    """Something of the run lives."""
    if progress.aborted is None and progress.killed is None:
        return Step.ABORT, "its processes shall tell where they are"
    if progress.killed is None:
        waited = look.now - (progress.aborted or 0.0)
        if 0 <= waited < ABORT_S:
            return Step.WAIT, "what was aborted may still print"
        return Step.KILL, "its processes are still there"
    if look.taken_s is not None and look.taken_s >= EMPTY_S and look.left is not UNKNOWN:
        after = f"still there {format_duration(look.taken_s)} after SIGKILL"
        return Step.UNKILLABLE, f"{told(look.left)} cannot be killed: {after}"
    if look.asked_s is None or look.asked_s >= REPEAT_S:
        return Step.KILL, "its processes are still there"
    return Step.WAIT, "its processes are being killed"


def told(left: Sequence[Left], most: int = 6) -> str:
    """Processes in words."""
    named = [f"{one.name} (pid {one.pid}, state {one.state})" for one in left[:most]]
    more = len(left) - most
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def is_held(nvml: Maybe[Nvml], pids: frozenset[int], before: Maybe[Nvml] = UNKNOWN) -> Maybe[bool]:
    """Whether GPU memory of a run is still held. `pids` were its processes; `before` is a reading without it.

    A GPU that lists processes is judged by them; one that does not, by its use against the idle reading.
    """
    if nvml is UNKNOWN or nvml.error or not nvml.gpus:
        return UNKNOWN
    idle = {} if before is UNKNOWN else {gpu.pci: gpu.mem_used_mib for gpu in before.gpus}
    answers = [_held_on(gpu, pids, idle.get(gpu.pci, UNKNOWN)) for gpu in nvml.gpus]
    if any(answer is True for answer in answers):
        return True
    return UNKNOWN if any(answer is UNKNOWN for answer in answers) else False


def _held_on(gpu: Gpu, pids: frozenset[int], idle: Maybe[float]) -> Maybe[bool]:
    if gpu.pids is not UNKNOWN:
        return not pids.isdisjoint(gpu.pids)
    if gpu.mem_used_mib is UNKNOWN or idle is UNKNOWN:
        return UNKNOWN
    return gpu.mem_used_mib > idle * TOLERANCE
