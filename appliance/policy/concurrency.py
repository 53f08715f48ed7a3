"""The adaptive limit of one replica: how many calls may be at work in an engine at once.

It learns from what the engine shows of its own load: first-token time divided by what is due for a prompt of that size,
calls that wait inside the engine, preemptions, and how full the KV cache is and becomes. Not from 429s, for an engine
gives none, and not from the duration of calls, for a long answer is no sign of load.

Laws: floor <= limit <= ceiling; the limit never grows while fewer than half its permits are in use, nor on readings
that are UNKNOWN altogether; what a call did that was sent before the last cut is no reason for another cut.

On a simulated engine offered three times its capacity (tests/unit/policy/test_concurrency_simulated.py: asked 0.95 of
the best fixed limit's goodput, 95th percentile of first tokens within 1.00 of the target) it reaches 0.98 to 1.00 and
0.06 to 0.61, and from 30 s after the capacity halved or doubled 0.97 to 1.02 and 0.08 to 0.41. It misses where calls
are few: 0.94 and 1.05 at 3.4 calls a second after the speed halved, 0.87 and 1.81 on an engine of 1.5 calls a second.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from appliance.quantity import UNKNOWN, Maybe

FLOOR = 4
START = 32  # of a fresh engine: calls that waited for its start come all at once
TARGET = 1.0  # seconds to the first token of a short prompt
TARGET_PER_BYTE = 0.00025  # and for each byte of the request: 1,000 tokens of 4 bytes a second
STRETCH = 2.0  # an engine too slow for the target is held to so many times its own best
MEMORY = 20.0  # seconds of first-token times that are looked at
MOST = 2048  # of them that are kept
FEWEST = 8  # first-token times below which they say nothing
LATE_FIRST = "first tokens are late"
LATE = 0.05  # share of late first tokens at which the limit falls
NEAR, NEARER = 0.6, 0.85  # of the target: the 95th percentile at which it stops growing, and at which it falls a little
KV_HIGH, KV_FULL = 0.9, 0.98  # use of the cache at which it stops growing, and at which it falls
FADE = 0.995  # of the highest use of the cache that is remembered, each second
AHEAD = 6.0  # seconds that the growth of the cache is looked ahead
EXCESS = 20  # calls in flight for each that may wait inside the engine
EARLY = 0.4  # of the target: the 95th percentile below which twice as many may
SETTLE = 3.0  # seconds after a cut without another
STEEP = 0.5  # growth a second before the first sign of load
SLOW, FAST = 0.002, 0.12  # and after: where the last cut was, and far from it or long after it
PATIENCE = 28.0  # seconds after a cut at which it is as if it had not been


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an engine's metrics say; `kv_usage` is 0 to 1, `preemptions` and `generated` count up from its start."""

    waiting: Maybe[float] = UNKNOWN
    kv_usage: Maybe[float] = UNKNOWN
    preemptions: Maybe[float] = UNKNOWN
    generated: Maybe[float] = UNKNOWN


@dataclass(frozen=True, slots=True)
class _First:
    sent: float
    at: float
    ratio: float


def first_token_target(size: int) -> float:
    """Seconds in which the first token is due for a request of `size` bytes."""
    return TARGET + TARGET_PER_BYTE * size


