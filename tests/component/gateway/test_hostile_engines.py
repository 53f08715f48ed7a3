"""Engines that speak broken HTTP: the client gets an honest answer, and the connection is never used again."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import time
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.component.gateway.conftest import QUICK
from tests.support.gatewayprocess import Gateway, chat, config, remote
from tests.support.rawclient import connect
from tests.support.rawengine import RawEngine
from tests.support.rawrequests import post
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"
OK, SSE = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
CUT = (http.client.IncompleteRead, ConnectionResetError)  # what a client sees of a body that is cut off


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture(scope="module")
def raw() -> Iterator[RawEngine]:
    engine = RawEngine()
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def gateway(raw: RawEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("hostile"), config(remote(raw.url), gateway=QUICK + 'keepalive = "60s"\n'))
    yield made
    assert made.process.poll() is None, made.text()[-2000:]
    log = made.text()
    made.kill()
    assert "Traceback" not in log and "failed: " not in log, log[-3000:]


def settle(gateway: Gateway, raw: RawEngine) -> None:
    """Nothing is counted as running, and every connection that brought a call has ended."""
    assert wait_until(lambda: gateway.idle() and not raw.open, 5, "the slot and the connection are free", 0.02)


BROKEN_HEADS: dict[str, bytes | Iterable[bytes]] = {
    "two lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}x",
    "length and chunks": OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "negative length": OK + b"content-length: -2\r\n\r\n{}",
    "length of 5000 digits": OK + b"content-length: " + b"9" * 5000 + b"\r\n\r\n{}",
    "length that is a word": OK + b"content-length: two\r\n\r\n{}",
    "gzip coding": OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "gzip encoding": OK + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n\x1f\x8b",
    "chunks in HTTP/1.0": b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "injected by LF": OK + b"x-a: b\nset-cookie: evil=1\r\ncontent-length: 2\r\n\r\n{}",
    "injected by CR": OK + b"x-a: b\rset-cookie: evil=1\r\ncontent-length: 2\r\n\r\n{}",
    "NUL": OK + b"x-a: b\0c\r\ncontent-length: 2\r\n\r\n{}",
    "folded": OK + b"x-a: b\r\n c\r\ncontent-length: 2\r\n\r\n{}",
    "no colon": OK + b"content-length 2\r\n\r\n{}",
    "blank before the colon": OK + b"content-length : 2\r\n\r\n{}",
    "100,000 fields": OK + b"".join(b"x-%d: a\r\n" % n for n in range(100_000)) + b"\r\n{}",
    "65 fields": OK + b"x-a: b\r\n" * 65 + b"content-length: 2\r\n\r\n{}",
    "a field of 1 MB": OK + b"x-a: " + b"b" * 1_000_000 + b"\r\n\r\n{}",
    "upgrade": b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nbytes",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "HTTP/9.9": b"HTTP/9.9 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    "status 99": b"HTTP/1.1 099 X\r\ncontent-length: 2\r\n\r\n{}",
    "status 999": b"HTTP/1.1 999 X\r\ncontent-length: 2\r\n\r\n{}",
    "status of four digits": b"HTTP/1.1 2000 X\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "TLS alert": b"\x15\x03\x01\x00\x02\x02\x28",
    "a flood of 100 Continue": b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000,
    "100 Continue without end": [b"HTTP/1.1 100 Continue\r\n\r\n"] * 50,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BROKEN_HEADS)
def test_a_broken_head_is_502(gateway: Gateway, raw: RawEngine, name: str, stream: bool) -> None:
    raw.answer, raw.then_close, before = BROKEN_HEADS[name], False, len(raw.requests)
    answer = gateway.request("POST", CHAT, chat(stream=stream))
    assert (answer.status, answer.code) == (502, "engine_error")
    assert "set-cookie" not in answer.headers
    assert len(raw.requests) == before + 1  # an engine that answered has done its work: it is not asked twice
    settle(gateway, raw)


SILENT: dict[str, bytes] = {
    "half a head": OK + b"x-a: b",
    "head with bare LF": b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}",
    "nothing": b"",
    "early hints and nothing": b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n",
}


@pytest.mark.parametrize("name", SILENT)
def test_a_head_that_never_ends_has_a_deadline(gateway: Gateway, raw: RawEngine, name: str) -> None:
    raw.answer, raw.then_close = SILENT[name], False
    answer = gateway.request("POST", CHAT, chat())
    assert (answer.status, answer.code) == (504, "first_token_timeout")
    settle(gateway, raw)


def test_a_head_that_trickles_has_a_deadline(gateway: Gateway, raw: RawEngine) -> None:
    """Each byte is a sign of life, but no answer."""

    def trickle() -> Iterator[bytes]:
        for byte in itertools.chain(OK, itertools.cycle(b"x-a: b\r\n")):
            yield bytes([byte])
            time.sleep(0.02)

    raw.answer, raw.then_close = trickle(), False
    assert gateway.request("POST", CHAT, chat()).code == "first_token_timeout"
    settle(gateway, raw)


BROKEN_BODIES: dict[str, tuple[bytes, bool]] = {
    "negative chunk": (OK + b"transfer-encoding: chunked\r\n\r\n-1\r\nx", False),
    "chunk size over 64 bits": (OK + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\nx", False),
    "chunk size 0x": (OK + b"transfer-encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n", False),
    "chunk longer than said": (OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}{}\r\n0\r\n\r\n", False),
    "chunk with LF": (OK + b"transfer-encoding: chunked\r\n\r\n2\n{}\n0\n\n\r\n", False),
    "trailers without end": (
        OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"x-a: b\r\n" * 10_000, False,
    ),
    "chunks cut": (OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", True),
    "body shorter than said": (OK + b"content-length: 20\r\n\r\n{}", True),
    "body that stalls": (OK + b"content-length: 20\r\n\r\n{}", False),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_BODIES)
def test_a_broken_body_never_looks_whole(gateway: Gateway, raw: RawEngine, name: str) -> None:
    raw.answer, raw.then_close = BROKEN_BODIES[name]
    try:
        answer = gateway.request("POST", CHAT, chat())
    except CUT:
        pass
    else:
        assert answer.status in (502, 504), answer.body
    settle(gateway, raw)


def test_a_broken_body_never_looks_whole_without_chunks(gateway: Gateway, raw: RawEngine) -> None:
    """To a client of HTTP/1.0 the end of the connection is that of the answer."""
    raw.answer, raw.then_close = BROKEN_BODIES["chunks cut"]
    with connect(gateway.port) as client:
        client.sendall(post(version=b"HTTP/1.0"))
        with pytest.raises(ConnectionResetError):
            while client.recv(65536):
                pass
    settle(gateway, raw)


def test_half_a_body_never_looks_whole_to_a_client_that_sends_no_more(gateway: Gateway, raw: RawEngine) -> None:
    """It is taken for one that left, but may still read."""
    raw.answer, raw.then_close = BROKEN_BODIES["chunks cut"][0], False
    with connect(gateway.port) as client:
        client.sendall(post(version=b"HTTP/1.0"))
        data = b""
        while not data.endswith(b"{}"):
            data += client.recv(65536)
        client.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            client.recv(65536)
    settle(gateway, raw)


BROKEN_STREAMS: dict[str, tuple[bytes, bool]] = {
    "negative chunk": (b"-1\r\nx", False),
    "chunk size 0x": (b"0x%x\r\n%b\r\n" % (len(EVENT), EVENT), False),
    "chunk size +": (b"+%x\r\n%b\r\n" % (len(EVENT), EVENT), False),
    "chunk size _": (b"4_7\r\n" + EVENT, False),
    "chunk size over 64 bits": (b"f" * 17 + b"\r\nx", False),
    "half a line end": (b"%x;a\nb\r\n%b\r\n" % (len(EVENT), EVENT), False),
    "trailers without end": (b"0\r\n" + b"x-a: b\r\n" * 10_000, False),
    "no DONE": (b"0\r\n\r\n", False),
    "cut": (b"ff\r\ndata", True),
    "event without end": (chunk(b"data: " + b"x" * (17 << 20)), False),
    "no event but blanks": (chunk(b"\n"), False),
    "comments only": (chunk(b": x\n\n") * 50, False),
    "error nested without end": (chunk(b'data: {"error":' + b"[" * 100_000 + b"\n\n"), False),
    "half a surrogate": (chunk(b'data: {"error":{"message":"\\ud800"}}\n\n'), False),
}


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", BROKEN_STREAMS)
def test_a_broken_stream_never_looks_whole(gateway: Gateway, raw: RawEngine, name: str, begun: bool) -> None:
    wire, raw.then_close = BROKEN_STREAMS[name]
    raw.answer = SSE + b"transfer-encoding: chunked\r\n\r\n" + (chunk(EVENT) if begun else b"") + wire
    answer = gateway.request("POST", CHAT, chat(stream=True))
    assert b"[DONE]" not in answer.body
    if answer.status == 200:
        assert b'"error"' in answer.events[-1]
        assert answer.body.count(EVENT) <= 2
    else:
        assert answer.status in (502, 503, 504) and answer.json["error"]["message"]
    settle(gateway, raw)


TWO = b"content-length: 2\r\n\r\n{}"
WHOLE: dict[str, tuple[bytes, int, bytes]] = {
    "interim heads": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK + TWO, 200, b"{}",
    ),
    "trailers": (OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nset-cookie: evil=1\r\n\r\n", 200, b"{}"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", 200, b"{}"),
    "body up to the end of the connection": (OK + b"\r\n{}", 200, b"{}"),
    "no reason phrase": (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\n{}", 200, b"{}"),
    "body behind the length": (OK + TWO + OK + TWO, 200, b"{}"),
    "body on 204": (b"HTTP/1.1 204 No Content\r\n\r\nbody", 204, b""),
    "identity": (OK + b"content-encoding: identity\r\ncontent-length: 2\r\n\r\n{}", 200, b"{}"),
    "bytes behind the last chunk": (OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\nmore", 200, b"{}"),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_what_http_allows_passes_and_nothing_behind_it(gateway: Gateway, raw: RawEngine, name: str) -> None:
    wire, status, body = WHOLE[name]
    raw.answer, raw.then_close = wire, b"\r\n\r\n" not in wire or "end of" in name
    answer = gateway.request("POST", CHAT, chat())
    assert (answer.status, answer.body) == (status, body)
    assert "set-cookie" not in answer.headers
    assert (status == 204) is ("content-length" not in answer.headers and "transfer-encoding" not in answer.headers)
    if "behind" in name or status == 204:
        settle(gateway, raw)
    # The next call gets its own answer, and no byte that was left of this one.
    raw.answer, raw.then_close = OK + b"content-length: 5\r\nconnection: close\r\n\r\n[1,2]", True
    assert gateway.request("POST", CHAT, chat()).body == b"[1,2]"
    settle(gateway, raw)


@pytest.mark.parametrize(
    "text",
    [b"\xff\xfe", b"vllm:a{" * 10_000, b"\0" * 100,
     b"vllm:a NaN\nvllm:a{b=\"c\nvllm:b{} 1e999\n# TYPE\n# HELP vllm:\n"],
)  # fmt: skip
def test_metrics_that_are_none_cost_nobody_else_theirs(gateway: Gateway, raw: RawEngine, text: bytes) -> None:
    raw.metrics = OK + b"content-length: %d\r\n\r\n" % len(text) + text
    answer = gateway.request("GET", "/metrics", port=gateway.admin_port)
    assert answer.status == 200 and b"llm_appliance_in_flight" in answer.body


mutations = st.lists(
    st.tuples(
        st.integers(0, 400), st.sampled_from([b"\r\n", b"\n", b"\0", b"0", b"-", b":", b" ", b"\xff", b"\r\n\r\n", b""])
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@given(mutations, st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_mangled_answer_is_whole_or_an_error(
    gateway: Gateway, raw: RawEngine, changes: list[tuple[int, bytes]], stream: bool
) -> None:
    """Bytes put in or taken out anywhere: the gateway lives, the slot is free, and what is cut does not look whole."""
    if stream:
        wire = SSE + b"transfer-encoding: chunked\r\n\r\n" + chunk(EVENT) * 2 + chunk(DONE) + b"0\r\n\r\n"
    else:
        wire = OK + b'content-type: application/json\r\ncontent-length: 13\r\n\r\n{"text":"hi"}'
    for place, piece in changes:
        place %= len(wire)
        wire = wire[:place] + piece + wire[place + (piece == b"") :]
    raw.answer, raw.then_close = wire, True
    try:
        answer = gateway.request("POST", CHAT, chat(stream=stream))
    except CUT:
        pass
    else:
        if answer.status >= 500:
            json.loads(answer.body)
    settle(gateway, raw)
