"""What an answer used is counted wherever it is told, and where it is told nowhere."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

from appliance.host import keystore
from tests.component.gateway.conftest import Start
from tests.support.gatewayprocess import Gateway, Response, chat, config, remote
from tests.support.rawengine import RawEngine
from tests.support.waiting import clear_of_midnight, wait_until


def create(directory: Path) -> str:
    """A key without limits; its secret."""
    return keystore.create(str(directory / "keys.toml"), "lee", time.time())[1]


def ask(gateway: Gateway, secret: str, **fields: Any) -> Response:
    return gateway.request("POST", "/v1/chat/completions", chat(**fields), Authorization=f"Bearer {secret}")


def used(gateway: Gateway, beyond: int = 0) -> int:
    """Tokens that are counted today, of the one key, as soon as they are more than `beyond`."""

    def seen() -> int:
        found = sum(int(row["tokens_today"]) for row in gateway.admin("/status")["keys"]["use"])
        return found if found > beyond else 0

    return wait_until(seen, 5, "its use is counted", 0.02)


def whole(before: int, after: int) -> bytes:
    """An answer with its usage somewhere in it, and a text that looks like one on both sides."""
    decoy = b'"x \\"usage\\":{\\"prompt_tokens\\":0,\\"completion_tokens\\":0} %b"'
    used = b'{"prompt_tokens":7,"total_tokens":1007,"completion_tokens":1000,"prompt_tokens_details":null}'
    text, prompt = decoy % (b"x" * before), decoy % (b"y" * after)
    body = b'{"choices":[{"text":%b}],"usage":%b,"prompt_text":%b}' % (text, used, prompt)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def test_what_an_answer_used_is_counted_wherever_it_is_told(start: Start, tmp_path: Path) -> None:
    """A client may ask for so much behind it that it is far from the end."""
    clear_of_midnight(30)
    engine, told = RawEngine(), 0
    secret = create(tmp_path)
    gateway = start(config(remote(engine.url), auth=f'keys_file = "{tmp_path}/keys.toml"'))
    tails = (0, 1000, 65_300, 65_330, 65_360, 65_390, 65_400, 200_000)
    for before, after in itertools.product((0, 3990, 4000, 4050, 70_000, 200_000), tails):
        engine.answer = whole(before, after)
        assert ask(gateway, secret).status == 200
        assert used(gateway, told) == told + 1007, (before, after)
        told += 1007
    engine.close()


def test_a_stream_that_tells_no_usage_is_counted_by_its_events(start: Start, tmp_path: Path) -> None:
    clear_of_midnight(10)
    engine, secret = RawEngine(), create(tmp_path)
    gateway = start(config(remote(engine.url), auth=f'keys_file = "{tmp_path}/keys.toml"'))
    events = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n' * 500
    engine.answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + events + b"data: [DONE]\n\n"
    engine.then_close = True
    answer = ask(gateway, secret, stream=True)
    assert answer.status == 200 and answer.body.endswith(b"data: [DONE]\n\n")
    assert 500 <= used(gateway) < 550
    engine.close()