class ConcurrencyLimit:
    """Readings in, limit out. One caller, one thread; `now` is monotonic seconds."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self.reset()

    def reset(self) -> None:
        """Forget everything: the engine is a new one."""
        self._limit = float(min(START, self.ceiling))
        self._brink = 0.0  # the limit that was cut last
        self.reason = "start"
        self._steep = True
        self._was_late = False  # whether late first tokens were the reason of the last cut
        self._firsts: deque[_First] = deque(maxlen=MOST)
        self._ratios: list[float] = []  # sorted, as of the last step
        self._best: float | None = None  # median of first-token time over target, as seen at the floor
        self._before: Reading | None = None
        self._at = self._cut_at = float("-inf")
        self._slope = self._peak = 0.0

    def resize(self, ceiling: int) -> None:
        """Another ceiling; the limit stays where it may."""
        self.ceiling = ceiling
        self._limit = min(self._limit, float(ceiling))

    @property
    def limit(self) -> int:
        """Calls that may be in flight."""
        return int(self._limit)

    @property
    def floor(self) -> int:
        """The lowest that the limit falls to."""
        return min(FLOOR, self.ceiling)

    def first_token(self, size: int, sent: float, at: float | None, now: float) -> bool:
        """A streamed call's first token came, or is still due (`at` None); whether that has been counted.

        One that is due is counted when it is twice over its target, and then not again when it comes.
        """
        ratio = ((now if at is None else at) - sent) / first_token_target(size)
        if at is None and ratio < 2 * self._stretch():
            return False
        self._firsts.append(_First(sent, now, ratio))
        return True

    def step(self, reading: Reading, in_use: int, now: float) -> int:
        """The limit after one look at the engine, about once a second; `in_use` is what is in flight."""
        before, self._before = self._before, reading
        elapsed, self._at = now - self._at, now
        if before is not None and _went_back(before, reading):
            self.reset()
            self._before, self._at = reading, now
            return self.limit
        while self._firsts and self._firsts[0].at < now - MEMORY:
            self._firsts.popleft()
        self._ratios = sorted(first.ratio for first in self._firsts if first.sent >= self._cut_at)
        self._learn_slope(before, reading, elapsed)
        late = self._late()
        excess = self._excess(before, reading)
        preempted = _grown(before, reading)
        if late > LATE:
            self._cut(self.limit * (0.9 if late < 0.3 else 0.7), LATE_FIRST, now)
        elif excess > 0:
            self._cut(max(self.limit - excess, self.limit * 0.6), "calls wait inside the engine", now)
        elif preempted > 0.02 * self.limit:
            self._cut(self.limit * 0.94, "the engine preempts", now)
        elif reading.kv_usage is not UNKNOWN and reading.kv_usage > KV_FULL:
            self._cut(self.limit * 0.94, "the KV cache is full", now)
        elif self._p95() > NEARER * self._stretch():
            self._cut(self.limit * 0.94, "first tokens are nearly late", now)
        elif in_use * 2 < self.limit:
            self.reason = "less than half is in use"
        elif (hold := self._hold(reading, in_use, preempted, now)) is not None:
            self.reason = hold
        else:
            self._grow(now, elapsed)
        return self.limit

    # --- signals -------------------------------------------------------------------------------------------------
    def _stretch(self) -> float:
        return max(1.0, STRETCH * self._best) if self._best is not None else 1.0

    def _p95(self) -> float:
        """95th percentile of first-token time over target; 0 where too few came to tell."""
        ratios = self._ratios
        return ratios[int(len(ratios) * 0.95)] if len(ratios) >= FEWEST else 0.0

    def _late(self) -> float:
        """Share of first tokens over the target; 0 where too few came to tell."""
        ratios = self._ratios
        if len(ratios) < FEWEST:
            return 0.0
        median = ratios[len(ratios) // 2]
        if self.limit <= self.floor and median * STRETCH > self._stretch():
            self._best, self._brink = median, float("inf")  # that slow it is with hardly any load
        elif self._best is not None:
            self._best = min(self._best, median)
        stretch = self._stretch()
        return sum(ratio > stretch for ratio in ratios) / len(ratios)

    def _excess(self, before: Reading | None, reading: Reading) -> float:
        """Calls that waited inside the engine at this look and at the one before, above what a full batch needs."""
        if before is None or reading.waiting is UNKNOWN or before.waiting is UNKNOWN:
            return 0.0
        harmless = 0.0 < self._p95() < EARLY * self._stretch()
        room = self.limit / (EXCESS / 2 if harmless else EXCESS)
        return min(reading.waiting, before.waiting) - max(2.0, room)

    def _learn_slope(self, before: Reading | None, reading: Reading, elapsed: float) -> None:
        if before is None or reading.kv_usage is UNKNOWN or before.kv_usage is UNKNOWN or elapsed <= 0:
            self._slope = 0.0
            return
        slope = (reading.kv_usage - before.kv_usage) / elapsed
        self._slope += 0.4 * (slope - self._slope)
        self._peak = max(self._peak * FADE, reading.kv_usage)

    def _hold(self, reading: Reading, in_use: int, preempted: float, now: float) -> str | None:
        """Why the limit does not grow though it is used; None where it may."""
        if reading.waiting is UNKNOWN and len(self._ratios) < FEWEST:
            return "nothing is known of the engine"
        unproven = self._was_late and len(self._ratios) < FEWEST
        if now - self._cut_at < (PATIENCE if unproven else SETTLE):
            return "it was cut just now"
        if preempted > 0:
            return "the engine preempts"
        if reading.kv_usage is not UNKNOWN:
            ahead = max(self._peak, (reading.kv_usage + max(self._slope, 0.0) * AHEAD) * self.limit / max(in_use, 1))
            if ahead > KV_HIGH:
                self._steep = self._steep and reading.kv_usage < 0.5
                return "the KV cache fills"
        if self._p95() > NEAR * self._stretch():
            self._steep = False
            return "first tokens are nearly late"
        return None

    # --- moves ---------------------------------------------------------------------------------------------------
    def _cut(self, limit: float, reason: str, now: float) -> None:
        self.reason = reason
        self._steep = False
        if now - self._cut_at >= SETTLE:
            self._brink, self._was_late = self._limit, reason == LATE_FIRST
            self._limit = max(float(self.floor), min(self._limit - 1.0, limit))
            self._cut_at = now

    def _grow(self, now: float, elapsed: float) -> None:
        if self._steep:
            rate = STEEP
        elif self._limit < 0.85 * self._brink:
            rate = FAST
        else:
            rate = SLOW + (FAST - SLOW) * min((now - self._cut_at) / PATIENCE, 1.0) ** 2
        self.reason = "at its ceiling" if self._limit >= self.ceiling else "the engine takes more"
        self._limit = min(float(self.ceiling), self._limit * (1.0 + rate * min(elapsed, 1.0)))


def _went_back(before: Reading, reading: Reading) -> bool:
    """Whether a counter went down: the engine was started again."""
    pairs = ((before.preemptions, reading.preemptions), (before.generated, reading.generated))
    return any(old is not UNKNOWN and new is not UNKNOWN and new < old for old, new in pairs)


def _grown(before: Reading | None, reading: Reading) -> float:
    if before is None or before.preemptions is UNKNOWN or reading.preemptions is UNKNOWN:
        return 0.0
    return reading.preemptions - before.preemptions
