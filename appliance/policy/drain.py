"""How fast an engine works through its queue: the time between two leases that come back while there is no room.

Only time without room counts: an idle engine gives back few leases, and that says nothing of what it could do. A client
that leaves makes room as well as one that was served; calls that an engine failed are left out by the caller, for they
say nothing of its pace. The window is long enough to hold several waves of calls that began together, and so end
together.

Law: UNKNOWN until `FEWEST` leases came back; then more than 0 wherever time has passed.
"""

from __future__ import annotations

from collections import deque

from appliance.quantity import UNKNOWN, Maybe

FEWEST = 3  # leases that must have come back: fewer are chance
WINDOW = 60.0  # seconds without room that are looked at
AT_LEAST, AT_MOST = 16, 1024  # leases that are looked at, whatever the window holds


class DrainRate:
    """The releases of one engine's leases. One thread; `now` is monotonic seconds."""

    __slots__ = ("_busy", "_marked", "_releases", "full")

    def __init__(self) -> None:
        self._busy = 0.0  # seconds without room, all together
        self._marked = 0.0  # when that was last brought up to date
        self.full = False  # as last marked
        # On the clock of the seconds without room; before the first lease stands the moment at which the count began.
        self._releases: deque[float] = deque([0.0], maxlen=AT_MOST + 1)

    def mark(self, full: bool, now: float) -> None:
        """From now on there is room or none."""
        if self.full:
            self._busy += max(now - self._marked, 0.0)
        self.full, self._marked = full, now

    def released(self, now: float) -> None:
        """A lease came back; before the `mark` that tells what this made of the room."""
        if not self.full:
            return
        self.mark(True, now)
        releases = self._releases
        releases.append(self._busy)
        while len(releases) > AT_LEAST + 1 and releases[0] < self._busy - WINDOW:
            releases.popleft()

    def interval(self, now: float) -> Maybe[float]:
        """Seconds between two releases, longer where the next one is overdue; UNKNOWN where too few were seen."""
        releases = self._releases
        count = len(releases) - 1
        if count < FEWEST:
            return UNKNOWN
        busy = self._busy + (max(now - self._marked, 0.0) if self.full else 0.0)
        return max((releases[-1] - releases[0]) / count, (busy - releases[0]) / (count + 1))
