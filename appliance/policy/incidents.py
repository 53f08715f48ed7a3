"""Which deaths get a bundle of their own, and which bundles make room.

A kill by the supervisor always gets one: no kill without a record, and the budget of restarts bounds them. A death gets
one when it is the first of its engine and cause within a window; those after it are counted in it. A crash loop shows
the same picture each time, the first bundle holds what led to it, and the journal has the lines of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KEPT = 50
ALL_BYTES = 1 << 30
FILE_BYTES = 2 << 20  # of one file in a bundle; of logs the end is kept
BUNDLE_BYTES = 16 << 20
SPARE_BYTES = 256 << 20  # a disk with less room than this gets incident.json alone
WINDOW_S = 3600.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A bundle on disk."""

    id: str
    engine: str
    cause: str
    at: float
    size: int
    kind: str = "death"


def counted_in(kept: Sequence[Kept], engine: str, cause: str, now: float) -> str:
    """The id of the bundle that a death is counted in; empty when it gets its own."""
    same = [one for one in kept if one.engine == engine and one.cause == cause and 0 <= now - one.at < WINDOW_S]
    return max(same, key=lambda one: one.at).id if same else ""


def to_remove(kept: Sequence[Kept], *, count: int = KEPT, total: int = ALL_BYTES) -> tuple[str, ...]:
    """The oldest bundles, as many as make both bounds hold; the newest one always stays."""
    newest_first = sorted(kept, key=lambda one: (one.at, one.id), reverse=True)
    removed, size = [], 0
    for position, one in enumerate(newest_first):
        size += one.size
        if position and (position >= count or size > total):
            removed.append(one.id)
            size -= one.size
    return tuple(reversed(removed))
