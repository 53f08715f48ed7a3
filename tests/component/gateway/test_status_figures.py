"""What `GET /status` tells of engines and keys at work."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from appliance.config.model import KeyLimits
from appliance.host import keystore
from tests.component.gateway.conftest import Start
from tests.support.gatewayprocess import FakeEngine, Gateway, config, fault, remote
from tests.support.waiting import clear_of_midnight, wait_until

CHAT = "/v1/chat/completions"


def replica(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = gateway.admin("/status")["engines"][0]["replicas"][0]
    return found


@pytest.mark.slow
def test_figures_of_an_engine_at_work_and_after(start: Start, engine: FakeEngine, tmp_path: Path) -> None:
    clear_of_midnight(20)
    (tmp_path / "state/gateway").mkdir(parents=True)
    file = tmp_path / "keys.toml"
    key, secret = keystore.create(str(file), "alice", time.time(), limits=KeyLimits(daily_tokens=1000))
    keystore.create(str(file), "bob", time.time())
    gateway = start(
        config(
            remote(engine.url),
            auth=f'keys_file = "{file}"',
            gateway='[gateway.admission]\nmax_in_flight = 8\n[gateway.stream]\nkeepalive = "100ms"\n',
        ),
        LLM_APPLIANCE_STATE=str(tmp_path / "state"),
    )
    told = gateway.admin("/status")
    assert told["keys"]["use"] == []
    assert told["engines"][0]["replicas"][0]["first_token"]["p50_s"] is None
    with gateway.open("POST", CHAT, fault("gate,tokens=30", stream=True), Authorization=f"Bearer {secret}") as stream:
        wait_until(lambda: replica(gateway)["first_token"]["awaited"] == 1, 5, "a first token is awaited", 0.02)
        assert replica(gateway)["first_token"]["longest_wait_s"] is not None
        engine.release(20)
        stream.read(10)
        working = wait_until(
            lambda: (now := replica(gateway))["tokens_per_second"] and now["first_token"]["count"] and now,
            5, "tokens come", 0.05,
        )  # fmt: skip
        assert working["first_token"]["awaited"] == 0 and working["first_token"]["p95_s"] > 0
        load = wait_until(lambda: replica(gateway)["load"], 5, "its metrics are read, though no limit is learned", 0.1)
        assert load["kv_usage"] == 0.125 and load["at"] <= time.time()
        wait_until(lambda: replica(gateway)["load"]["running"] == 1, 5, "it is seen at work", 0.1)
        (use,) = gateway.admin("/status")["keys"]["use"]
        assert (use["id"], use["name"], use["running"], use["daily_tokens"]) == (key.id, "alice", 1, 1000)
        engine.release(100)
        tail = stream.read()
    assert b"[DONE]" in tail
    wait_until(lambda: replica(gateway)["load"]["running"] == 0, 5, "it is looked at once more", 0.1)
    (use,) = gateway.admin("/status")["keys"]["use"]
    assert use["running"] == 0 and use["tokens_today"] == use["tokens_month"] > 30
    assert replica(gateway)["first_token"]["count"] == 1
