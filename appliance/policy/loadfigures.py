"""What a load has shown, in the terms of `vllm bench serve`, so that figures can be laid side by side.

    TTFT   from the sending of a request to its first token
    ITL    each time between two tokens of one answer, of all answers together
    TPOT   of one answer: the time from its first token to its last, for each token after the first
    E2EL   from the sending of a request to its last token

Percentiles interpolate linearly between neighbours. Only answers that came whole are in these figures; the others are
counted by kind. Rates are over the whole time of a step, from the first request to the last answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as its client saw it; times are seconds from its sending. `failure` names what ended it, or nothing.

    `estimated`: the engine told no usage, and the events were counted.
    """

    ttft: float = 0.0
    e2el: float = 0.0
    gaps: Sequence[float] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    failure: str = ""

    @property
    def tpot(self) -> float:
        """0 for an answer of one token, which has no time between tokens."""
        return (self.e2el - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """What a request must keep to be good, seconds; None asks nothing. `itl` is held against its TPOT."""

    ttft: float | None = None
    itl: float | None = None

    def __bool__(self) -> bool:
        return self.ttft is not None or self.itl is not None

    def is_met(self, request: Request) -> bool:
        """Whether a whole answer was good."""
        return (self.ttft is None or request.ttft <= self.ttft) and (self.itl is None or request.tpot <= self.itl)


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in seconds."""

    mean: float
    std: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the ladder. A spread is None where there was nothing to measure; `good` is None without a target.

    `busy` is the part of one core that the load itself took, `late` how much later than it came an event may have been
    seen by it, as the 99th percentile in seconds.
    """

    concurrency: int
    seconds: float
    completed: int
    failures: Mapping[str, int]
    good: int | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    estimated: int
    ttft: Spread | None
    itl: Spread | None
    tpot: Spread | None
    e2el: Spread | None
    busy: float = 0.0
    late: float = 0.0
    cut: bool = False  # by Ctrl-C

    @property
    def failed(self) -> int:
        """Requests that got no whole answer."""
        return sum(self.failures.values())

    @property
    def requests_per_s(self) -> float:
        """Whole answers a second."""
        return self._rate(self.completed)

    @property
    def tokens_per_s(self) -> float:
        """Tokens of whole answers a second."""
        return self._rate(self.output_tokens)

    @property
    def goodput(self) -> float | None:
        """Good requests a second; None without a target."""
        return None if self.good is None else self._rate(self.good)

    @property
    def kept(self) -> float:
        """Which part of all requests was good: whole, and within the target where there is one."""
        asked = self.completed + self.failed
        return (self.completed if self.good is None else self.good) / asked if asked else 0.0

    def _rate(self, count: int) -> float:
        return count / self.seconds if self.seconds > 0 else 0.0


def figures(
    requests: Sequence[Request], concurrency: int, seconds: float, target: Target, *, busy: float = 0.0,
    late: float = 0.0, cut: bool = False,
) -> Step:  # fmt: skip
    """The figures of a step that took `seconds`."""
    whole = [request for request in requests if not request.failure]
    return Step(
        concurrency=concurrency,
        seconds=seconds,
        completed=len(whole),
        failures=dict(Counter(request.failure for request in requests if request.failure).most_common()),
        good=sum(map(target.is_met, whole)) if target else None,
        input_tokens=sum(request.input_tokens for request in whole),
        output_tokens=sum(request.output_tokens for request in whole),
        cached_tokens=sum(request.cached_tokens for request in whole),
        estimated=sum(request.estimated for request in whole),
        ttft=spread([request.ttft for request in whole]),
        itl=spread([gap for request in whole for gap in request.gaps]),
        tpot=spread([request.tpot for request in whole if request.output_tokens > 1]),
        e2el=spread([request.e2el for request in whole]),
        busy=busy,
        late=late,
        cut=cut,
    )


def spread(values: Sequence[float]) -> Spread | None:
    """None for nothing."""
    if not values:
        return None
    ordered = sorted(values)
    mean = math.fsum(ordered) / len(ordered)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / len(ordered))
    p50, p90, p95, p99 = (percentile(ordered, share) for share in (50, 90, 95, 99))
    return Spread(mean, std, p50, p90, p95, p99, ordered[-1])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in order, interpolated linearly, as numpy does it."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
