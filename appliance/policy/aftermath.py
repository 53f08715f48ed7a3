"""What follows from an engine's end within a timeline: its remedy, the ladder, the budget, and the ends before it.

The supervisor keeps its ledger of deaths on disk, a timeline begins with an empty one; the rules are the same
(`restart`, `ladder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from appliance.config.model import Restart
from appliance.samples import Setting

from .causes import Remedy
from .failure import Failure
from .ladder import Facts, Place, answered
from .restart import Death, Record, entered

ACTIONS: Mapping[Remedy, str] = {
    Remedy.NONE: "none",
    Remedy.RESTART: "restart",
    Remedy.RESTART_CHANGED: "restart-changed",
    Remedy.WAIT: "wait-retry",
    Remedy.HOLD: "hold",
    Remedy.FIX_HOST: "fix-host",
    Remedy.REBOOT: "reboot",
}
REMEDIES: Mapping[str, Remedy] = {action: remedy for remedy, action in ACTIONS.items()}
_LASTING = (Remedy.HOLD, Remedy.FIX_HOST, Remedy.REBOOT)


class Aftermath:
    """The ends of one engine in a timeline, and what each asks for."""

    def __init__(self, setting: Setting, limits: Restart) -> None:
        self._limits = limits
        self._record = Record()
        # A recording does not say with which flags the engine was started: rungs are counted from vLLM's defaults.
        self._facts = Facts(place=Place("recorded", "recorded", setting.engine_gpu_pci), cuda=setting.gpus != 0)

    def answer(self, t: float, failure: Failure, hint: str = "") -> tuple[str, str, str]:
        """(verdict, action, reason) of an end at `t` that is not entered yet. Changes nothing."""
        answer, after = self._entered(t, failure, hint)
        if answer.remedy in _LASTING:
            return "failed", ACTIONS[answer.remedy], answer.reason
        if after.hold:
            return "held", "hold", after.hold
        return "failed", ACTIONS[answer.remedy], answer.reason

    def enter(self, t: float, failure: Failure, hint: str = "") -> None:
        """An end is final."""
        self._record = self._entered(t, failure, hint)[1]

    def _entered(self, t: float, failure: Failure, hint: str) -> tuple[Failure, Record]:
        death = Death(at=t, key=f"{t}", cause=failure.cause)
        before = [(died.at, died.cause) for died in self._record.deaths]
        facts = replace(self._facts, hint=hint)
        answer = answered(failure, self._record.ladder, facts, self._limits, before=before, now=t)
        record = replace(self._record, ladder=answer.ladder)
        return answer.failure, entered(record, death, answer.failure, self._limits, now=t, jitter=0.0)
