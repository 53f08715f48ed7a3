"""Which replica takes the next call: the one with the fewest in flight, in proportion to what it may hold.

One that is suspected of a hang gets none while another serves: what is sent to it may wait for its restart. Alone it
is still better than none, for it may only be slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Load(Protocol):
    """What must be known of a serving replica: its calls in flight, its limit, and whether it may hang."""

    @property
    def in_flight(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def suspect(self) -> bool: ...


T = TypeVar("T", bound=Load)


def least_outstanding(loads: Sequence[T], turn: int) -> T | None:
    """The replica with room and the smallest share in use; equals take turns, None when none has room."""
    if len(loads) > 1:
        loads = [load for load in loads if not load.suspect] or loads
    open_ = [load for load in loads if load.in_flight < load.limit]
    if len(open_) <= 1:
        return open_[0] if open_ else None
    least = min(load.in_flight / load.limit for load in open_)
    equals = [load for load in open_ if load.in_flight / load.limit == least]
    return equals[turn % len(equals)]
