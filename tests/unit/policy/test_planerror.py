from __future__ import annotations

from typing import Any

import pytest

from appliance.policy.cards import GIB
from appliance.policy.planerror import PlanError, corrections, of_start, read

STATE: dict[str, Any] = {
    "runtime": "0.32.0-cuda",
    "planned": {"model": "org/x@main", "gpu": "L4", "tp": 2, "pp": 1, "kv_gib": 10.0, "weights_gib": 7.0},
    "measured": {"kv_gib": 9.25},
}  # fmt: skip
ERROR = PlanError("org/x@main", "L4", "0.32.0-cuda", 2, 1, -0.75)


def test_the_room_that_a_start_left_against_its_plan() -> None:
    assert of_start(STATE) == ERROR


@pytest.mark.parametrize(
    "lacks",
    [{"planned": None}, {"measured": {}}, {"measured": None}, {"planned": {"kv_gib": 10.0}}, {"runtime": None},
     {"measured": {"kv_gib": "9"}}, {"planned": {**STATE["planned"], "kv_gib": None}}],
)  # fmt: skip
def test_a_start_that_did_not_tell_both_teaches_nothing(lacks: dict[str, Any]) -> None:
    assert of_start({**STATE, **lacks}) is None
    assert of_start({}) is None and read({}) is None


def test_it_holds_for_the_same_model_gpu_and_runtime_alone() -> None:
    known = [
        ERROR,
        PlanError("org/x@main", "L4", "0.32.0-cuda", 1, 1, 0.5),
        PlanError("org/y", "L4", "0.32.0-cuda", 1, 1, 9),
    ]
    found = corrections(known, "org/x@main", "L4", "0.32.0-cuda")
    assert found == {(2, 1): int(-0.75 * GIB), (1, 1): GIB // 2}
    for other in (
        ("org/z", "L4", "0.32.0-cuda"),
        ("org/x@main", "L40S", "0.32.0-cuda"),
        ("org/x@main", "L4", "0.33.0-cuda"),
    ):
        assert corrections(known, *other) == {}
