from __future__ import annotations

import itertools

import pytest

from appliance.policy.retry import Loss, Next, after_loss


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
    ],
)
def test_the_table(loss: Loss, following: Next) -> None:
    assert after_loss(loss) is following


def test_nothing_that_was_delivered_is_ever_sent_again() -> None:
    for connected, reused, answered, resent in itertools.product((0, 1), (0, 1), (0, 1), range(3)):
        assert after_loss(Loss(bool(connected), bool(reused), bool(answered), True, resent)) is Next.GIVE_UP
