from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.incidents import WINDOW_S, Kept, counted_in, to_remove

FIRST = Kept("first", "chat", "engine-died", 1000.0, 10)


@pytest.mark.parametrize(
    ("engine", "cause", "now", "expected"),
    [
        ("chat", "engine-died", 1000.0 + WINDOW_S - 1, "second"),
        ("chat", "engine-died", 2000.0 + WINDOW_S - 1, "second"),
        ("chat", "engine-died", 2000.0 + WINDOW_S, ""),
        ("chat", "worker-died", 2001.0, ""),
        ("embed", "engine-died", 2001.0, ""),
        ("chat", "engine-died", 999.0, ""),  # the clock was set back
    ],
)
def test_a_death_is_counted_in_the_newest_of_its_kind(engine: str, cause: str, now: float, expected: str) -> None:
    assert counted_in([FIRST, Kept("second", "chat", "engine-died", 2000.0, 10)], engine, cause, now) == expected


def test_the_oldest_make_room() -> None:
    kept = [Kept(f"{n}", "chat", "x", float(n), 10) for n in (3, 1, 2, 4)]
    assert to_remove(kept, count=2, total=1000) == ("1", "2")
    assert to_remove(kept, count=9, total=30) == ("1",)
    assert to_remove(kept, count=9, total=5) == ("1", "2", "3")  # the newest stays, however large
    assert to_remove([], count=1, total=1) == ()


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 10), st.integers(1, 500))
def test_both_bounds_hold(sizes: list[int], count: int, total: int) -> None:
    kept = [Kept(str(n), "chat", "x", float(n), size) for n, size in enumerate(sizes)]
    removed = set(to_remove(kept, count=count, total=total))
    left = [one for one in kept if one.id not in removed]
    assert len(left) <= count
    assert sum(one.size for one in left) <= total or len(left) == 1
    assert not kept or kept[-1] in left
