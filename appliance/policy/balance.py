"""Which replica takes the next call: the one with the fewest in flight, in proportion to what it may hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """One serving replica, its calls in flight and its limit."""

    replica: str
    in_flight: int
    limit: int


def least_outstanding(loads: Sequence[Load], turn: int) -> str | None:
    """The replica with room and the smallest share in use; equals take turns, None when none has room."""
    open_ = [load for load in loads if load.in_flight < load.limit]
    if not open_:
        return None
    least = min(load.in_flight / load.limit for load in open_)
    equals = [load for load in open_ if load.in_flight / load.limit == least]
    return equals[turn % len(equals)].replica
