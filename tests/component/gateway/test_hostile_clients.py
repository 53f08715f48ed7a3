"""Clients that speak broken HTTP: a clean 4xx or a closed connection, nothing smuggled, nothing stuck, no traceback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.wire.openai import ROUTES
from tests.component.gateway.conftest import QUICK, Start
from tests.support.gatewayprocess import MODEL, FakeEngine, Gateway, chat, config, fault, remote
from tests.support.rawclient import connect, read_all, send
from tests.support.waiting import wait_until

CHAT = b"/v1/chat/completions"
BODY = json.dumps(chat()).encode()
CHUNKED = b"Transfer-Encoding: chunked\r\n"
QUICKER = QUICK.replace("connect =", 'head = "1s"\nbody = "1s"\nconnect =') + 'keepalive = "60s"\n'
fuzz = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def post(fields: bytes = b"", body: bytes = BODY, *, path: bytes = CHAT, version: bytes = b"HTTP/1.1") -> bytes:
    """A call; its length is told where `fields` say nothing of it."""
    framed = b"content-length" in fields.lower() or b"transfer-encoding" in fields.lower()
    length = b"" if framed else b"Content-Length: %d\r\n" % len(body)
    return b"POST %b %b\r\nHost: x\r\n%b%b\r\n%b" % (path, version, fields, length, body)


def get(path: bytes, fields: bytes = b"", version: bytes = b"HTTP/1.1", method: bytes = b"GET") -> bytes:
    return b"%b %b %b\r\nHost: x\r\n%b\r\n" % (method, path, version, fields)


def chunks(body: bytes = BODY, last: bytes = b"0\r\n\r\n") -> bytes:
    return b"%x\r\n%b\r\n%b" % (len(body), body, last)


LENGTH = b"Content-Length: %d\r\n" % len(BODY)
SMUGGLED = post(b"X-Request-Id: SMUGGLED\r\n")


@pytest.fixture(scope="module")
def gateway(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("clients"), config(remote(engine.url), gateway=QUICKER))
    yield made
    assert made.process.poll() is None, made.text()[-2000:]
    log = made.text()
    made.kill()
    assert "Traceback" not in log and "failed: " not in log, log[-3000:]
    assert not [entry for entry in engine.log if entry["headers"].get("x-request-id") == "SMUGGLED"]
    assert {entry["path"] for entry in engine.log} <= set(ROUTES)


def settle(gateway: Gateway) -> None:
    assert wait_until(gateway.idle, 5, "nothing runs and nothing waits", 0.02)


def rss(gateway: Gateway, field: str = "VmRSS") -> float:
    """Resident MiB of the process; with VmHWM the most there ever was."""
    text = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) / 1024


REFUSED = {
    "two lengths": post(LENGTH + b"Content-Length: 5\r\n"),
    "two equal lengths": post(LENGTH * 2),
    "a list of lengths": post(b"Content-Length: 5, 5\r\n"),
    "length and chunks": post(LENGTH + CHUNKED, chunks()),
    "chunks and length": post(CHUNKED + LENGTH, chunks()),
    "length 0 and chunks": post(b"Content-Length: 0\r\n" + CHUNKED, chunks(last=b"0\r\n\r\n" + SMUGGLED)),
    "length that hides a call behind chunks": post(b"Content-Length: 4\r\n" + CHUNKED, b"0\r\n\r\n" + SMUGGLED),
    "xchunked": post(b"Transfer-Encoding: xchunked\r\n", chunks()),
    "gzip, chunked": post(b"Transfer-Encoding: gzip, chunked\r\n", chunks()),
    "chunked, identity": post(b"Transfer-Encoding: chunked, identity\r\n", chunks()),
    "identity": post(b"Transfer-Encoding: identity\r\n"),
    "chunked twice": post(CHUNKED * 2, chunks()),
    "chunked behind a vertical tab": post(b"Transfer-Encoding:\x0bchunked\r\n", chunks()),
    "blank before the colon": post(b"Transfer-Encoding : chunked\r\n", chunks()),
    "blank before a harmless colon": post(b"X : a\r\n"),
    "chunks in HTTP/1.0": post(CHUNKED + b"Connection: keep-alive\r\n", chunks(), version=b"HTTP/1.0"),
    "bare LF": post().replace(b"\r\n", b"\n"),
    "bare LF between fields": post(b"X: a\nContent-Length: 5\r\n"),
    "bare CR between fields": post(b"X: a\rContent-Length: 5\r\n"),
    "folded": post(b"X: a\r\n b\r\n"),
    "folded first field": post().replace(b"Host", b" Host"),
    "no colon": post(b"Xa\r\n"),
    "no name": post(b": a\r\n"),
    "NUL": post(b"X: a\0b\r\n"),
    "a name that is no token": post(b"X\xff: a\r\n"),
    "length +5": post(b"Content-Length: +5\r\n"),
    "length -5": post(b"Content-Length: -5\r\n"),
    "length 0x5": post(b"Content-Length: 0x5\r\n"),
    "length 5_0": post(b"Content-Length: 5_0\r\n"),
    "no length": post(b"Content-Length: \r\n"),
    "length over 64 bits": post(b"Content-Length: 99999999999999999999999\r\n"),
    "the largest length of 64 bits": post(b"Content-Length: 18446744073709551615\r\n", path=b"/nothing"),
    "chunk size -1": post(CHUNKED, b"-1\r\nabc\r\n0\r\n\r\n"),
    "chunk size 0x5": post(CHUNKED, b"0x5\r\nabcde\r\n0\r\n\r\n"),
    "chunk size over 64 bits": post(CHUNKED, b"f" * 17 + b"\r\nabc"),
    "chunk longer than said": post(CHUNKED, b"3\r\nabcdef\r\n0\r\n\r\n"),
    "chunk longer than said, on no route": post(CHUNKED, b"3\r\nabcdef\r\n0\r\n\r\n", path=b"/nothing"),
    "chunk with LF": post(CHUNKED, b"3\nabc\n0\n\n"),
    "half a line end in an extension": post(CHUNKED, b"3;a\nb\r\nabc\r\n0\r\n\r\n"),
    "gzip body": post(b"Content-Encoding: gzip\r\n"),
    "gzip body on no route": post(b"Content-Encoding: gzip\r\n", path=b"/nothing"),
    "br body": post(b"Content-Encoding: br\r\n", b"\x8b\x02\x80"),
    "two hosts": get(b"/healthz", b"Host: y\r\n"),
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "HTTP/0.9 by name": get(b"/v1/models", version=b"HTTP/0.9"),
    "HTTP/2.0": get(b"/v1/models", version=b"HTTP/2.0"),
    "HTTP/1.2": get(b"/v1/models", version=b"HTTP/1.2"),
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS hello": bytes.fromhex("16030100f8010000f40303") + b"a" * 240,
    "NULs": b"\0" * 5000,
    "three words": b"foo bar baz\r\n\r\n",
    "method in small letters": get(b"/healthz", method=b"get"),
    "method without end": b"G" * 100_000,
    "CONNECT": get(b"h:443", method=b"CONNECT") + SMUGGLED,
    "CONNECT to a path": get(CHAT, method=b"CONNECT") + SMUGGLED,
    "CONNECT to a bad port": get(b"h:99999", method=b"CONNECT"),
    "old websocket": post(b"Sec-WebSocket-Key1: a\r\n"),
    "path of 100,000": get(b"/" + b"a" * 100_000),
    "a field of 1 MB": post(b"X: " + b"a" * 1_000_000 + b"\r\n"),
    "100,000 fields": post(b"".join(b"X-%d: a\r\n" % n for n in range(100_000))),
    "path that is no ASCII": get(b"/\xff\xfe"),
    "path with a control character": get(b"/\x01"),
    "path with a blank": get(b"/a b"),
    "no leading slash": get(CHAT[1:]),
    "another scheme without host": get(b"mailto:x"),
    "absolute, broken host": get(b"http://[::1" + CHAT),
    "absolute, bad port": get(b"http://h:99999" + CHAT),
    "absolute, no host": get(b"http://" + CHAT),
    "two content types": post(b"Content-Type: application/json\r\nContent-Type: text/plain\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_plain_http_is_400_and_the_end(gateway: Gateway, engine: FakeEngine, name: str) -> None:
    before = len(engine.log)
    # What comes behind it on the connection is never a request.
    reply = send(gateway.port, REFUSED[name] + SMUGGLED)
    assert reply.statuses == [400], reply.data[:300]
    assert reply.error["code"] == "invalid_request" and b"\r\nConnection: close\r\n" in reply.data
    assert reply.seconds is not None and reply.seconds < 7
    assert len(engine.log) == before
    settle(gateway)


@pytest.mark.parametrize("port", ["port", "admin_port"])
@pytest.mark.parametrize("name", ["two lengths", "TLS hello", "gzip body", "NULs", "HTTP/2.0", "chunk size -1"])
def test_both_listeners_refuse_alike(gateway: Gateway, name: str, port: str) -> None:
    reply = send(getattr(gateway, port), REFUSED[name])
    assert reply.statuses == [400] and reply.error["code"] == "invalid_request"


@pytest.mark.parametrize("path", [CHAT, b"/nothing", b"/v1/models", b"/healthz"])
@pytest.mark.parametrize("bad", [b"zz\r\n", b"3\r\nabcdef\r\n"])
def test_a_body_that_breaks_while_it_is_read(gateway: Gateway, engine: FakeEngine, path: bytes, bad: bytes) -> None:
    before = len(engine.log)
    with connect(gateway.port) as connection:
        connection.sendall(post(CHUNKED + b"Expect: 100-continue\r\n", b"2\r\n{}\r\n", path=path))
        seen = connection.recv(65536)  # the invitation, or the refusal: the request is being handled
        assert seen.startswith(b"HTTP/1.1 100 Continue" if path == CHAT else b"HTTP/1.1 ")
        connection.sendall(bad + SMUGGLED)
        reply = read_all(connection)
    assert set(reply.statuses) <= {400} and reply.seconds is not None and reply.seconds < 7
    assert len(engine.log) == before
    settle(gateway)


ALLOWED = {
    "plain": (post(), [200]),
    "an empty line before it": (b"\r\n\r\n" + post(), [200]),
    "chunks": (post(CHUNKED, chunks()), [200]),
    "chunk extensions": (post(CHUNKED, b"%x;a=b\r\n%b\r\n0;z\r\n\r\n" % (len(BODY), BODY)), [200]),
    "absolute": (post(path=b"http://elsewhere" + CHAT), [200]),
    "absolute with a password": (post(path=b"http://u:p@h" + CHAT), [200]),
    "query": (post(path=CHAT + b"?a=1&path=/sleep"), [200]),
    "a field that is no ASCII": (post(b"X: \xff\xfe\r\n"), [200]),
    "120 fields": (post(b"".join(b"X-%d: a\r\n" % n for n in range(120))), [200]),
    "expect": (post(b"Expect: 100-continue\r\n"), [200]),
    "expect something else": (post(b"Expect: banana\r\n"), [200]),
    "HTTP/1.0": (post(version=b"HTTP/1.0"), [200]),
    "upgrade to websocket": (post(b"Upgrade: websocket\r\nConnection: Upgrade\r\n"), [200]),
    "upgrade to h2c": (post(b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AA\r\n"), [200]),
    "a call as the body of a GET": (
        get(b"/v1/models", b"Content-Length: %d\r\n" % len(SMUGGLED)) + SMUGGLED + post(), [200, 200],
    ),
    "HEAD of a call": (get(CHAT, method=b"HEAD") + get(b"/healthz"), [405, 200]),
    "HEAD": (get(b"/healthz", method=b"HEAD") + get(b"/nothing", method=b"HEAD") + get(b"/healthz"), [200, 404, 200]),
    "OPTIONS": (get(CHAT, method=b"OPTIONS") + get(b"*", method=b"OPTIONS"), [405, 404]),
    "TRACE": (get(b"/healthz", method=b"TRACE"), [405]),
    "forty at once": (post() * 40, [200] * 40),
}  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
def test_what_http_allows_is_answered_in_order(gateway: Gateway, engine: FakeEngine, name: str) -> None:
    wire, statuses = ALLOWED[name]
    before = len(engine.log)
    last = b"" if name == "HTTP/1.0" else get(b"/v1/models/none", b"Connection: close\r\n")
    reply = send(gateway.port, wire + last)
    ends = name == "HTTP/1.0" or "upgrade" in name  # the connection, with the answer
    expected = statuses if ends else [*statuses, 404]
    assert reply.statuses == expected and reply.seconds is not None
    assert len(engine.log) - before == (name not in ("OPTIONS", "HEAD", "TRACE", "HEAD of a call")) * wire.count(
        BODY
    ) - (name == "a call as the body of a GET")
    settle(gateway)


CONTROL = ("/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache", "/v1/load_lora_adapter", "/metrics",
           "/load", "/start_profile", "/scale_elastic_ep", "/pause", "/update_weights",
           "/invocations", "/server_info")  # fmt: skip
SPELLINGS = ("{}", "/{}", "{}/", "/v1/..{}", "/v1/chat/completions/../../..{}", "/v1/models/..{}", "/v1/models/../..{}",
             "/%2e%2e{}", "/.{}", "/;{}", "http://engine{}", "//engine{}", "/v1/chat/completions?{}", "/v1/%2e%2e{}",
             "{}#/v1/chat/completions", "{}?/v1/chat/completions", "/v1/models/%2e%2e%2f..{}", "/v1\\..{}", "{}%00",
             "/v1/chat/completions%0d%0aX: {}", "/v1/chat/completions%20HTTP/1.1{}")  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_spelling_reaches_a_control_route(gateway: Gateway, engine: FakeEngine, spelling: str) -> None:
    before = len(engine.log)
    for route in CONTROL:
        spellings = {
            route,
            route.upper(),
            route.replace("/", "%2F"),
            route.replace("e", "%65"),
            route.replace("_", "%5f"),
        }
        for path in {spelling.format(one) for one in spellings}:
            for method in (b"GET", b"POST", b"PUT"):
                reply = send(gateway.port, get(path.encode(), b"Connection: close\r\n", method=method))
                assert reply.statuses and set(reply.statuses) <= {400, 404, 405}, (method, path, reply.data[:200])
    assert len(engine.log) == before


# --- time -----------------------------------------------------------------------------------------------------------
def trickle(port: int, begin: bytes, piece: bytes) -> tuple[bytes, float]:
    """Send `begin`, then `piece` every 50 ms until the peer ends the connection; what came, and after how long."""
    begun = time.monotonic()
    with connect(port) as connection:
        connection.sendall(begin)
        data = b""
        connection.settimeout(0.05)
        while time.monotonic() - begun < 18:
            try:
                got = connection.recv(65536)
                if not got:
                    return data, time.monotonic() - begun
                data += got
            except TimeoutError:
                try:
                    connection.sendall(piece)
                except ConnectionError:
                    continue
            except ConnectionError:
                return data, time.monotonic() - begun
    raise AssertionError(f"the connection was not ended within 18 s: {data[:200]!r}")


FIELD = b"POST /v1/models HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [(b"G", b""), (b"\r\n", b"\r\n"), (b"POST", b""), (FIELD, b""), (FIELD, b"X"), (FIELD, b"X: a\r\n")],
)
def test_a_head_has_a_deadline(gateway: Gateway, begin: bytes, piece: bytes) -> None:
    data, seconds = trickle(gateway.port, begin, piece)
    assert (b"HTTP/1.1 400" in data or (piece and not data)) and 0.9 < seconds < 4


def test_a_second_head_has_a_deadline_too(gateway: Gateway) -> None:
    with connect(gateway.port) as connection:
        connection.sendall(get(b"/healthz"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /heal")
        reply = read_all(connection)
    assert reply.statuses == [400] and reply.seconds is not None and 0.9 < reply.seconds < 4


@pytest.mark.parametrize("fields", [LENGTH, CHUNKED])
def test_a_silent_body_has_a_deadline(gateway: Gateway, engine: FakeEngine, fields: bytes) -> None:
    before = len(engine.log)
    data, seconds = trickle(gateway.port, post(fields, b""), b"")
    assert b"HTTP/1.1 400" in data and b"did not arrive in time" in data and 0.9 < seconds < 9
    assert len(engine.log) == before
    settle(gateway)


def test_a_trickling_body_has_a_deadline(gateway: Gateway, engine: FakeEngine) -> None:
    before = len(engine.log)
    data, seconds = trickle(gateway.port, post(b"Content-Length: 100000\r\n", b""), b"x")
    assert b"HTTP/1.1 400" in data and 9 < seconds < 17
    assert len(engine.log) == before
    settle(gateway)


def test_a_client_that_closes_its_half_is_gone(gateway: Gateway, engine: FakeEngine) -> None:
    import socket

    for wire in (
        post(b"X-Request-Id: half\r\n", json.dumps(fault("first=30")).encode()),
        post()[:-5],
        post()[:30],
        b"",
    ):
        with connect(gateway.port) as connection:
            connection.sendall(wire)
            if b"half" in wire:
                wait_until(lambda: engine.marked("half"), 5, "the call is at the engine", 0.02)
            connection.shutdown(socket.SHUT_WR)
            assert read_all(connection, 5).seconds is not None
        settle(gateway)
    assert wait_until(lambda: (engine.marked("half") or {}).get("aborted"), 5, "the engine is told", 0.02)


def test_a_client_that_never_reads_is_ended(gateway: Gateway, engine: FakeEngine) -> None:
    before = rss(gateway)
    held = [connect(gateway.port, receive=4096) for _ in range(5)]
    try:
        for connection in held:
            connection.sendall(post(b"", json.dumps(fault("tokens=4000,pad=4096", stream=True)).encode()))
        wait_until(lambda: gateway.admin("/status")["gateway"]["running"] > 0, 5, "they run", 0.01)
        wait_until(gateway.idle, 15, "nothing runs", 0.05)
        grown = rss(gateway) - before
    finally:
        for connection in held:
            connection.close()
    assert grown < 100


# --- memory ---------------------------------------------------------------------------------------------------------
def test_floods_cost_no_memory(gateway: Gateway) -> None:
    floods = [REFUSED["100,000 fields"], REFUSED["a field of 1 MB"], REFUSED["method without end"], b"\r\n" * 500_000,
              post(CHUNKED, (b"1;" + b"e" * 8000 + b"\r\n{\r\n") * 200), post() * 200]  # fmt: skip
    for flood in floods:  # once, to reach the height at which it stays
        send(gateway.port, flood + get(b"/", b"Connection: close\r\n"))
    before = rss(gateway)
    for flood in floods:
        for _ in range(2):
            send(gateway.port, flood + get(b"/", b"Connection: close\r\n"))
    settle(gateway)
    assert rss(gateway) - before < 30


def test_many_half_heads_are_let_go(gateway: Gateway) -> None:
    before = rss(gateway)
    held = [connect(gateway.port) for _ in range(300)]
    for connection in held:
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 15_000)
    for connection in held:
        assert read_all(connection, 8).seconds is not None
        connection.close()
    assert rss(gateway) - before < 60


# --- bodies ---------------------------------------------------------------------------------------------------------
READ = ("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5) | st.just(10**400)
    | st.sampled_from(["\ud800", "\0", MODEL, "x" * 70_000, -1, 1e308, {"include_usage": "yes"}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@given(st.sampled_from(sorted(ROUTES)), st.sampled_from(READ), values)
@settings(fuzz, max_examples=150)
def test_a_wrong_type_in_any_field_is_400_or_the_engines_affair(
    gateway: Gateway, engine: FakeEngine, path: str, name: str, value: Any
) -> None:
    answer = gateway.request("POST", path, json.dumps({"model": MODEL, "max_tokens": 2, name: value}).encode())
    assert answer.status in (200, 400, 404), answer.body
    settle(gateway)


@given(st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=3)), min_size=1, max_size=5), st.booleans())
@settings(fuzz, max_examples=200)
def test_a_mangled_request_is_served_or_refused(
    gateway: Gateway, changes: list[tuple[int, bytes]], chunked: bool
) -> None:
    wire = post(CHUNKED, chunks()) if chunked else post()
    for place, piece in changes:
        place %= len(wire)
        wire = wire[:place] + piece + wire[place + (piece == b"") :]
    with connect(gateway.port) as connection:
        connection.sendall(wire)
        reply = read_all(connection, 0.02)
    assert all(status < 500 for status in reply.statuses), reply.data
    settle(gateway)


@given(st.binary(max_size=400))
@settings(fuzz, max_examples=100)
def test_any_bytes_are_refused_or_waited_for(gateway: Gateway, data: bytes) -> None:
    with connect(gateway.port) as connection:
        connection.sendall(data + b"\r\n\r\n")
        reply = read_all(connection, 0.02)
    assert all(400 <= status < 500 for status in reply.statuses), reply.data
    settle(gateway)


BOMBS = {
    "lists in lists": b"[" * 5_000_000,
    "objects in objects": b'{"a":' * 1_000_000,
    "many lists": b'{"model":"m","a":[' + b"[]," * 5_000_000 + b"0]}",
    "many objects": b'{"model":"m","a":[' + b'{"a":1},' * 2_000_000 + b"0]}",
    "lists without commas": b'{"model":"m","a":' + b'{"":[' * 400_000 + b"0",
    "as many numbers as are allowed": b'{"model":"m","a":[' + b"1234.5," * 499_990 + b"0]}",
    "as many lists as are allowed": b'{"model":"m","a":[' + b"[0,0,0]," * 249_990 + b"0]}",
    "many keys": b'{"model":"m"' + b"".join(b',"%d":0' % n for n in range(1_000_000)) + b"}",
    "a number of 10 MB": b'{"model":"m","a":' + b"9" * 10_000_000 + b"}",
    "a string of 16 MB": b'{"model":"m","a":"' + b"\\u0041" * 2_700_000 + b'"}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_others_are_served_meanwhile(gateway: Gateway, name: str) -> None:
    Path(f"/proc/{gateway.process.pid}/clear_refs").write_text("5")  # the peak is counted anew
    before, slowest = rss(gateway), 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal slowest
        while not done.is_set():
            begun = time.monotonic()
            gateway.request("GET", "/healthz")
            slowest = max(slowest, time.monotonic() - begun)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answer = gateway.request("POST", CHAT.decode(), BOMBS[name])
    finally:
        done.set()
        watcher.join()
    grown = rss(gateway, "VmHWM") - before
    print(f"{name}: {answer.status}, others waited {slowest:.2f} s at most, memory grew by {grown:.0f} MiB at most")
    assert answer.status in (400, 404)
    assert slowest < 3 and grown < 250
    settle(gateway)


# --- keys -----------------------------------------------------------------------------------------------------------
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
    assert send(gateway.admin_port, post(b"Authorization: Bearer MARKED\r\nX: a\0\r\n")).statuses == [400]
    assert len(engine.log) == before
    assert gateway.stop() == 0
    assert "MARKED" not in gateway.text() and "Traceback" not in gateway.text()
