"""Anthropic's SDK against the gateway: messages, tools, counting, errors in its own shape, also within a stream.

The SDK is imported by the tests that use it: it takes more than a second, in each process that collects this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.component.gateway.conftest import Start
from tests.support.gatewayprocess import MODEL, FakeEngine, Gateway, config, remote
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import anthropic

ASK: Any = {"model": MODEL, "max_tokens": 6, "messages": [{"role": "user", "content": "hi"}]}
TOOL: Any = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}


def asked(script: str) -> Any:
    return {**ASK, "messages": [{"role": "user", "content": f"[[fault:{script}]]"}]}


@pytest.fixture
def client(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(
        base_url=f"http://127.0.0.1:{gateway.port}", api_key="sk-any", max_retries=0, timeout=20
    ) as made:
        yield made


def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASK)
    assert "Paris" in message.content[0].text and message.usage.output_tokens == 6
    with client.messages.stream(**ASK) as stream:
        assert "Paris" in "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.usage.output_tokens == 6 and final.stop_reason == "end_turn"


def test_a_tool_is_called_and_told_its_result(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASK, tools=[TOOL])
    call = message.content[0]
    assert message.stop_reason == "tool_use" and (call.name, call.input) == ("weather", {"city": "Paris", "days": 7})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    turns = [*ASK["messages"], {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    assert "Paris" in client.messages.create(**{**ASK, "messages": turns}, tools=[TOOL]).content[0].text


def test_a_tool_is_called_in_a_stream(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**ASK, tools=[TOOL]) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert len(pieces) > 2 and final.content[0].input == {"city": "Paris", "days": 7}


def test_tokens_are_counted_without_an_answer(client: anthropic.Anthropic) -> None:
    assert client.messages.count_tokens(model=MODEL, messages=ASK["messages"], tools=[TOOL]).input_tokens == 7


def test_errors_are_the_sdk_s_own(client: anthropic.Anthropic) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**{**ASK, "model": "no"})
    body: Any = missing.value.body
    assert body["type"] == "error" and body["error"]["type"] == "not_found_error"
    assert missing.value.request_id is None or missing.value.request_id
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**ASK, "max_tokens": -1})
    with pytest.raises(anthropic.BadRequestError, match="scripted status 400"):
        client.messages.create(**asked("status=400"))


def test_a_key_that_is_none(engine: FakeEngine, start: Start, tmp_path: Any) -> None:
    import anthropic

    gateway = start(config(remote(engine.url), auth=f'keys_file = "{tmp_path}/keys.toml"'))
    base = f"http://127.0.0.1:{gateway.port}"
    # As x-api-key, and as a bearer token, which Claude Code sends for ANTHROPIC_AUTH_TOKEN.
    for how in ({"api_key": "sk-wrong"}, {"auth_token": "sk-wrong"}):
        with (
            anthropic.Anthropic(base_url=base, max_retries=0, **how) as client,  # type: ignore[arg-type]
            pytest.raises(anthropic.AuthenticationError) as refused,
        ):
            client.messages.create(**ASK)
        body: Any = refused.value.body
        assert body["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("break_", ["reset=4", "error=4", "eof=4"])
def test_a_broken_stream_raises(client: anthropic.Anthropic, gateway: Gateway, break_: str) -> None:
    import anthropic

    with pytest.raises(anthropic.APIStatusError), client.messages.stream(**asked(break_)) as stream:
        list(stream.text_stream)
    answer = gateway.request("POST", "/v1/messages", {**asked(break_), "stream": True})
    assert answer.events[-1].startswith(b'event: error\ndata: {"type":"error"') and b"message_stop" not in answer.body


def test_a_stream_that_is_left_ends_the_engine_s_work(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    with client.messages.stream(**asked("stall=4"), extra_headers={"X-Request-Id": "left-messages"}) as stream:
        assert next(iter(stream))
    wait_until(lambda: (engine.marked("left-messages") or {}).get("aborted"), 10, "it is ended", 0.02)
