from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.pulse import Pulse


def seen(*distances: float) -> float:
    pulse, now = Pulse(2.0), 0.0
    pulse.tick(now)
    for distance in distances:
        now += distance
        pulse.tick(now)
    return pulse.seen


@pytest.mark.parametrize(
    ("distances", "counted"),
    [
        ([2.0] * 10, 20.0),
        ([2.0] * 10 + [600.0] + [2.0] * 10, 42.0),  # nobody looked for ten minutes
        ([2.0] * 10 + [4.0], 24.0),  # a late look is no gap
        ([2.0] * 10 + [4.5], 22.0),
        ([0.5, 0.5, 1.0] * 10, 20.0),  # sources that are asked one after the other
        ([10.0] * 10, 92.0),  # a recording that is coarser than the setting: the first distance is a surprise
        ([0.1, 0.2, 9.7] * 8, 64.6),  # the same, and three sources: two surprises
        ([0.0, -5.0], 0.0),
    ],
)
def test_what_was_not_looked_at_does_not_count(distances: list[float], counted: float) -> None:
    assert seen(*distances) == pytest.approx(counted, abs=0.01)


@given(st.lists(st.floats(0.0, 1e4), max_size=60))
def test_no_more_is_seen_than_went_by(distances: list[float]) -> None:
    assert 0.0 <= seen(*distances) <= sum(distances) + 1e-6
