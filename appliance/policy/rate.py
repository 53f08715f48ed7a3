"""Rates: how much of a minute's allowance is used, and when there is room again.

A bucket holds what was used and drains at the allowed rate; it is full at one minute's allowance. That is a token
bucket turned round: because only the debt is kept, a limit that is changed while the gateway runs holds at once, and a
bucket nobody uses comes back to zero by itself.

Law: the debt is never below zero. It may be above a minute's allowance, after a call that used more than it reserved.
"""

from __future__ import annotations


class Bucket:
    """One rate. `per_minute` is given with every question, `now` is monotonic seconds."""

    __slots__ = ("_at", "_debt")

    def __init__(self) -> None:
        self._debt = 0.0
        self._at = 0.0

    def debt(self, per_minute: int, now: float) -> float:
        """What is used and not drained yet."""
        debt, elapsed, self._at = self._debt, now - self._at, now
        if debt and elapsed > 0:
            debt -= elapsed * per_minute / 60.0
            self._debt = debt = debt if debt > 0 else 0.0
        return debt

    def wait(self, amount: float, per_minute: int, now: float) -> float | None:
        """Seconds until `amount` fits, 0.0 when it does now; None when it is more than a minute allows."""
        if amount > per_minute:
            return None
        over = self.debt(per_minute, now) + amount - per_minute
        return over * 60.0 / per_minute if over > 0 else 0.0

    def add(self, amount: float) -> None:
        """Use `amount`, or give it back where it is negative; straight after `wait` or `debt`."""
        self._debt = max(self._debt + amount, 0.0)

    def use(self, amount: float, per_minute: int, now: float) -> None:
        """Use `amount` now, or give it back where it is negative, whatever there is room for."""
        self.debt(per_minute, now)
        self.add(amount)

    def state(self) -> list[float]:
        """What another process of this boot needs to go on: the debt, and when it was looked at last."""
        return [self._debt, self._at]

    def restore(self, debt: float, at: float) -> None:
        """Go on from the `state` of another process."""
        self._debt, self._at = max(debt, 0.0), at
