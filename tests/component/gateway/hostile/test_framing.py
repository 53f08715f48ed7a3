"""Clients that speak broken HTTP: a clean 4xx or a closed connection, nothing smuggled, nothing stuck, no traceback."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.component.gateway.hostile.wire import REFUSED
from tests.support.gatewaylook import settle
from tests.support.gatewayprocess import FakeEngine, Gateway
from tests.support.rawclient import connect, read_all, send
from tests.support.rawrequests import BODY, CHAT, CHUNKED, SMUGGLED, chunks, get, post

fuzz = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


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


@pytest.mark.parametrize("name", ["two lengths", "TLS hello", "gzip body", "NULs", "chunk size -1"])
def test_the_admin_listener_refuses_too(gateway: Gateway, name: str) -> None:
    """In aiohttp's words; nothing is passed on from there."""
    reply = send(gateway.admin_port, REFUSED[name] + SMUGGLED)
    assert reply.data.startswith((b"HTTP/1.0 400", b"HTTP/1.1 405")), reply.data[:300]
    assert reply.seconds is not None and reply.seconds < 7
    assert b" 200 " not in reply.data
    assert "Traceback" not in gateway.text()


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


@pytest.mark.parametrize("path", [CHAT, b"/nothing", b"/v1/models", b"/healthz"])
@pytest.mark.parametrize("expect", [b"100-continue", b"100-continue, more"])
def test_an_answer_instead_of_the_invitation_is_the_last_one(gateway: Gateway, path: bytes, expect: bytes) -> None:
    """Its client may send the body, or the next request: to take the one for the other would answer somebody else."""
    fields = b"Expect: %b\r\nContent-Length: %d\r\n" % (expect, 1 << 40)
    reply = send(gateway.port, post(fields, b"", path=path) + SMUGGLED + get(b"/healthz"))
    assert len(reply.statuses) == 1 and b"\r\nConnection: close\r\n" in reply.data, reply.data
    assert reply.seconds is not None and reply.seconds < 4
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


@pytest.mark.slow
@given(st.binary(max_size=400))
@settings(fuzz, max_examples=100)
def test_any_bytes_are_refused_or_waited_for(gateway: Gateway, data: bytes) -> None:
    with connect(gateway.port) as connection:
        connection.sendall(data + b"\r\n\r\n")
        reply = read_all(connection, 0.02)
    assert all(400 <= status < 500 for status in reply.statuses), reply.data
    settle(gateway)
