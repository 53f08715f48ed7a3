"""The adaptive limit of one replica: how many calls may be at work in an engine at once.

It learns from what the engine shows of its own load: first-token time divided by what is due for a prompt of that size,
calls that wait inside the engine, preemptions, and how full the KV cache is and becomes. Not from 429s, for an engine
gives none, and not from the duration of calls, for a long answer is no sign of load.

Three numbers, of which the lowest holds. `learned` grows by little and is cut when first tokens are late or calls wait
inside the engine: it finds what prefill can do. The room is what fits into the KV cache as it is this second, with
calls of the size they mostly have: no cache need be overrun to find its end. The pace is what is at work and what the
engine can soon begin, by the rate at which it begins (Little's law): when places come free together, those who take
them do not all wait for one another's prefill.

Laws: floor <= limit <= ceiling; `learned` never grows while fewer than half its permits are in use; nothing grows on
readings that are UNKNOWN altogether, unless first tokens come and the engine never showed more; what a call did that
was sent before the last cut is no reason for another cut. tests/unit/policy/test_concurrency_simulated.py shows what
is reached.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.quantity import UNKNOWN, Maybe

from .firsttokens import FirstTokens

FLOOR = 4
START = 32  # of a fresh engine: calls that waited for its start come all at once
LATE_FIRST = "first tokens are late"
WAITING = "calls wait inside the engine"
LATE = 0.05  # share of late first tokens at which the limit falls
NEAR, NEARER = 0.7, 0.9  # of the target: the 95th percentile at which it stops growing, and at which it falls a little
KV_HIGH = 0.95  # of the cache that calls may fill: they grow until the next look
SPARE = 2.5  # usual calls for which room is left: in a small cache one large prompt is a large share of it
SHARE, SLOPE = 0.05, 0.4  # weight of the newest look in what a usual call takes of the cache, and in its growth
AHEAD = 20.0  # seconds that the growth of the cache is looked ahead while the limit grows steeply: about one answer
PACE, EXCESS = 0.4, 0.2  # of the target that calls may take to begin: at one look, and steadily (a tail is 3 times it)
AHEAD_OF_PACE = 1.25  # how far `learned` may be ahead of what can be tried now
UNRATED = 20  # calls in flight for each that may wait inside an engine of which no rate is known
SETTLE = 3.0  # seconds after a cut without another
STEEP = 0.5  # growth a second before the first sign of load
SLOW, FAST = 0.002, 0.12  # and after: where the last cut was, and far from it or long after it
PATIENCE = 28.0  # seconds after a cut at which it is as if it had not been
FREE = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an engine's metrics say; `kv_usage` is 0 to 1, `preemptions` and `generated` count up from its start."""

    waiting: Maybe[float] = UNKNOWN
    kv_usage: Maybe[float] = UNKNOWN
    preemptions: Maybe[float] = UNKNOWN
    generated: Maybe[float] = UNKNOWN


