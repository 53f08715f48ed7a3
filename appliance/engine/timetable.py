"""Where the time of a start goes: the seconds of each phase that it has gone through.

A phase that a start did not show (a line that vLLM does not write any more) is left out: it is not known to have taken
no time. The first phase is the longest of a usual start, and the one with steps of different kinds: it tells them too.
"""

from __future__ import annotations

from appliance.wire.vllmlog import PHASES, Progress

_FIRST, _LAST = PHASES[0], "serving"
_OF_A_START = PHASES[: PHASES.index(_LAST)]


class Timetable:
    """Told of each progress, with the seconds of one monotonic clock."""

    def __init__(self, progress: Progress, now: float) -> None:
        self._begun = self._phase_at = self._step_at = now
        self._now = progress
        self._steps: dict[str, float] = {}
        self.phases: dict[str, float] = {}
        self.total: float | None = None

    def moved(self, progress: Progress, now: float) -> None:
        """The start has come so far; nothing counts after it serves, nor a phase in which it ended."""
        before, self._now = self._now, progress
        if before.phase not in _OF_A_START or progress.phase not in (*_OF_A_START, _LAST):
            return
        if before.phase == _FIRST and (progress.phase, _step(progress)) != (_FIRST, _step(before)):
            self._steps[_step(before)] = self._steps.get(_step(before), 0.0) + now - self._step_at
            self._step_at = now
        if progress.phase != before.phase:
            self.phases[before.phase] = round(now - self._phase_at, 2)
            self._phase_at = now
        if progress.phase == _LAST:
            self.total = round(now - self._begun, 2)

    @property
    def told(self) -> str:
        """`24.8 s: starting 19.2 (starting vLLM 8.0, ...), loading 1.2, warming 0.4`."""
        steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in self._steps.items())
        parts = [
            f"{phase} {seconds:.1f}" + (f" ({steps})" if phase == _FIRST and len(self._steps) > 1 else "")
            for phase, seconds in self.phases.items()
        ]
        return f"{self.total or 0.0:.1f} s: {', '.join(parts)}"

    @property
    def fields(self) -> dict[str, str]:
        """The same for the journal: LLM_START_S, LLM_LOADING_S ..."""
        known = self.phases if self.total is None else {"start": self.total, **self.phases}
        return {f"LLM_{name.upper()}_S": f"{seconds:.2f}" for name, seconds in known.items()}


def _step(progress: Progress) -> str:
    """A step's name, without what it found."""
    return progress.message.partition(" (")[0]
