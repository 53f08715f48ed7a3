"""The laws of the adaptive limit, one sign of load at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.concurrency import FLOOR, START, ConcurrencyLimit, Reading, first_token_target
from appliance.quantity import UNKNOWN, Maybe

CALM = Reading(waiting=0.0, kv_usage=0.2, preemptions=0.0, generated=0.0)


def step(limit: ConcurrencyLimit, times: int, reading: Reading = CALM, *, use: float = 1.0, start: float = 0.0) -> int:
    """So many looks, a second apart, with that share of the limit in use."""
    for second in range(times):
        limit.step(reading, int(limit.limit * use), start + second)
    return limit.limit


def answer(limit: ConcurrencyLimit, count: int, ratio: float, now: float, size: int = 1000) -> None:
    """First tokens that took `ratio` of their target and come at `now`."""
    took = ratio * first_token_target(size)
    for _ in range(count):
        assert limit.first_token(size, now - took, now, now)


def test_an_engine_that_takes_more_is_given_more_up_to_the_ceiling() -> None:
    limit = ConcurrencyLimit(200)
    assert limit.limit == START
    assert step(limit, 3) > 2 * START
    assert step(limit, 10, start=3) == 200
    assert limit.reason == "at its ceiling"


def test_it_does_not_grow_while_fewer_than_half_are_in_use() -> None:
    limit = ConcurrencyLimit(200)
    assert step(limit, 20, use=0.45) == START
    assert step(limit, 1, use=0.5, start=20) > START


def test_calls_that_wait_in_the_engine_are_taken_back() -> None:
    limit = ConcurrencyLimit(200)
    step(limit, 10)
    assert step(limit, 1, Reading(waiting=60.0, kv_usage=0.2, preemptions=0.0), start=10) == 200, "one look is a chance"
    assert 130 < step(limit, 1, Reading(waiting=60.0, kv_usage=0.2, preemptions=0.0), start=11) < 180
    assert limit.reason == "calls wait inside the engine"


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (Reading(waiting=0.0, kv_usage=0.2, preemptions=20.0), "the engine preempts"),
        (Reading(waiting=0.0, kv_usage=0.99, preemptions=0.0), "the KV cache is full"),
    ],
)
def test_a_cache_too_small_makes_it_fall(reading: Reading, reason: str) -> None:
    limit = ConcurrencyLimit(200)
    before = step(limit, 10)
    assert step(limit, 1, reading, start=10) < before
    assert limit.reason == reason


def test_a_cache_that_fills_stops_growth_before_it_is_full() -> None:
    limit = ConcurrencyLimit(200)
    for second, usage in enumerate((0.1, 0.2, 0.3, 0.4, 0.5, 0.6)):
        limit.step(Reading(waiting=0.0, kv_usage=usage, preemptions=0.0), limit.limit, float(second))
    assert limit.reason == "the KV cache fills"


def test_late_first_tokens_make_it_fall_once_for_what_was_sent_before() -> None:
    limit = ConcurrencyLimit(200)
    before = step(limit, 10)
    answer(limit, 20, 0.1, 9)
    answer(limit, 20, 1.5, 10)
    after = step(limit, 1, start=10)
    assert after < before
    assert limit.reason == "first tokens are late"
    for second in range(11, 15):
        limit.first_token(1000, 9.5, float(second), float(second))  # sent before the cut
    assert step(limit, 1, start=14) >= after


def test_the_same_time_is_late_for_a_short_prompt_and_not_for_a_long_one() -> None:
    for size, falls in ((1000, True), (40_000, False)):
        limit = ConcurrencyLimit(200)
        step(limit, 10)
        for _ in range(20):
            limit.first_token(size, 5.0, 9.0, 9.0)
        assert (step(limit, 1, start=10) < 200) is falls


def test_an_overdue_first_token_counts_before_it_comes() -> None:
    limit = ConcurrencyLimit(200)
    before = step(limit, 10)
    assert not limit.first_token(1000, 9.0, None, 9.5)
    assert all(limit.first_token(1000, 5.0, None, 9.0) for _ in range(10))
    assert step(limit, 1, start=10) < before


def test_a_slow_engine_is_held_to_its_own_best() -> None:
    """On a CPU no first token may ever be within the target; that is no reason to go down to the floor."""
    limit = ConcurrencyLimit(64)
    lowest = 64
    for second in range(120):
        answer(limit, 5, 3.0, float(second))
        lowest = min(lowest, limit.step(CALM, limit.limit, float(second)))
    assert lowest == FLOOR, "what it can do it shows with hardly any load"
    assert limit.limit > START
    for second in range(120, 180):
        answer(limit, 3, 9.0, float(second))
        limit.step(CALM, limit.limit, float(second))
    assert limit.limit < START


def test_of_an_engine_that_shows_nothing_nothing_is_concluded() -> None:
    limit = ConcurrencyLimit(200)
    assert step(limit, 30, Reading()) == START
    assert limit.reason == "nothing is known of the engine"
    answer(limit, 20, 0.1, 29)
    assert step(limit, 1, Reading(), start=30) > START, "first tokens alone are enough"


@pytest.mark.parametrize("again", [Reading(preemptions=0.0), Reading(generated=5.0)])
def test_a_counter_that_went_back_is_another_engine(again: Reading) -> None:
    limit = ConcurrencyLimit(200)
    step(limit, 10, Reading(waiting=0.0, kv_usage=0.2, preemptions=1.0, generated=100.0))
    assert limit.limit == 200
    assert step(limit, 1, again, start=10) == START


def test_a_lower_ceiling_holds_at_once() -> None:
    limit = ConcurrencyLimit(200)
    step(limit, 10)
    limit.resize(7)
    assert limit.limit == 7
    limit.resize(2)
    assert (limit.limit, limit.floor) == (2, 2)


MAYBE = st.one_of(st.just(UNKNOWN), st.floats(0, 500))


@given(
    st.integers(1, 300),
    st.lists(
        st.tuples(MAYBE, st.one_of(st.just(UNKNOWN), st.floats(0, 1)), MAYBE, st.integers(0, 300), st.floats(0, 30)),
        max_size=60,
    ),
)
def test_laws(ceiling: int, looks: list[tuple[Maybe[float], Maybe[float], Maybe[float], int, float]]) -> None:
    limit, now = ConcurrencyLimit(ceiling), 0.0
    for waiting, usage, preemptions, use, took in looks:
        now += 1.0
        limit.first_token(100, now - took, now, now)
        before = limit.limit
        after = limit.step(Reading(waiting=waiting, kv_usage=usage, preemptions=preemptions), use, now)
        assert min(FLOOR, ceiling) <= after <= ceiling
        assert after <= before or use * 2 >= before or limit.reason == "start"
