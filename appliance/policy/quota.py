"""Quotas: tokens used in a calendar day or month, UTC, and what running calls have set aside of it.

What is set aside belongs to no period: a call that runs over midnight is counted in the day in which it ends.
"""

from __future__ import annotations

import enum
from datetime import datetime, timezone


class Period(enum.Enum):
    """How long a quota lasts."""

    DAY = "day"
    MONTH = "month"


def bounds(period: Period, epoch: float) -> tuple[float, float]:
    """Beginning and end of the period that holds a moment, in seconds since the epoch."""
    if period is Period.DAY:
        start = epoch // 86400 * 86400
        return start, start + 86400
    moment = datetime.fromtimestamp(epoch, timezone.utc)
    first = datetime(moment.year, moment.month, 1, tzinfo=timezone.utc)
    following = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=timezone.utc)
    return first.timestamp(), following.timestamp()


class Quota:
    """One counter. `epoch` is wall-clock seconds; a clock set to another period begins that period at zero."""

    __slots__ = ("end", "period", "reserved", "start", "used")

    def __init__(self, period: Period) -> None:
        self.period = period
        self.start = self.end = 0.0
        self.used = 0
        self.reserved = 0

    def turn(self, epoch: float) -> None:
        """Begin a new period when the old one is over."""
        if not self.start <= epoch < self.end:
            self.start, self.end = bounds(self.period, epoch)
            self.used = 0

    def left(self, limit: int) -> int:
        """Tokens of the period that are neither used nor set aside; below zero when more were used."""
        return limit - self.used - self.reserved

    def restore(self, start: float, used: int, epoch: float) -> None:
        """Take over a count from before a restart, when it belongs to the period of now."""
        self.turn(epoch)
        if start == self.start:
            self.used += used
