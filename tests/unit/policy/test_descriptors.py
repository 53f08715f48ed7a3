"""Descriptors by configuration."""

from __future__ import annotations

import pytest

from appliance.config.model import Admission, Config, Engine, Gateway
from appliance.policy.admission import AUTO_LIMIT
from appliance.policy.descriptors import SPARE, descriptors_needed

ENGINE = Engine(name="a", model="org/a")


@pytest.mark.parametrize(
    ("limit", "engines", "needed"),
    [
        ("auto", (), 0),
        ("auto", (ENGINE,), 2 * AUTO_LIMIT + 512),
        (10_000, (ENGINE,), 20_000 + 512),
        (100, (ENGINE, Engine(name="b", model="org/b", replicas=2)), 2 * 300 + 2 * 512),
        ("auto", (Engine(name="a", model="org/a", vllm={"max_num_seqs": 8}),), 16 + 512),
    ],
)
def test_two_for_a_running_call_and_one_for_a_waiting_one(
    limit: int | str, engines: tuple[Engine, ...], needed: int
) -> None:
    gateway = Gateway(admission=Admission(max_in_flight=limit))  # type: ignore[arg-type]
    assert descriptors_needed(Config(gateway=gateway, engines=engines)) == needed + SPARE
