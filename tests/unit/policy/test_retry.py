from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import API_CODES
from appliance.policy.retry import LONGEST, SHARED, SPREAD, Loss, Next, after_loss, hint


@pytest.mark.parametrize(
    ("loss", "following"),
    [
        (Loss(True, True, False, False, 0), Next.FRESH),
        (Loss(True, True, False, False, 1), Next.FRESH),
        (Loss(True, False, False, False, 0), Next.OTHER),
        (Loss(False, False, False, False, 0), Next.OTHER),
        (Loss(True, False, False, False, 1), Next.GIVE_UP),
        (Loss(True, True, True, False, 0), Next.GIVE_UP),
        (Loss(True, False, True, True, 0), Next.GIVE_UP),
        (Loss(True, False, False, False, 0, suspect=True), Next.GIVE_UP),
        (Loss(False, False, False, False, 0, suspect=True), Next.OTHER),  # it reached no engine
    ],
)
def test_the_table(loss: Loss, following: Next) -> None:
    assert after_loss(loss) is following


def test_nothing_that_was_delivered_is_ever_sent_again() -> None:
    for connected, reused, answered, resent in itertools.product((0, 1), (0, 1), (0, 1), range(3)):
        assert after_loss(Loss(bool(connected), bool(reused), bool(answered), True, resent)) is Next.GIVE_UP


waits = st.one_of(st.none(), st.floats(0.001, 1e6))


@given(st.sampled_from(sorted(API_CODES)), waits, st.text("ab", max_size=8), st.booleans())
def test_a_hint_that_wants_a_retry_is_whole_seconds_and_never_long(
    code: str, wait: float | None, word: str, final: bool
) -> None:
    told = hint(API_CODES[code][0], code, wait, word, final=final)
    if wait is None:
        assert (told.seconds, told.milliseconds, told.never) == (None, None, final)
        return
    assert told.seconds is not None and told.milliseconds is not None
    assert told.seconds >= 1 and 0 <= told.seconds * 1000 - told.milliseconds < 1000
    assert told.never or told.seconds <= LONGEST
    assert told.never == (final or wait > LONGEST)
    assert told.milliseconds >= min(wait, LONGEST) * 1000
    assert told.milliseconds <= wait * 1000 * (1 + SPREAD) + 1


def test_those_who_are_turned_away_together_do_not_come_back_together() -> None:
    ids = [f"{number:032x}" for number in range(500)]
    for status, code in ((503, "engine_restarting"), *((429, code) for code in SHARED)):
        told = sorted(hint(status, code, 40.0, word, final=False).milliseconds or 0 for word in ids)
        assert told[0] >= 40_000 and told[-1] <= 46_000
        thirds = [sum(40_000 + n * 2000 <= wait < 42_000 + n * 2000 for wait in told) for n in range(3)]
        assert all(100 < count < 240 for count in thirds), thirds
    assert {hint(429, "rate_limit_exceeded", 0.3, word, final=False).milliseconds for word in ids} == {300}
