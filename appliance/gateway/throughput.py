"""How fast each engine answers now: tokens a second over a sliding window, first-token times of the last minutes.

Nothing here is done for a token: a count is what calls have counted anyway, taken every few seconds and when somebody
asks; a first-token time is kept when its call ends, and read from the calls that run. None is UNKNOWN: nothing came.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .exchange import Exchange
from .record import Record

SHORT, LONG = 10.0, 60.0  # seconds of the two windows of a rate
SHORTEST = 0.5  # seconds in which a rate means anything
RECENT = 300.0  # seconds of which first-token times are told
MOST = 4096  # of them that are kept for each engine


class TokenCounts:
    """Tokens that each engine has given since this process began, as they were in the last minute."""

    def __init__(self, now: float, counts: Mapping[str, int] | None = None) -> None:
        self._taken: deque[tuple[float, Mapping[str, int]]] = deque([(now, counts or {})])

    def take(self, counts: Mapping[str, int], now: float) -> None:
        """Keep the counts of this moment; called every few seconds."""
        self._taken.append((now, counts))
        while len(self._taken) > 1 and self._taken[1][0] <= now - LONG:
            self._taken.popleft()

    def per_second(self, engine: str | None, counts: Mapping[str, int], now: float, window: float) -> float | None:
        """The rate of one engine, None: of all, over the window or what there is of it; `counts` are those of now.

        A count that fell, because an answer had fewer tokens than events, is no rate below zero.
        """
        at, before = self._taken[0]
        for moment, older in self._taken:
            if moment > now - window:
                break
            at, before = moment, older
        if now - at < SHORTEST:
            return None
        grown = _of(counts, engine) - _of(before, engine)
        return round(max(grown, 0) / (now - at), 1)


def _of(counts: Mapping[str, int], engine: str | None) -> int:
    return sum(counts.values()) if engine is None else counts.get(engine, 0)


def running_events(exchanges: Iterable[Exchange]) -> Counter[str]:
    """Token events of the calls in flight, by replica."""
    events: Counter[str] = Counter()
    for exchange in exchanges:
        if exchange.relay is not None and exchange.replica is not None:
            events[exchange.replica.name] += exchange.relay.events
    return events


def last_heard(exchanges: Iterable[Exchange]) -> dict[str, float]:
    """When the calls in flight last brought bytes, by replica; monotonic."""
    heard: dict[str, float] = {}
    for exchange in exchanges:
        if exchange.relay is not None and exchange.replica is not None and (at := exchange.relay.heard_at) is not None:
            heard[exchange.replica.name] = max(at, heard.get(exchange.replica.name, at))
    return heard


@dataclass(frozen=True, slots=True)
class Running:
    """A streamed call in flight: seconds from its admission to its first token, and how long ago that came.

    `first` None: it is awaited, since `ago` seconds.
    """

    first: float | None
    ago: float


class FirstTokenTimes:
    """First-token times of the streams that have ended, by engine."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[tuple[float, float]]] = {}  # when it came (wall clock), how long it took

    def ended(self, record: Record) -> None:
        """A call ended; only a stream's first byte is its first token."""
        if not record.stream or record.first_token_ms is None or record.status != 200:
            return
        took = record.first_token_ms / 1000
        came = record.at + (record.queue_ms or 0.0) / 1000 + took
        kept = self._kept.get(record.engine)
        if kept is None:
            kept = self._kept[record.engine] = deque(maxlen=MOST)
        kept.append((came, took))

    def told(self, engine: str, running: Iterable[Running], epoch: float) -> dict[str, object]:
        """For `GET /status`: the first tokens that came within RECENT, and the calls that await theirs."""
        calls = list(running)
        times = [took for came, took in self._kept.get(engine, ()) if epoch - came < RECENT]
        times += [call.first for call in calls if call.first is not None and call.ago < RECENT]
        times.sort()
        awaited = [call.ago for call in calls if call.first is None]
        return {
            "within_s": RECENT,
            "count": len(times),
            "p50_s": _quantile(times, 0.5),
            "p95_s": _quantile(times, 0.95),
            "awaited": len(awaited),
            "longest_wait_s": round(max(awaited), 3) if awaited else None,
        }


def _quantile(ordered: list[float], share: float) -> float | None:
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 3) if ordered else None
