"""Bodies and keys that are no sense: 400 or 401, in bounded time and memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.wire.openai import ROUTES
from tests.component.gateway.conftest import Start
from tests.support.gatewaylook import Watch, rss, settle
from tests.support.gatewayprocess import MODEL, FakeEngine, Gateway, config, remote
from tests.support.rawclient import send
from tests.support.rawrequests import CHAT, post

fuzz = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


READ = ("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5) | st.just(10**400)
    | st.sampled_from(["\ud800", "\0", MODEL, "x" * 70_000, -1, 1e308, {"include_usage": "yes"}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@pytest.mark.slow
@given(st.sampled_from(sorted(ROUTES)), st.sampled_from(READ), values)
@settings(fuzz, max_examples=150)
def test_a_wrong_type_in_any_field_is_400_or_the_engines_affair(
    gateway: Gateway, engine: FakeEngine, path: str, name: str, value: Any
) -> None:
    answer = gateway.request("POST", path, json.dumps({"model": MODEL, "max_tokens": 2, name: value}).encode())
    assert answer.status in (200, 400, 404), answer.body
    settle(gateway)


def call(inner: bytes) -> bytes:
    return b'{"model":"' + MODEL.encode() + b'","max_tokens":2,' + inner + b"}"


STRANGE: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 400),
    "no object": (b"[]", 400),
    "a word": (b"null", 400),
    "text behind it": (call(b'"a":1') + b"x", 400),
    "two objects": (call(b'"a":1') * 2, 400),
    "single quotes": (b"{'model':'m'}", 400),
    "a comma too many": (call(b'"a":1,'), 400),
    "NaN": (call(b'"temperature":NaN'), 400),
    "Infinity": (call(b'"a":{"b":[Infinity]}'), 400),
    "-Infinity": (call(b'"a":-Infinity'), 400),
    "a number beyond floats": (call(b'"temperature":1e999'), 200),
    "as a limit": (call(b'"max_tokens":1e999'), 400),
    "a limit of 401 digits": (call(b'"max_tokens":1' + b"0" * 400), 400),
    "the largest limit": (call(b'"max_output_tokens":2147483647'), 200),
    "a number of 5,000 digits": (call(b'"a":' + b"9" * 5000), 400),
    "no UTF-8": (call(b'"a":"\xff"'), 400),
    "half a character": (call(b'"a":"\xc3"'), 400),
    "a surrogate in UTF-8": (call(b'"a":"\xed\xa0\x80"'), 400),
    "UTF-16": (call(b'"a":1').decode().encode("utf-16"), 400),
    "a byte order mark": (b"\xef\xbb\xbf" + call(b'"a":1'), 400),
    "half an escaped pair in a prompt": (call(rb'"a":"\ud800"'), 200),
    "half an escaped pair in the model": (call(rb'"model":"\ud800"'), 400),
    "a raw control character": (call(b'"a":"\x01"'), 400),
    "a raw NUL": (call(b'"a":"\0"'), 400),
    "an escaped NUL": (call(rb'"a":"\u0000"'), 200),
    "depth 200": (call(b'"a":' + b"[" * 200 + b"]" * 200), 200),
    "depth 100,000": (call(b'"a":' + b"[" * 100_000 + b"]" * 100_000), 400),
    "model twice, the last one counts": (call(b'"model":"no"'), 404),
    "model twice, the other way": (b'{"model":"no","max_tokens":2,"model":"' + MODEL.encode() + b'"}', 200),
    "stream twice, the first no flag": (call(b'"stream":[],"stream":false'), 200),
    "a key that is empty": (call(b'"":""'), 200),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_json_is_refused_or_understood_as_vllm_does(gateway: Gateway, engine: FakeEngine, name: str) -> None:
    body, status = STRANGE[name]
    before = len(engine.log)
    for path in (CHAT.decode(), "/v1/embeddings", "/v1/messages", "/v1/responses"):
        answer = gateway.request("POST", path, body)
        assert answer.status == status, answer.body
        assert status == 200 or answer.json["error"]["message"]
    assert len(engine.log) - before == (4 if status == 200 else 0)
    settle(gateway)


BOMBS: dict[str, Callable[[], bytes]] = {  # made for their own tests alone: megabytes each
    "lists in lists": lambda: b"[" * 5_000_000,
    "objects in objects": lambda: b'{"a":' * 1_000_000,
    "many lists": lambda: b'{"model":"m","a":[' + b"[]," * 5_000_000 + b"0]}",
    "many objects": lambda: b'{"model":"m","a":[' + b'{"a":1},' * 2_000_000 + b"0]}",
    "lists without commas": lambda: b'{"model":"m","a":' + b'{"":[' * 400_000 + b"0",
    "as many numbers as are allowed": lambda: b'{"model":"m","a":[' + b"1234.5," * 499_990 + b"0]}",
    "as many lists as are allowed": lambda: b'{"model":"m","a":[' + b"[0,0,0]," * 249_990 + b"0]}",
    "many keys": lambda: b'{"model":"m"' + b"".join(b',"%d":0' % n for n in range(1_000_000)) + b"}",
    "a number of 10 MB": lambda: b'{"model":"m","a":' + b"9" * 10_000_000 + b"}",
    "a string of 16 MB": lambda: b'{"model":"m","a":"' + b"\\u0041" * 2_700_000 + b'"}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_others_are_served_meanwhile(gateway: Gateway, name: str) -> None:
    Path(f"/proc/{gateway.process.pid}/clear_refs").write_text("5")  # the peak is counted anew
    before, others, bomb = rss(gateway), Watch(gateway), BOMBS[name]()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            with others.call():
                gateway.request("GET", "/healthz")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answer = gateway.request("POST", CHAT.decode(), bomb)
    finally:
        done.set()
        watcher.join()
    grown = rss(gateway, "VmHWM") - before
    print(f"{name}: {answer.status}, others waited {others.slowest:.2f} s, memory grew by {grown:.0f} MiB, at most")
    assert answer.status in (400, 404)
    assert others.slowest < 3 and grown < 250
    settle(gateway)


@pytest.mark.slow
def test_a_key_of_any_bytes_is_401_and_in_no_log(engine: FakeEngine, start: Start, tmp_path: Path) -> None:
    gateway = start(config(remote(engine.url), auth=f'keys_file = "{tmp_path / "keys.toml"}"'))
    before = len(engine.log)
    keys = (
        b"Bearer \xff\xfeMARKED",
        b"Bearer " + b"MARKED" * 2000,
        b"Basic MARKED",
        b"Bearer",
        b"",
        b"MARKED",
        b"Bearer \xed\xa0\x80",
    )
    for key in keys:
        for field in (b"Authorization", b"X-Api-Key"):
            wire = post(b"%b: %b\r\nConnection: close\r\n" % (field, key))
            assert send(gateway.port, wire).statuses == [401], key
    assert send(gateway.port, post(b"Authorization: Bearer MARKED\r\nX: a\0\r\n")).statuses == [400]
    refused = send(gateway.admin_port, post(b"Authorization: Bearer MARKED\r\nX: a\0\r\n"))
    assert refused.data.startswith(b"HTTP/1.0 400")
    assert len(engine.log) == before
    assert gateway.stop() == 0
    assert "MARKED" not in gateway.text() and "Traceback" not in gateway.text()
