"""What follows from an engine's death within a timeline: the answer of its remedy, the budget and the hangs before it.

The supervisor keeps its ledger of deaths on disk (`restart`), a timeline begins with an empty one; the rules are the
same.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.config.model import Restart
from appliance.quantity import format_duration

from .causes import Remedy
from .failure import Failure
from .restart import Death, Record, entered

ACTIONS: Mapping[Remedy, str] = {
    Remedy.NONE: "none",
    Remedy.RESTART: "restart",
    Remedy.WAIT: "wait-retry",
    Remedy.HOLD: "hold",
    Remedy.FIX_HOST: "fix-host",
    Remedy.REBOOT: "reboot",
}
_LASTING = (Remedy.HOLD, Remedy.FIX_HOST, Remedy.REBOOT)


class Aftermath:
    """The deaths of one engine in a timeline."""

    def __init__(self, limits: Restart) -> None:
        self._limits = limits
        self._record = Record()

    def answer(self, t: float, failure: Failure) -> tuple[str, str, str]:
        """(verdict, action, what the budget adds to the reason) for a death at `t` that is not entered yet."""
        action = ACTIONS[failure.remedy]
        if failure.remedy in _LASTING:
            return "failed", action, ""
        if failure.cause == "hang-init" and self._hung_before(t):
            window = format_duration(self._limits.window)
            return "failed", "reboot", f"a restart after a hang within {window} hangs again: the GPUs' state is bad"
        after = self._entered(t, failure)
        if after.hold:
            return "held", "hold", after.hold
        return "failed", action, ""

    def enter(self, t: float, failure: Failure) -> None:
        """A death is final."""
        self._record = self._entered(t, failure)

    def _entered(self, t: float, failure: Failure) -> Record:
        death = Death(at=t, key=f"{t}", cause=failure.cause)
        return entered(self._record, death, failure, self._limits, now=t, jitter=0.0)

    def _hung_before(self, t: float) -> bool:
        return any(death.cause.startswith("hang-") for death in self._record.within(self._limits.window, t))
