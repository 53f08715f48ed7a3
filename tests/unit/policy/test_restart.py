from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config.model import Restart
from appliance.policy.causes import Remedy
from appliance.policy.failure import Failure
from appliance.policy.restart import (
    JITTER,
    WAIT_S,
    Death,
    Record,
    asked,
    backoff_s,
    due_in_s,
    entered,
    forgiven,
    fulfilled,
)
from appliance.quantity import UNKNOWN, Maybe

LIMITS = Restart(budget=3, window=3600.0, backoff=5.0, backoff_max=60.0)
DIED = Failure("engine-died", Remedy.RESTART, "it died")
WAITING = Failure("shm-full", Remedy.WAIT, "no shared memory")


def died(record: Record, number: int, now: float, failure: Failure = DIED, jitter: float = 0.0) -> Record:
    return entered(record, Death(now, f"run{number}", failure.cause), failure, LIMITS, now=now, jitter=jitter)


@pytest.mark.parametrize(("count", "delay"), [(1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (50, 60)])
def test_backoff_doubles_up_to_its_limit(count: int, delay: float) -> None:
    assert backoff_s(count, LIMITS, 0.0) == delay
    assert backoff_s(count, LIMITS, 1.0) == pytest.approx(delay * (1 + JITTER))


@pytest.mark.parametrize(
    ("served", "failure", "least_s", "pause"),
    [
        (UNKNOWN, DIED, 0.0, 5.0),
        (98.0, DIED, 0.0, 3.0),
        (95.0, DIED, 0.0, 0.0),
        (-900.0, DIED, 0.0, 0.0),
        (-900.0, DIED, 4.0, 4.0),
        (200.0, DIED, 0.0, 5.0),  # the clock was set back
        (-900.0, WAITING, 0.0, WAIT_S),  # others need their time
    ],
)
def test_a_run_that_served_for_longer_than_the_pause_is_restarted_at_once(
    served: Maybe[float], failure: Failure, least_s: float, pause: float
) -> None:
    death = Death(100.0, "run1", failure.cause)
    record = entered(Record(), death, failure, LIMITS, now=100.0, jitter=0.0, served=served, least_s=least_s)
    assert record.not_before == 100.0 + pause


def test_budget_is_restarts_then_a_hold() -> None:
    record = Record()
    for number in range(3):
        record = died(record, number, 1000.0 + number)
        assert record.wanted and not record.hold
    record = died(record, 3, 1010.0)
    assert not record.wanted
    assert "4 times within 1h" in record.hold


def test_old_deaths_leave_the_window() -> None:
    record = Record()
    for number in range(10):
        record = died(record, number, number * 1300.0)  # never more than three within an hour
        assert record.wanted and not record.hold


def test_deaths_before_the_clock_was_set_back_leave_the_window_too() -> None:
    """A board's clock in local time is hours ahead until the network's time comes."""
    record = Record()
    for number in range(3):
        record = died(record, number, 8 * 3600.0 + number)
    assert len(record.within(LIMITS.window, 100.0)) == 0
    record = died(record, 3, 100.0)
    assert record.wanted and not record.hold
    assert [death.key for death in record.deaths] == ["run3"]
    assert len(record.within(LIMITS.window, 99.0)) == 1  # a second back is no reason to forget


def test_a_wish_names_the_run_it_replaces() -> None:
    record = died(Record(), 7, 100.0)
    assert (record.over, record.not_before) == ("run7", 105.0)
    assert record.knows("run7") and not record.knows("run8")


@pytest.mark.parametrize("remedy", [Remedy.HOLD, Remedy.FIX_HOST, Remedy.REBOOT])
def test_what_will_not_get_better_is_held_at_once(remedy: Remedy) -> None:
    record = died(Record(), 1, 0.0, Failure("config-error", remedy, "bad flag"))
    assert (record.hold, record.wanted) == ("bad flag", "")


def test_waiting_remedies_pause_longer_and_are_held_the_second_time() -> None:
    first = died(Record(), 1, 0.0, WAITING)
    assert first.not_before == WAIT_S
    other = died(first, 2, 100.0)  # another cause between does not count
    assert other.wanted
    second = died(other, 3, 200.0, WAITING)
    assert second.hold.startswith("the second time")


def test_a_resumed_engine_has_a_clean_record() -> None:
    """Only which ends were told is kept, so that none is told again."""
    resumed = Record(wanted="resumed", over="run3", past=("run1",))
    assert forgiven(died(Record(), 1, 0.0), "resumed", "run3") == resumed


def test_an_order_is_due_at_once() -> None:
    record = asked(died(Record(), 1, 0.0), "operator", "run1")
    assert due_in_s(record, LIMITS, 0.0) == 0.0
    assert fulfilled(record).wanted == ""
    assert fulfilled(record).deaths == record.deaths


@pytest.mark.parametrize(
    ("not_before", "now", "due"),
    [(None, 50.0, 0.0), (60.0, 50.0, 10.0), (50.0, 50.0, 0.0), (40.0, 50.0, 0.0), (1e9, 50.0, 0.0)],
    ids=["none", "future", "now", "past", "the clock was set back"],
)
def test_due(not_before: float | None, now: float, due: float) -> None:
    assert due_in_s(Record(not_before=not_before), LIMITS, now) == due


@given(st.lists(st.tuples(st.floats(0, 4000), st.floats(0, 1)), min_size=1, max_size=40))
def test_never_more_restarts_within_the_window_than_the_budget(steps: list[tuple[float, float]]) -> None:
    record, now, allowed = Record(), 0.0, []
    for number, (gap, jitter) in enumerate(steps):
        now += gap
        record = died(record, number, now, jitter=jitter)
        if record.hold:
            return
        assert record.not_before is not None
        assert now < record.not_before <= now + LIMITS.backoff_max * (1 + JITTER)
        allowed.append(now)
        assert sum(1 for at in allowed if at > now - LIMITS.window) <= LIMITS.budget
