"""When the SDKs try again, and when they do not: what the gateway and the engines behind it say of it is obeyed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.component.gateway.conftest import Start
from tests.support.gatewayprocess import MODEL, Gateway, config, remote
from tests.support.rawengine import RawEngine

MESSAGES: Any = [{"role": "user", "content": "hi"}]
BODY = b'{"error":{"message":"busy","type":"x","param":null,"code":"x"}}'


@pytest.fixture(scope="module")
def raw() -> Iterator[RawEngine]:
    made = RawEngine()
    made.then_close = True
    yield made
    made.close()


@pytest.fixture(scope="module")
def behind(raw: RawEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("retries"), config(remote(raw.url)))
    yield made
    made.kill()


def ask(gateway: Gateway, sdk: str, retries: int) -> None:
    """A call that is bound to fail."""
    if sdk == "openai":
        import openai

        with openai.OpenAI(base_url=gateway.base, api_key="sk-any", max_retries=retries, timeout=20) as client:
            client.chat.completions.create(model=MODEL, messages=MESSAGES)
    else:
        import anthropic

        base = f"http://127.0.0.1:{gateway.port}"
        with anthropic.Anthropic(base_url=base, api_key="sk-any", max_retries=retries, timeout=20) as client:
            client.messages.create(model=MODEL, max_tokens=5, messages=MESSAGES)


def refusal(status: int, fields: str) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(BODY)}\r\n{fields}\r\n"
    return head.encode() + BODY


@pytest.mark.slow
@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("status", "fields", "tries", "at_least"),
    [
        (503, "retry-after-ms: 900\r\nretry-after: 30\r\n", 2, 0.9),  # by itself it would wait half a second
        (429, "retry-after: 1\r\n", 2, 1.0),
        (503, "x-should-retry: false\r\nretry-after-ms: 1\r\n", 1, 0.0),
        (400, "x-should-retry: true\r\nretry-after-ms: 1\r\n", 2, 0.0),
        (400, "", 1, 0.0),
    ],
)
def test_what_an_engine_says_of_a_retry_is_obeyed(
    behind: Gateway, raw: RawEngine, sdk: str, status: int, fields: str, tries: int, at_least: float
) -> None:
    raw.answer = refusal(status, fields)
    before, begun = len(raw.requests), time.monotonic()
    with pytest.raises(Exception) as caught:  # each SDK has its own
        ask(behind, sdk, 1)
    assert getattr(caught.value, "status_code", None) == status
    assert len(raw.requests) - before == tries and time.monotonic() - begun >= at_least


@pytest.mark.slow
@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_an_engine_that_starts_is_asked_again_when_the_gateway_says(start: Start, sdk: str) -> None:
    gateway = start(config("[[engine]]\n"))
    gateway.engine_state("default", "loading")
    gateway.fleet(default={"state": "starting", "since": time.time(), "load_s": None})
    answer = gateway.request("POST", "/v1/chat/completions", {"model": MODEL, "messages": MESSAGES})
    assert (
        answer.status == 503
        and 0 < int(answer.headers["retry-after"]) <= 120
        and "x-should-retry" not in answer.headers
    )
    with pytest.raises(Exception) as caught:
        ask(gateway, sdk, 0)
    assert getattr(caught.value, "status_code", None) == 503
    hint: Any = getattr(caught.value, "response", None)
    assert int(hint.headers["retry-after-ms"]) > 0
