"""Clients that are slow, silent or many: each wait has an end, and memory has a bound."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest

from tests.component.gateway.hostile.wire import REFUSED
from tests.support.gatewaylook import Watch, rss, settle
from tests.support.gatewayprocess import FakeEngine, Gateway, fault
from tests.support.rawclient import connect, read_all, send
from tests.support.rawrequests import CHUNKED, LENGTH, get, post
from tests.support.waiting import wait_until


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
    assert (b"HTTP/1.1 400" in data or (piece and not data)) and 0.9 < seconds < 9


def test_a_second_head_has_a_deadline_too(gateway: Gateway) -> None:
    with connect(gateway.port) as connection:
        connection.sendall(get(b"/healthz"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /heal")
        reply = read_all(connection)
    assert reply.statuses == [400] and reply.seconds is not None and 0.9 < reply.seconds < 9


@pytest.mark.parametrize("fields", [LENGTH, CHUNKED])
def test_a_silent_body_has_a_deadline(gateway: Gateway, engine: FakeEngine, fields: bytes) -> None:
    before = len(engine.log)
    data, seconds = trickle(gateway.port, post(fields, b""), b"")
    assert b"HTTP/1.1 400" in data and b"did not arrive in time" in data and 0.9 < seconds < 9
    assert len(engine.log) == before
    settle(gateway)


@pytest.mark.slow
def test_a_trickling_body_has_a_deadline(gateway: Gateway, engine: FakeEngine) -> None:
    before = len(engine.log)
    data, seconds = trickle(gateway.port, post(b"Content-Length: 100000\r\n", b""), b"x")
    assert b"HTTP/1.1 400" in data and 9 < seconds < 17
    assert len(engine.log) == before
    settle(gateway)


def test_a_client_that_closes_its_half_is_gone(gateway: Gateway, engine: FakeEngine) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "reads"),
    [(b"", False), (b"", True), (post(CHUNKED, b""), False), (post(CHUNKED, b"", path=b"/nothing"), True)],
    ids=["requests", "requests and reads", "chunks of a byte", "chunks of a byte for nobody"],
)
def test_a_flood_costs_neither_memory_nor_the_others_their_time(gateway: Gateway, begin: bytes, reads: bool) -> None:
    before, watch = rss(gateway), Watch(gateway)
    flood = (b"1\r\n \r\n" if begin else get(b"/nothing")) * 10_000

    def ask() -> None:
        with contextlib.suppress(OSError):
            connection.sendall(begin)
            while True:
                connection.sendall(flood)

    with connect(gateway.port, receive=0 if reads else 4096) as connection:
        threads = [threading.Thread(target=ask), threading.Thread(target=read_all, args=(connection,))]
        for thread in threads[: 1 + reads]:
            thread.start()
        end = time.monotonic() + 2
        while time.monotonic() < end:
            with watch.call():
                assert send(gateway.port, get(b"/healthz", b"Connection: close\r\n")).statuses == [200]
        grown = rss(gateway) - before
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        for thread in threads[: 1 + reads]:
            thread.join()
    assert grown < 20 and watch.slowest < 2
    settle(gateway)


@pytest.mark.slow
def test_many_half_heads_are_let_go(gateway: Gateway) -> None:
    before = rss(gateway)
    held = [connect(gateway.port) for _ in range(300)]
    for connection in held:
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 15_000)
    for connection in held:
        assert read_all(connection, 8).seconds is not None
        connection.close()
    assert rss(gateway) - before < 60
