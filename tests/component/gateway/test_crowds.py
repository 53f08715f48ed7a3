"""More clients than the gateway has room for: those it serves are served on, the others are told so at once."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.gateway.conftest import Start
from tests.support.gatewayprocess import FakeEngine, Gateway, chat, config, dict_of, fault, remote
from tests.support.rawclient import connect, read_all
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"
STREAM = json.dumps(fault("gap=0.2,tokens=400", stream=True)).encode()


def post(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), size, body)


def is_overloaded(gateway: Gateway, setting: str) -> bool:
    """Whether one more is refused as it should be; nothing is refused silently."""
    answer = gateway.request("GET", "/healthz")
    if answer.status == 200:
        return False
    assert (answer.status, answer.code) == (503, "gateway_overloaded") and setting in answer.json["error"]["message"]
    assert 1 <= int(answer.headers["retry-after"]) <= 120 and "x-should-retry" not in answer.headers
    return True


@pytest.fixture
def small(engine: FakeEngine, start: Start) -> Gateway:
    return start(
        config(remote(engine.url), gateway='max_connections = 4\nmax_body = "40KiB"\nmax_bodies = "64KiB"'),
    )


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


def test_one_connection_too_many_is_told_so_and_nobody_is_cut_off(small: Gateway, stack: contextlib.ExitStack) -> None:
    streams = [stack.enter_context(connect(small.port)) for _ in range(4)]
    for one in streams:
        one.sendall(post(STREAM))
        assert one.recv(16) == b"HTTP/1.1 200 OK\r"
    assert is_overloaded(small, "gateway.max_connections")
    for one in streams:
        assert one.recv(1)  # they go on
    streams[0].close()
    wait_until(lambda: not is_overloaded(small, "gateway.max_connections"), 5, "a place is free", 0.02)


def test_an_idle_connection_makes_room_for_a_new_one(small: Gateway, stack: contextlib.ExitStack) -> None:
    kept = [http.client.HTTPConnection("127.0.0.1", small.port, timeout=10) for _ in range(3)]
    for one in kept:
        stack.callback(one.close)
        one.request("GET", "/healthz")
        assert one.getresponse().read()
    busy = stack.enter_context(connect(small.port))
    busy.sendall(post(STREAM))
    assert busy.recv(16) == b"HTTP/1.1 200 OK\r"
    # Idle for a moment only they are left alone: a request may be on its way.
    wait_until(lambda: not is_overloaded(small, "gateway.max_connections"), 10, "an idle one went", 0.1)
    assert kept[0].sock.recv(1) == b""  # the one that was idle for longest
    kept[2].request("GET", "/healthz")
    assert kept[2].getresponse().status == 200
    assert busy.recv(1)


def test_connections_beyond_all_bounds_are_cut(small: Gateway, stack: contextlib.ExitStack) -> None:
    for _ in range(4):
        stream = stack.enter_context(connect(small.port))
        stream.sendall(post(STREAM))
        assert stream.recv(16) == b"HTTP/1.1 200 OK\r"
    silent = [stack.enter_context(connect(small.port)) for _ in range(150)]

    def ended() -> int:
        return sum(bool(select.select([one], [], [], 0)[0]) for one in silent)

    wait_until(lambda: ended() >= 150 - 64, 5, "the rest is gone", 0.05)
    for one in silent:
        one.close()
    connections = lambda: small.admin("/status")["gateway"]["connections"]  # noqa: E731
    wait_until(lambda: connections() == 4, 5, "only the busy ones are left", 0.05)
    assert is_overloaded(small, "gateway.max_connections")


def test_bodies_that_fill_the_memory_are_refused_until_others_are_through(
    small: Gateway, stack: contextlib.ExitStack
) -> None:
    def slow(sent: int, length: int) -> socket.socket:
        connection = stack.enter_context(connect(small.port))
        connection.sendall(post(b" " * sent, length))
        return connection

    first, second = slow(5_000, 40_000), slow(20_000, 40_000)  # there is room for what either announces
    wait_until(lambda: small.metric("request_body_bytes") == 25_000, 5, "both have begun", 0.02)
    first.sendall(b" " * 25_000)
    wait_until(lambda: small.metric("request_body_bytes") == 50_000, 5, "both are counted", 0.02)
    refused = small.request("POST", CHAT, json.dumps(chat("x" * 20_000)))  # announces more than there is room for
    assert (refused.status, refused.code) == (503, "gateway_overloaded")
    assert "gateway.max_bodies" in refused.json["error"]["message"] and 1 <= int(refused.headers["retry-after"]) <= 120
    assert small.request("POST", CHAT, chat()).status == 200  # small ones fit

    second.sendall(b" " * 16_000)  # each would have fitted alone, together they are too many
    reply = read_all(second)
    assert reply.statuses == [503] and reply.error["code"] == "gateway_overloaded"
    first.close()
    wait_until(lambda: small.metric("request_body_bytes") == 0, 5, "all is given back", 0.02)
    assert small.request("POST", CHAT, json.dumps(chat("x" * 20_000))).status == 200


@pytest.mark.slow
def test_many_slow_bodies_take_no_more_memory_than_they_may(engine: FakeEngine, start: Start) -> None:
    gateway = start(config(remote(engine.url), gateway='max_body = "2MiB"\nmax_bodies = "8MiB"'))
    size, piece = 1 << 20, 1 << 15

    def peak() -> int:
        status = Path(f"/proc/{gateway.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    before = peak()
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(connect(gateway.port)) for _ in range(64)]
        for one in senders:
            one.sendall(post(b"", size))
        for _ in range(size // piece - 1):
            for one in senders:
                with contextlib.suppress(ConnectionError):  # refused, and it was too impatient to say so
                    one.sendall(b" " * piece)
            assert gateway.metric("request_body_bytes") <= 8 << 20  # asked in each round, so that none hurries ahead
        wait_until(lambda: gateway.admin("/status")["gateway"]["connections"] <= 10, 15, "the others are refused", 0.1)
    assert peak() - before < 40 << 20  # without the limit it is more than 64
    wait_until(lambda: gateway.metric("request_body_bytes") == 0, 5, "all is given back", 0.05)


def test_a_body_is_let_go_when_its_answer_begins(small: Gateway, stack: contextlib.ExitStack) -> None:
    large = {**fault("gap=0.3,tokens=400", stream=True), "user": "x" * 30_000}
    for _ in range(3):  # together more than the memory for bodies
        response = stack.enter_context(small.open("POST", CHAT, large))
        assert response.status == 200 and "x-engine" in dict_of(response) and response.read(10)
        wait_until(lambda: small.metric("request_body_bytes") == 0, 5, "the body is gone", 0.02)
    assert small.admin("/status")["gateway"]["running"] == 3
