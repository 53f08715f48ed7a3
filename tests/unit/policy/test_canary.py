from __future__ import annotations

import pytest

from appliance.policy.canary import Rest, is_due


@pytest.mark.parametrize(
    ("rest", "after_s", "due"),
    [
        (Rest(idle_s=300.0, serving=True), 300.0, True),
        (Rest(idle_s=299.0, serving=True), 300.0, False),
        (Rest(idle_s=9999.0, serving=True), None, False),
        (Rest(idle_s=9999.0, serving=False), 300.0, False),
        (Rest(idle_s=9999.0, serving=True, asleep=True), 300.0, False),
        (Rest(idle_s=9999.0, serving=True, draining=True), 300.0, False),
        (Rest(idle_s=9999.0, serving=True, outstanding=True), 300.0, False),
    ],
)
def test_when_a_canary_is_sent(rest: Rest, after_s: float | None, due: bool) -> None:
    assert is_due(rest, after_s) is due
