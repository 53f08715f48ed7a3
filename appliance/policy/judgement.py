"""What is concluded of an engine, in the words of the contract."""

from __future__ import annotations

from dataclasses import dataclass

VERDICTS = ("ok", "suspect", "hung", "failed", "held", "unknown")
ACTIONS = ("none", "evidence", "restart", "restart-changed", "wait-retry", "hold", "fix-host", "reboot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is the matter with an engine at `t`: a word of `VERDICTS`, one of `causes`, one of `ACTIONS`.

    `reason` is a sentence, `evidence` the facts that it rests on.
    """

    t: float
    engine: str
    verdict: str
    cause: str
    action: str
    reason: str
    evidence: tuple[str, ...] = ()

    def differs(self, other: Judgement | None) -> bool:
        """Whether it is news after another one: the reason alone is none."""
        return other is None or (self.verdict, self.cause, self.action) != (other.verdict, other.cause, other.action)
