"""The laws of the adaptive limit, one sign of load at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.concurrency import FLOOR, START, ConcurrencyLimit, Reading
from appliance.policy.firsttokens import first_token_target
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
    queue = Reading(waiting=60.0, kv_usage=0.2, preemptions=0.0)
    assert step(limit, 1, queue, start=10) == 150, "no more are sent until no more wait than may"
    assert limit.reason == "calls wait inside the engine"
    assert limit.learned == 200, "one look is a chance"
    step(limit, 1, queue, start=11)
    assert limit.learned < 150
    assert limit.reason == "calls wait inside the engine"


def test_a_queue_that_was_a_chance_leaves_no_mark() -> None:
    limit = ConcurrencyLimit(200)
    step(limit, 10)
    step(limit, 1, Reading(waiting=60.0, kv_usage=0.2, preemptions=0.0), start=10)
    assert step(limit, 1, start=11) == 200


def test_calls_that_were_sent_before_a_cut_wait_on_and_are_no_reason_for_another() -> None:
    """They drain slowly; cut after cut for the same ones went down to the floor."""
    limit = ConcurrencyLimit(200)
    step(limit, 10)
    queue = Reading(waiting=60.0, kv_usage=0.2, preemptions=0.0)
    step(limit, 2, queue, start=10)
    once = limit.learned
    for second in range(12, 30):
        limit.step(queue, 150, float(second))
    assert limit.learned == once < 150


def test_places_that_come_free_together_are_not_all_taken_at_once() -> None:
    limit = ConcurrencyLimit(200)
    step(limit, 10)
    step(limit, 2, Reading(waiting=60.0, kv_usage=0.2, preemptions=0.0), start=10)
    for second in (12, 13, 14, 15):  # four first tokens a second of a target of 1.25 s: two begin in 0.4 of it
        answer(limit, 4, 0.1, float(second))
    used = int(limit.learned * 0.7)
    assert used < limit.step(CALM, used, 16.0) <= used + 3
    assert limit.step(CALM, 5, 17.0) == int(limit.learned), "of one that is hardly used no rate is known"


def test_preemptions_make_it_fall() -> None:
    limit = ConcurrencyLimit(200)
    before = step(limit, 10)
    assert step(limit, 1, Reading(waiting=0.0, kv_usage=0.2, preemptions=20.0), start=10) < before
    assert limit.reason == "the engine preempts"


def test_no_more_are_sent_than_the_cache_has_room_for() -> None:
    """A hundred calls that fill half of it: 95 % are filled by 190, less the two that are spared."""
    limit = ConcurrencyLimit(300)
    step(limit, 10)
    for second in range(10, 100):
        limit.step(Reading(waiting=0.0, kv_usage=0.5, preemptions=0.0), 100, float(second))
    assert 187 <= limit.limit <= 189
    limit.step(Reading(waiting=0.0, kv_usage=0.95, preemptions=0.0), 188, 100.0)
    assert limit.limit < 188
    limit.step(Reading(waiting=0.0, kv_usage=1.0, preemptions=0.0), 188, 101.0)
    assert limit.limit < 180


def test_one_large_prompt_at_first_does_not_make_all_look_large() -> None:
    limit = ConcurrencyLimit(200)
    limit.step(Reading(waiting=0.0, kv_usage=0.4, preemptions=0.0), 1, 0.0)
    assert limit.limit == FLOOR
    for second in range(1, 10):
        limit.step(Reading(waiting=0.0, kv_usage=0.4 + 0.005 * limit.limit, preemptions=0.0), limit.limit, second)
    assert limit.limit >= 20


def test_a_cache_that_fills_stops_growth_before_it_is_full() -> None:
    limit = ConcurrencyLimit(200)
    for second, usage in enumerate((0.1, 0.2, 0.3, 0.4, 0.5, 0.6)):
        limit.step(Reading(waiting=0.0, kv_usage=usage, preemptions=0.0), limit.limit, float(second))
    assert limit.reason in ("the KV cache fills", "the KV cache is full")
    assert limit.limit < 70


def test_metrics_that_stop_freeze_it() -> None:
    """Whatever first tokens say; but those that are late still make it fall."""
    limit = ConcurrencyLimit(200)
    frozen = step(limit, 3)
    for second in range(3, 60):
        answer(limit, 3, 0.1, float(second))
        assert limit.step(Reading(), limit.limit, float(second)) == frozen
    assert limit.reason == "its metrics have stopped"
    answer(limit, 30, 3.0, 60.0)
    assert limit.step(Reading(), limit.limit, 61.0) < frozen
    low = limit.limit
    assert step(limit, 60, start=62) > low, "they are back"


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
@pytest.mark.parametrize("silent", [0, 5])
def test_a_counter_that_went_back_is_another_engine(again: Reading, silent: int) -> None:
    """Also when it was not to be read in between, as it is while an engine starts."""
    limit = ConcurrencyLimit(200)
    step(limit, 10, Reading(waiting=0.0, kv_usage=0.2, preemptions=1.0, generated=100.0))
    assert limit.limit == 200
    step(limit, silent, Reading(), start=10)
    assert step(limit, 1, again, start=10 + silent) == START


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
    limit, now, shown = ConcurrencyLimit(ceiling), 0.0, False
    for waiting, usage, preemptions, use, took in looks:
        now += 1.0
        limit.first_token(100, now - took, now, now)
        before, learned = limit.limit, limit.learned
        reading = Reading(waiting=waiting, kv_usage=usage, preemptions=preemptions)
        after = limit.step(reading, use, now)
        assert min(FLOOR, ceiling) <= after <= ceiling
        assert limit.learned <= learned or use * 2 >= learned or limit.reason == "start"
        assert after <= before or reading != Reading() or not shown
        shown = shown or waiting is not UNKNOWN
