"""First tokens beside what is due for them, and the rate at which calls begin."""

from __future__ import annotations

import pytest

from appliance.policy.firsttokens import ENOUGH, FEWEST, LONGEST, MEMORY, MOST, FirstTokens, first_token_target


def came(firsts: FirstTokens, count: int, ratio: float, now: float, size: int = 1000) -> None:
    """First tokens that took `ratio` of their target and come at `now`."""
    for _ in range(count):
        assert firsts.add(size, now - ratio * first_token_target(size), now, now)


@pytest.mark.parametrize(("size", "seconds"), [(0, 1.0), (400, 1.1), (4000, 2.0), (128_000, 33.0)])
def test_the_target_grows_with_the_prompt(size: int, seconds: float) -> None:
    assert first_token_target(size) == pytest.approx(seconds)


def test_few_say_nothing() -> None:
    firsts = FirstTokens()
    came(firsts, FEWEST - 1, 3.0, 10.0)
    firsts.look(10.0, 0.0)
    assert (firsts.known, firsts.late, firsts.p95, firsts.begun_in(1.0, 10.0)) == (False, 0.0, 0.0, None)
    came(firsts, 1, 3.0, 10.0)
    firsts.look(10.0, 0.0)
    assert (firsts.known, firsts.late) == (True, 1.0)
    assert firsts.p95 == pytest.approx(3.0)


def test_the_tail_is_what_counts() -> None:
    firsts = FirstTokens()
    came(firsts, 94, 0.1, 10.0)
    came(firsts, 6, 2.0, 10.0)
    firsts.look(10.0, 0.0)
    assert firsts.late == pytest.approx(0.06)
    assert firsts.p95 == pytest.approx(2.0)


def test_what_was_sent_before_is_left_out_and_what_is_old_forgotten() -> None:
    firsts = FirstTokens()
    came(firsts, 20, 0.5, 10.0)
    firsts.look(10.0, 9.9)
    assert not firsts.known, "they were sent before"
    firsts.look(10.0, 0.0)
    assert firsts.known
    firsts.look(10.1 + MEMORY, 0.0)
    assert firsts.known, "few are looked at for longer"
    firsts.look(10.1 + LONGEST, 0.0)
    assert not firsts.known
    came(firsts, 2 * ENOUGH, 0.5, 10.0)
    firsts.look(10.1 + MEMORY, 0.0)
    assert firsts.known
    came(firsts, 1, 3.0, 11.0 + MEMORY)
    firsts.look(11.0 + MEMORY, 0.0)
    assert firsts.p95 == pytest.approx(0.5), "not more than enough of the old ones"
    came(firsts, MOST + 100, 0.5, 50.0)
    firsts.look(50.0, 0.0)
    assert firsts.known, "more than are kept"


def test_one_that_is_due_is_counted_when_it_is_twice_over() -> None:
    firsts = FirstTokens()
    assert not firsts.add(1000, 0.0, None, 1.9 * first_token_target(1000))
    assert firsts.add(1000, 0.0, None, 2.1 * first_token_target(1000))


def test_an_engine_that_is_slow_with_hardly_any_load_is_held_to_its_own_best() -> None:
    firsts = FirstTokens()
    came(firsts, 20, 3.0, 10.0)
    firsts.look(10.0, 0.0)
    assert firsts.late == 1.0
    assert firsts.hardly_loaded()
    assert (firsts.due, firsts.late) == (6.0, 0.0)
    assert not firsts.hardly_loaded(), "it is known"
    came(firsts, 60, 0.2, 20.0)
    firsts.look(20.0, 0.0)
    assert firsts.due == 1.0, "a better best counts at once"


def test_how_many_begin_in_a_share_of_their_target() -> None:
    firsts = FirstTokens()
    for second in range(11):
        came(firsts, 2, 0.5, float(second), 4000)
    came(firsts, 2, 0.5, 10.0, 400_000)  # few large ones do not make the small ones' time longer
    assert firsts.begun_in(0.5, 10.0) == pytest.approx(0.5 * 2.0 * 2.4)
    for _ in range(24):
        firsts.unseen(10.0)
    assert firsts.begun_in(0.5, 10.0) == pytest.approx(0.5 * 2.0 * 4.8), "calls that are not streamed count"
