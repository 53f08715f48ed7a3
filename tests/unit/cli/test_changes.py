"""What `apply` says that it would change."""

from __future__ import annotations

import json

from appliance.cli.changes import Costs, lines, listed
from appliance.config.diff import changes
from appliance.config.model import Config, Engine, Gateway, Network, Timeouts

OLD = Config(engines=(Engine(name="chat", vllm={"max_model_len": 4096}),))
NEW = Config(
    gateway=Gateway(max_body=32 * 2**20, timeouts=Timeouts(drain=300.0)),
    network=Network(https_proxy="http://me:hunter2@proxy:3128"),
    engines=(Engine(name="chat", vllm={"max_model_len": 2048, "hf_token": "hf_secret"}),),
)


def test_values_stand_as_the_file_says_them() -> None:
    told = list(lines(changes(OLD, NEW)))
    assert 'gateway.max_body: "64MiB" -> "32MiB" (at once)' in told
    assert 'gateway.timeouts.drain: "60s" -> "5m" (at once)' in told
    assert "engine.vllm.max_model_len of chat: 4096 -> 2048 (by a restart)" in told


def test_passwords_and_tokens_are_not_shown() -> None:
    found = changes(OLD, NEW)
    told = "\n".join(lines(found))
    plan = json.dumps(listed(found, Costs({}, (), "", False)))
    assert "network.https_proxy" in told and "engine.vllm.hf_token of chat: new" in told
    for text in (told, plan):
        assert "hunter2" not in text and "hf_secret" not in text and "proxy:3128" in text
