from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.rate import Bucket


def test_a_minutes_allowance_may_be_used_at_once_and_comes_back_evenly() -> None:
    bucket = Bucket()
    for _ in range(60):
        assert bucket.wait(1, 60, 0.0) == 0.0
        bucket.add(1)
    assert bucket.wait(1, 60, 0.0) == pytest.approx(1.0)
    assert bucket.wait(1, 60, 0.75) == pytest.approx(0.25)
    assert bucket.wait(1, 60, 1.0) == 0.0
    assert bucket.debt(60, 61.0) == 0.0


def test_what_is_more_than_a_minute_allows_never_fits() -> None:
    assert Bucket().wait(61, 60, 0.0) is None
    assert Bucket().wait(60, 60, 0.0) == 0.0


def test_a_debt_above_the_allowance_is_waited_for() -> None:
    bucket = Bucket()
    bucket.add(180)
    assert bucket.wait(60, 60, 0.0) == pytest.approx(180.0)


def test_another_bucket_goes_on_where_one_ends() -> None:
    before, after = Bucket(), Bucket()
    before.wait(30, 60, 100.0)
    before.add(30)
    after.restore(*before.state())
    assert after.debt(60, 110.0) == before.debt(60, 110.0) == 20


def test_a_changed_limit_holds_at_once() -> None:
    bucket = Bucket()
    bucket.wait(60, 60, 0.0)
    bucket.add(60)
    assert bucket.wait(1, 60, 0.0) == pytest.approx(1.0)
    assert bucket.wait(1, 120, 0.0) == 0.0
    assert bucket.wait(1, 30, 0.0) == pytest.approx(62.0)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), max_size=60), st.integers(50, 500))
def test_never_more_than_a_burst_and_the_rate(calls: list[tuple[float, int]], per_minute: int) -> None:
    bucket, now, granted = Bucket(), 0.0, 0
    for gap, amount in calls:
        now += gap
        wait = bucket.wait(amount, per_minute, now)
        assert wait is not None and wait >= 0
        if wait == 0:
            bucket.add(amount)
            granted += amount
        else:  # and the wait is exact: not before it, but after it
            assert bucket.debt(per_minute, now) + amount > per_minute
            now += wait + 1e-6
            assert bucket.wait(amount, per_minute, now) == 0
        assert granted <= per_minute + now * per_minute / 60 + 1e-6
    assert bucket.debt(per_minute, now + 60.001) == 0
