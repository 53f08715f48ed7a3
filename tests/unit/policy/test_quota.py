from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.quota import Period, Quota, bounds


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("period", "moment", "start", "end"),
    [(Period.DAY, "2026-03-01T00:00:00", "2026-03-01", "2026-03-02"),
     (Period.DAY, "2026-02-28T23:59:59", "2026-02-28", "2026-03-01"),
     (Period.MONTH, "2026-02-28T23:59:59", "2026-02-01", "2026-03-01"),
     (Period.MONTH, "2026-12-31T12:00:00", "2026-12-01", "2027-01-01"),
     (Period.MONTH, "2028-02-29T12:00:00", "2028-02-01", "2028-03-01")],
)  # fmt: skip
def test_periods_are_calendar_ones(period: Period, moment: str, start: str, end: str) -> None:
    assert bounds(period, at(moment)) == (at(start), at(end))


@given(st.sampled_from(Period), st.floats(0, 4e9))
def test_every_moment_lies_in_its_period(period: Period, epoch: float) -> None:
    start, end = bounds(period, epoch)
    assert start <= epoch < end and 86400 <= end - start <= 31 * 86400
    assert bounds(period, start) == (start, end) and bounds(period, end)[0] == end


def test_a_new_day_begins_at_zero_and_keeps_what_is_set_aside() -> None:
    quota = Quota(Period.DAY)
    quota.turn(at("2026-03-01T23:00:00"))
    quota.used, quota.reserved = 90, 5
    assert quota.left(100) == 5
    quota.turn(at("2026-03-02T00:00:00"))
    assert (quota.used, quota.reserved, quota.left(100)) == (0, 5, 95)


def test_a_count_is_restored_in_its_own_period_only() -> None:
    day = at("2026-03-01")
    for now, used in ((day + 5, 40), (day + 86400, 0), (day - 1, 0)):
        quota = Quota(Period.DAY)
        quota.restore(day, 40, now)
        assert quota.used == used
