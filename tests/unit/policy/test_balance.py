from __future__ import annotations

from typing import NamedTuple

import pytest

from appliance.policy.balance import least_outstanding


class Load(NamedTuple):
    name: str
    in_flight: int
    limit: int
    suspect: bool = False


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ([], {None}),
        ([Load("a", 4, 4)], {None}),
        ([Load("a", 3, 4), Load("b", 1, 4)], {"b"}),
        ([Load("a", 4, 16), Load("b", 2, 4)], {"a"}),
        ([Load("a", 1, 4), Load("b", 1, 4)], {"a", "b"}),
        ([Load("a", 0, 0)], {None}),
        ([Load("a", 0, 4, suspect=True), Load("b", 3, 4)], {"b"}),
        ([Load("a", 1, 4, suspect=True), Load("b", 4, 4)], {None}),
        ([Load("a", 2, 4, suspect=True), Load("b", 1, 4, suspect=True)], {"b"}),
    ],
)
def test_the_least_share_in_use(loads: list[Load], chosen: set[str | None]) -> None:
    found = [least_outstanding(loads, turn) for turn in range(4)]
    assert {None if one is None else one.name for one in found} == chosen
