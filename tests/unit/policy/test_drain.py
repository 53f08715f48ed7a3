from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.drain import AT_MOST, FEWEST, DrainRate
from appliance.quantity import UNKNOWN


def released(rate: DrainRate, times: list[float]) -> None:
    """Leases that come back at these moments, each to be had again at once."""
    for now in times:
        rate.released(now)
        rate.mark(False, now)
        rate.mark(True, now)


def test_unknown_until_enough_came_back() -> None:
    rate = DrainRate()
    rate.mark(True, 100.0)
    released(rate, [102.0, 104.0])
    assert rate.interval(104.0) is UNKNOWN and FEWEST == 3
    released(rate, [106.0])
    assert rate.interval(106.0) == 2.0


def test_idle_time_says_nothing() -> None:
    rate = DrainRate()
    for begin in (0.0, 3600.0, 90_000.0):
        rate.mark(True, begin)
        rate.released(begin + 2.0)
        rate.mark(False, begin + 2.0)
        rate.released(begin + 50.0)  # with room already: no sign of how fast it could be
        rate.mark(False, begin + 50.0)
    assert rate.interval(100_000.0) == 2.0


def test_waves_are_seen_whole() -> None:
    rate = DrainRate()
    rate.mark(True, 0.0)
    for wave in range(1, 7):  # 64 calls that begin together take three seconds each
        released(rate, [wave * 3.0] * 64)
        assert rate.interval(wave * 3.0) == pytest.approx(3.0 / 64, rel=0.05)


def test_an_engine_that_stands_still_is_not_quick() -> None:
    rate = DrainRate()
    rate.mark(True, 0.0)
    released(rate, [0.1 * n for n in range(1, 101)])
    before, later = rate.interval(10.0), rate.interval(400.0)
    assert before is not UNKNOWN and later is not UNKNOWN
    assert before == pytest.approx(0.1, rel=0.05) and later > 30 * before


def test_another_pace_is_learned() -> None:
    rate = DrainRate()
    rate.mark(True, 0.0)
    released(rate, [0.1 * n for n in range(1, 3001)])
    released(rate, [300.0 + 1.0 * n for n in range(1, 91)])
    assert rate.interval(390.0) == pytest.approx(1.0, rel=0.05)


@given(st.integers(1, 2**32), st.floats(0.001, 100.0), st.integers(FEWEST, 3 * AT_MOST))
def test_the_mean_of_any_pace(seed: int, mean: float, count: int) -> None:
    chance = random.Random(seed)
    rate, now = DrainRate(), 5.0
    rate.mark(True, now)
    for _ in range(count):
        now += chance.uniform(0.9, 1.1) * mean
        released(rate, [now])
    assert rate.interval(now) == pytest.approx(mean, rel=0.1)