class ConcurrencyLimit:
    """Readings in, limit out. One caller, one thread; `now` is monotonic seconds."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self.reset()

    def reset(self) -> None:
        """Forget everything: the engine is a new one."""
        self.learned = float(min(START, self.ceiling))
        self._room = self._pace = FREE
        self._brink = 0.0  # what was cut last
        self.reason = "start"
        self._steep = True
        self._was_late = False  # whether late first tokens were the reason of the last cut
        self._firsts = FirstTokens()
        self._before: Reading | None = None
        self._last = Reading()  # each figure as it was last known
        self._at = self._cut_at = float("-inf")
        self._slope = 0.0
        self._looks = 0
        self._usage = self._running = 0.0  # of the cache, and calls at work, on average of the last looks

    def resize(self, ceiling: int) -> None:
        """Another ceiling; the limit stays where it may."""
        self.ceiling = ceiling
        self.learned = min(self.learned, float(ceiling))

    @property
    def limit(self) -> int:
        """Calls that may be in flight."""
        return int(max(self.floor, min(self.learned, self._room, self._pace)))

    @property
    def floor(self) -> int:
        """The lowest that the limit falls to."""
        return min(FLOOR, self.ceiling)

    def first_token(self, size: int, sent: float, at: float | None, now: float) -> bool:
        """A streamed call's first token came, or is still due (`at` None); whether that has been counted."""
        return self._firsts.add(size, sent, at, now)

    def ended(self, now: float) -> None:
        """A call that was not streamed has its answer: it counts for the rate at which the engine begins calls."""
        self._firsts.unseen(now)

    def step(self, reading: Reading, in_use: int, now: float) -> int:
        """The limit after one look at the engine, about once a second; `in_use` is what is in flight."""
        if _went_back(self._last, reading):
            self.reset()
            self._before, self._last, self._at = reading, reading, now
            return self.limit
        before, self._before = self._before, reading
        stopped = reading.waiting is UNKNOWN and self._last.waiting is not UNKNOWN
        self._last = _latest(self._last, reading)
        elapsed, self._at = now - self._at, now
        self._firsts.look(now, self._cut_at)
        if self.limit <= self.floor and self._firsts.hardly_loaded():
            self._brink = FREE
        settled = in_use <= self.limit
        self._see_cache(before, reading, in_use, elapsed)
        self._see_queue(reading, in_use, now)
        late = self._firsts.late
        excess = self._excess(before, reading, now)
        preempted = _grown(before, reading)
        if late > LATE:
            self._cut(self.limit * (0.9 if late < 0.3 else 0.7), LATE_FIRST, now)
        elif settled and excess > 0:
            self._cut(max(self.limit - excess, self.limit * 0.6), WAITING, now)
        elif settled and preempted > 0.02 * self.limit:
            self._cut(self.limit * 0.94, "the engine preempts", now)
        elif self._firsts.p95 > NEARER:
            self._cut(self.limit * 0.94, "first tokens are nearly late", now)
        elif self._pace < in_use:
            self.reason = WAITING
        elif stopped:
            self.reason = "its metrics have stopped"
        elif in_use * 2 < self.learned:
            self.reason = "less than half is in use"
        elif (hold := self._hold(reading, preempted, now)) is not None:
            self.reason = hold
        else:
            self._grow(now, elapsed)
        return self.limit

    # --- signals -------------------------------------------------------------------------------------------------
    def _may_wait(self, share: float, now: float) -> float:
        """Calls that may wait inside the engine: as many as it begins in that share of the time that most have."""
        begun = self._firsts.begun_in(share, now)
        return max(2.0, self.limit / UNRATED) if begun is None else max(1.0, begun)

    def _excess(self, before: Reading | None, reading: Reading, now: float) -> float:
        """Calls that waited inside the engine at this look and at the one before, above what may."""
        if before is None or reading.waiting is UNKNOWN or before.waiting is UNKNOWN:
            return 0.0
        return min(reading.waiting, before.waiting) - self._may_wait(EXCESS, now)

    def _see_cache(self, before: Reading | None, reading: Reading, in_use: int, elapsed: float) -> None:
        """Learn what a usual call takes of the cache, and see how many more it has room for."""
        if reading.kv_usage is UNKNOWN:
            return  # the room stays as it was
        if before is not None and before.kv_usage is not UNKNOWN and elapsed > 0:
            self._slope += SLOPE * ((reading.kv_usage - before.kv_usage) / elapsed - self._slope)
        running = max(in_use - (0.0 if reading.waiting is UNKNOWN else reading.waiting), 1.0)
        self._looks += 1
        weight = max(SHARE, 1 / self._looks)
        self._usage += weight * (reading.kv_usage - self._usage)
        self._running += weight * (running - self._running)
        usual = self._usage / self._running
        self._room = running + (KV_HIGH - reading.kv_usage) / usual - SPARE if usual > 0 else FREE

    def _see_queue(self, reading: Reading, in_use: int, now: float) -> None:
        """See how many more calls the engine can soon begin; one that is hardly used gives no rate to judge by."""
        if reading.waiting is UNKNOWN:
            return  # the pace stays as it was
        spare = self._may_wait(PACE, now) - reading.waiting
        self._pace = in_use + spare if spare < 0 or not (self._steep or in_use * 2 < self.learned) else FREE

    def _hold(self, reading: Reading, preempted: float, now: float) -> str | None:
        """Why the limit does not grow though it is used; None where it may."""
        if reading.waiting is UNKNOWN and not self._firsts.known:
            return "nothing is known of the engine"
        unproven = self._was_late and not self._firsts.known
        if now - self._cut_at < (PATIENCE if unproven else SETTLE):
            return "it was cut just now"
        if preempted > 0:
            return "the engine preempts"
        if self._room < self.learned:
            self._steep = False
            return "the KV cache is full"
        if self._steep and reading.kv_usage is not UNKNOWN and reading.kv_usage + self._slope * AHEAD > KV_HIGH:
            return "the KV cache fills"
        if self._firsts.p95 > NEAR:
            self._steep = False
            return "first tokens are nearly late"
        return None

    # --- moves ---------------------------------------------------------------------------------------------------
    def _cut(self, limit: float, reason: str, now: float) -> None:
        self.reason = reason
        self._steep = False
        if now - self._cut_at >= SETTLE:
            self._brink, self._was_late = self.learned, reason == LATE_FIRST
            self.learned = max(float(self.floor), min(self.learned - 1.0, limit))
            self._cut_at = now

    def _grow(self, now: float, elapsed: float) -> None:
        if self._steep:
            rate = STEEP
        elif self.learned < 0.85 * self._brink:
            rate = FAST
        else:
            early = 1.0 - 2 * self._firsts.p95 / NEAR if self._firsts.known else 0.0
            rate = SLOW + (FAST - SLOW) * max(min((now - self._cut_at) / PATIENCE, 1.0) ** 2, early)
        self.reason = "at its ceiling" if self.learned >= self.ceiling else "the engine takes more"
        grown = min(float(self.ceiling), self.learned * (1.0 + rate * min(elapsed, 1.0)))
        self.learned = max(self.learned, min(grown, AHEAD_OF_PACE * self._pace))


def _went_back(last: Reading, reading: Reading) -> bool:
    """Whether a counter is below what it was when last known: the engine was started again."""
    pairs = ((last.preemptions, reading.preemptions), (last.generated, reading.generated))
    return any(old is not UNKNOWN and new is not UNKNOWN and new < old for old, new in pairs)


def _latest(last: Reading, reading: Reading) -> Reading:
    """A reading with what is UNKNOWN in it as it was last known."""
    pairs = ((name, getattr(reading, name), getattr(last, name)) for name in Reading.__slots__)
    return Reading(**{name: old if new is UNKNOWN else new for name, new, old in pairs})


def _grown(before: Reading | None, reading: Reading) -> float:
    if before is None or before.preemptions is UNKNOWN or reading.preemptions is UNKNOWN:
        return 0.0
    return reading.preemptions - before.preemptions
