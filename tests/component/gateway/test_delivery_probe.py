"""The stream that the gateway makes itself, for judging what stands in front of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.component.gateway.conftest import Start
from tests.support.gatewayprocess import MODEL, FakeEngine, Gateway, config, remote
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"
NAME = "llm-appliance/delivery"


def probe(stream: bool = True, **plan: Any) -> dict[str, Any]:
    return {"model": NAME, "stream": stream, "messages": [], "delivery": {"interval_ms": 1, **plan}}


def told(event: bytes) -> dict[str, Any]:
    return dict(json.loads(event.removeprefix(b"data: "))["delivery"])


def test_events_name_their_moment_and_the_comments_before_them(chatty: Gateway) -> None:
    answer = chatty.request("POST", CHAT, probe(events=4, silence_ms=700), X_Forwarded_For="192.0.2.1")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
    *events, done = answer.events
    said = [told(event) for event in events]
    assert done == b"data: [DONE]" and [one["number"] for one in said] == [0, 1, 2, 3, 4]
    assert said[0]["seen"] == {"http": "1.1", "client": "127.0.0.1", "forwarded": "ignored"}
    assert said[-1]["comments"] == answer.comments == 3 + 3  # 700 ms, a comment each 200 ms
    assert [one["sent_ms"] for one in said] == sorted(one["sent_ms"] for one in said) and said[-1]["sent_ms"] > 700


def test_no_engine_is_asked_and_the_record_names_it(gateway: Gateway, engine: FakeEngine) -> None:
    before = len(engine.log)
    gateway.request("POST", CHAT, probe(events=1), X_Request_Id="probed")
    assert len(engine.log) == before
    wait_until(lambda: "request=probed" in gateway.text() and NAME in gateway.text(), 5, "its line", 0.05)


def test_a_large_body_arrives(gateway: Gateway) -> None:
    body = json.dumps({**probe(stream=False), "messages": "x" * 5_000_000}).encode()
    assert gateway.request("POST", CHAT, body).json["delivery"] == {"size": len(body)}


@pytest.mark.parametrize(
    "plan",
    [{"events": 201}, {"events": -1}, {"events": "x"}, {"events": True}, {"silence_ms": 1e9}, {"interval_ms": []}],
)
def test_a_plan_is_bounded(gateway: Gateway, plan: dict[str, Any]) -> None:
    answer = gateway.request("POST", CHAT, probe(**plan))
    assert answer.status == 400 and answer.json["error"]["param"] == "delivery"
    assert gateway.request("POST", CHAT, {**probe(), "delivery": [1]}).status == 400


def test_only_a_few_at_once(gateway: Gateway) -> None:
    held = [gateway.open("POST", CHAT, probe(events=1, silence_ms=60_000)) for _ in range(8)]
    entered = [one.__enter__() for one in held]
    try:
        assert all(one.status == 200 for one in entered)
        refused = gateway.request("POST", CHAT, probe(events=1))
        assert (refused.status, refused.code) == (429, "concurrency_limit") and refused.headers["retry-after"] == "10"
    finally:
        for one in held:
            one.__exit__(None, None, None)
    wait_until(lambda: gateway.request("POST", CHAT, probe(events=1)).status == 200, 5, "the clients have left", 0.05)


def test_a_key_is_needed(engine: FakeEngine, start: Start, tmp_path: Any) -> None:
    gateway = start(config(remote(engine.url), auth=f'keys_file = "{tmp_path / "keys.toml"}"'))
    assert gateway.request("POST", CHAT, probe()).status == 401


def test_a_gateway_that_stops_says_so(engine: FakeEngine, start: Start) -> None:
    gateway = start(config(remote(engine.url)))
    with gateway.open("POST", CHAT, probe(events=1, silence_ms=60_000)) as response:
        assert response.readline().startswith(b"data: ")
        gateway.process.terminate()
        rest = response.read()
    assert b"gateway_draining" in rest and b"[DONE]" not in rest
    assert gateway.process.wait(15) == 0


def test_it_is_no_model_of_the_list(gateway: Gateway) -> None:
    assert [one["id"] for one in gateway.request("GET", "/v1/models").json["data"]] == [MODEL]
