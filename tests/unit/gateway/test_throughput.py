from __future__ import annotations

import pytest

from appliance.gateway.record import record_of
from appliance.gateway.throughput import LONG, RECENT, SHORT, FirstTokenTimes, Running, TokenCounts

NOW = 1_000_000.0


def counted(rate: float, seconds: int) -> TokenCounts:
    counts = TokenCounts(0.0)
    for second in range(3, seconds + 1, 3):
        counts.take({"chat": int(rate * second)}, float(second))
    return counts


@pytest.mark.parametrize("window", [SHORT, LONG])
def test_a_steady_rate_is_that_rate_in_any_window(window: float) -> None:
    assert counted(40, 300).per_second("chat", {"chat": 12_040}, 301.0, window) == 40.0


def test_a_burst_is_in_the_short_window_until_it_has_passed() -> None:
    counts = counted(0, 300)
    counts.take({"chat": 900}, 303.0)
    assert counts.per_second("chat", {"chat": 900}, 303.0, SHORT) == pytest.approx(900 / 12, abs=0.1)
    counts.take({"chat": 900}, 318.0)
    assert counts.per_second("chat", {"chat": 900}, 318.0, SHORT) == 0.0
    assert counts.per_second("chat", {"chat": 900}, 318.0, LONG) == pytest.approx(900 / 60, abs=1)


def test_the_first_moments_say_nothing() -> None:
    counts = TokenCounts(0.0)
    assert counts.per_second("chat", {"chat": 5}, 0.4, SHORT) is None
    assert counts.per_second("chat", {"chat": 5}, 2.0, SHORT) == 2.5


def test_what_others_gave_before_is_no_rate() -> None:
    assert TokenCounts(0.0, {"chat": 50_000}).per_second("chat", {"chat": 50_010}, 1.0, SHORT) == 10.0


def test_a_count_that_falls_is_no_rate_below_zero() -> None:
    assert TokenCounts(0.0, {"chat": 10}).per_second("chat", {"chat": 9}, 1.0, SHORT) == 0.0


def test_all_engines_and_one_that_is_new() -> None:
    counts = TokenCounts(0.0, {"chat": 10})
    now = {"chat": 20, "embed": 30}
    assert counts.per_second(None, now, 10.0, SHORT) == 4.0
    assert counts.per_second("embed", now, 10.0, SHORT) == 3.0
    assert counts.per_second("other", now, 10.0, SHORT) == 0.0


def ended(ms: float | None, *, at: float = NOW - 10, stream: bool = True, status: int = 200) -> FirstTokenTimes:
    times = FirstTokenTimes()
    times.ended(record_of({"at": at, "engine": "chat", "stream": stream, "status": status, "first_token_ms": ms,
                           "queue_ms": 0.0}))  # fmt: skip
    return times


@pytest.mark.parametrize(
    ("times", "count"),
    [
        (ended(200.0), 1),
        (ended(200.0, at=NOW - RECENT - 1), 0),
        (ended(200.0, stream=False), 0),
        (ended(200.0, status=500), 0),
        (ended(None), 0),
        (FirstTokenTimes(), 0),
    ],
    ids=["recent", "old", "not streamed", "refused", "none came", "none"],
)
def test_which_ended_calls_count(times: FirstTokenTimes, count: int) -> None:
    told = times.told("chat", [], NOW)
    assert (told["count"], told["p50_s"]) == (count, 0.2 if count else None)
    assert times.told("other", [], NOW)["count"] == 0


def test_running_calls_count_as_well_and_those_that_wait_are_told() -> None:
    times = FirstTokenTimes()
    running = [Running(n / 100, 1.0) for n in range(1, 101)] + [Running(99.0, RECENT + 1)]
    told = times.told("chat", [*running, Running(None, 3.0), Running(None, 7.0)], NOW)
    assert told == {
        "within_s": RECENT, "count": 100, "p50_s": 0.51, "p95_s": 0.96, "awaited": 2, "longest_wait_s": 7.0,
    }  # fmt: skip
