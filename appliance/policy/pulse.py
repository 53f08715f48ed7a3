"""The observer's own time: how many seconds of the timeline were really looked at.

A supervisor that was stopped, a machine that slept and a clock that was set all leave a gap between two observations.
What lies in a gap was not seen, so it may not count as silence. A gap is more than twice the usual distance of
observations; it counts as one usual distance. The usual distance is learnt, since a recording may be coarser than the
configured interval.
"""

from __future__ import annotations

from collections import deque

REMEMBERED = 32  # distances; about a minute of them at the default interval
_OUTLIERS = 8  # one in so many distances may be a gap without becoming usual


class Pulse:
    """Counts observed seconds. `seen` only grows; it is 0 at the first observation."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._distances: deque[float] = deque(maxlen=REMEMBERED)
        self._usual_s = interval_s
        self.last: float | None = None
        self.seen = 0.0

    @property
    def usual_s(self) -> float:
        """The usual distance of two observations, at least the configured interval."""
        return self._usual_s

    def credit(self, now: float) -> float:
        """How many of the seconds since the last observation count."""
        distance = 0.0 if self.last is None else now - self.last
        return distance if distance <= 2.0 * self._usual_s else self._usual_s

    def tick(self, now: float) -> float:
        """An observation at `now`; returns the seconds that it adds. An instant that is not later adds nothing."""
        if self.last is not None and now <= self.last:
            return 0.0
        gained = self.credit(now)
        if self.last is not None:
            self._distances.append(now - self.last)
            ordered = sorted(self._distances)
            rank = len(ordered) // _OUTLIERS or len(ordered) // 2
            self._usual_s = max(self._interval_s, ordered[-1 - rank])
        self.last = now
        self.seen += gained
        return gained
