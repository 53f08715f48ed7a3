"""First tokens of one replica: how late they come, and at what rate the engine begins calls.

A first-token time is divided by what is due for a prompt of that size, so that a long prompt is no sign of load. An
engine that cannot keep the target even with hardly any load is held to a multiple of its own best.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

TARGET = 1.0  # seconds to the first token of a short prompt
TARGET_PER_BYTE = 0.00025  # and for each byte of the request: 1,000 tokens of 4 bytes a second
STRETCH = 2.0  # an engine too slow for the target is held to so many times its own best
MEMORY, LONGEST = 20.0, 60.0  # seconds that are looked at, and where fewer than ENOUGH calls came in them
ENOUGH = 40  # of fewer the 95th percentile is the one or two that were slowest
MOST = 2048  # calls that are kept
FEWEST = 8  # first-token times below which they say nothing


def first_token_target(size: int) -> float:
    """Seconds in which the first token is due for a request of `size` bytes."""
    return TARGET + TARGET_PER_BYTE * size


class _First(NamedTuple):
    sent: float
    at: float
    target: float
    ratio: float


class FirstTokens:
    """What `concurrency` asks of them. Ratios are of those that were sent after the last cut, as of the last `look`."""

    def __init__(self) -> None:
        self._firsts: deque[_First] = deque(maxlen=MOST)
        self._unseen: deque[float] = deque(maxlen=MOST)  # when calls ended whose first token could not be seen
        self._ratios: list[float] = []  # sorted
        self._best: float | None = None  # median ratio with hardly any load, where that is too slow for the target

    def add(self, size: int, sent: float, at: float | None, now: float) -> bool:
        """A first token came, or is still due (`at` None); whether that has been counted.

        One that is due is counted when it is twice over its target, and then not again when it comes.
        """
        target = first_token_target(size)
        ratio = ((now if at is None else at) - sent) / target
        if at is None and ratio < 2 * self.due:
            return False
        self._firsts.append(_First(sent, now, target, ratio))
        return True

    def unseen(self, now: float) -> None:
        """A call ended that showed no first token: it counts for the rate alone."""
        self._unseen.append(now)

    def look(self, now: float, since: float) -> None:
        """Forget what is old; ratios are of those sent at `since` or later."""
        firsts = self._firsts
        while firsts and firsts[0].at < now - (MEMORY if len(firsts) > ENOUGH else LONGEST):
            firsts.popleft()
        while self._unseen and (not firsts or self._unseen[0] < firsts[0].at):
            self._unseen.popleft()
        self._ratios = sorted(first.ratio for first in firsts if first.sent >= since)
        if self._best is not None and self.known:
            self._best = min(self._best, self._median)

    def hardly_loaded(self) -> bool:
        """The engine has as few calls as it may: it is held to what it shows now, where that is slower than is due."""
        if not self.known or self._median * STRETCH <= self.due:
            return False
        self._best = self._median
        return True

    @property
    def known(self) -> bool:
        """Whether enough came to tell."""
        return len(self._ratios) >= FEWEST

    @property
    def due(self) -> float:
        """The ratio over which a first token is late: 1, or more for an engine that is too slow for the target."""
        return max(1.0, STRETCH * self._best) if self._best is not None else 1.0

    @property
    def late(self) -> float:
        """Share of them that are late; 0 where too few came to tell."""
        return sum(ratio > self.due for ratio in self._ratios) / len(self._ratios) if self.known else 0.0

    @property
    def p95(self) -> float:
        """95th percentile as a share of what is due; 0 where too few came to tell."""
        return self._ratios[int(len(self._ratios) * 0.95)] / self.due if self.known else 0.0

    def begun_in(self, share: float, now: float) -> float | None:
        """Calls that the engine begins in that share of the time that most of them have; None where too few came."""
        firsts = self._firsts
        if len(firsts) < FEWEST:
            return None
        rate = (len(firsts) + len(self._unseen)) / max(now - firsts[0].at, 1.0)
        return share * sorted(first.target for first in firsts)[len(firsts) // 2] * self.due * rate

    @property
    def _median(self) -> float:
        return self._ratios[len(self._ratios) // 2]
