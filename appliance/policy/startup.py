"""Whether a start goes on: a limit for each phase, begun anew by every sign of life, and one for the whole.

Signs of life are a new line of the log (vLLM's note that it waits is none), a new phase, the disk being read, GPU
memory that grows, and compilers at work. A phase without any of them is suspected after `compile_allowance` and hung
after twice that: kernels for a new GPU were seen to compile for ten minutes without a word (vllm#38246). When the ranks
are about to find one another the limits are `confirm` and twice that: it takes 5 s on PCIe and up to 60 s on eight GPUs
behind a switch, and where it fails it waits for ever (vllm#12292). While bytes are read there is no limit but the
whole's.
"""

from __future__ import annotations

from appliance.config.model import Hang
from appliance.quantity import UNKNOWN, Maybe, format_duration
from appliance.samples import Gpu, Milestone

from .hang import ROUNDING_S, Opinion

GROWN_MIB = 64.0
_COMPILING = ("compiling", "warming")


class Start:
    """One start, from its first sign on; all instants are observed seconds."""

    def __init__(self, now: float, phase: str = "starting") -> None:
        self.phase = phase
        self._began = self._alive = now
        self._joining = False
        self._memory: Maybe[float] = UNKNOWN

    def see_milestone(self, sample: Milestone, now: float) -> None:
        """A phase was reached."""
        self.phase, self._alive = sample.phase, now
        self._joining = sample.joining

    def see_line(self, now: float) -> None:
        """A line that the log had not just said."""
        self._alive, self._joining = now, False

    def see_activity(self, now: float) -> None:
        """The disk is read, or something is compiled."""
        self._alive = now

    def see_gpus(self, gpus: tuple[Gpu, ...], now: float) -> None:
        """Memory of the engine's GPUs."""
        used = [gpu.mem_used_mib for gpu in gpus if gpu.mem_used_mib is not UNKNOWN]
        if not used:
            return
        total = sum(used)
        if self._memory is UNKNOWN or total >= self._memory + GROWN_MIB:
            if self._memory is not UNKNOWN:
                self._alive = now
            self._memory = total

    def opinion(self, now: float, limits: Hang, gpus: str = "") -> Opinion:
        """What the start amounts to by now."""
        whole, quiet = now - self._began, now - self._alive
        cause = "compiling" if self.phase in _COMPILING else "starting"
        told = f"{self.phase} for {format_duration(quiet)} without a sign of life"
        facts = (told, f"started {format_duration(whole)} ago", *((gpus,) if gpus else ()))
        if self._joining and quiet + ROUNDING_S >= 2.0 * limits.confirm:
            return Opinion("hung", "hang-init", f"the ranks do not find one another: {told}", facts)
        if whole + ROUNDING_S >= limits.startup_limit:
            told = f"not serving after {format_duration(whole)}"
            return Opinion("hung", "hang-startup", f"{told}, the limit of a start", (told, *facts[1:]))
        if quiet + ROUNDING_S >= 2.0 * limits.compile_allowance:
            return Opinion("hung", "hang-startup", told, facts)
        if quiet + ROUNDING_S >= (limits.confirm if self._joining else limits.compile_allowance):
            return Opinion("suspect", cause, told, facts)
        return Opinion("ok", cause, f"the engine starts ({self.phase})")
