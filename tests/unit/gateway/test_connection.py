"""A client's connection: the deadlines that no running call keeps."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from appliance import clock
from appliance.gateway.answer import Sent
from appliance.gateway.connection import ClientConnection, ClientServer


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.ended = ""
        self.unsent = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Quiet:
    """A pump that is never asked."""

    def client_left(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


def connected(begun: asyncio.Event | None = None) -> tuple[ClientServer, ClientConnection, Wire]:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        if begun is not None:
            begun.set()
            await asyncio.get_running_loop().create_future()
        return Sent(True)

    server, wire = ClientServer(handler, lambda text: None), Wire()
    connection = server()
    connection.connection_made(wire)
    return server, connection, wire


def test_an_answer_that_nobody_takes_ends_its_connection() -> None:
    async def run() -> None:
        server, connection, wire = connected()
        wire.unsent = 10
        for now in (0.0, 0.9):
            server.end_unread(now, 1)
        wire.unsent = 9  # something was taken
        for now in (1.1, 2.0):
            server.end_unread(now, 1)
        assert not wire.ended
        connection.pump = Quiet()  # a running call has deadlines of its own
        server.end_unread(9.0, 1)
        connection.pump = None
        for now in (9.1, 10.0):
            server.end_unread(now, 1)
        assert not wire.ended
        server.end_unread(10.2, 1)
        assert wire.ended == "aborted"
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_closed_connection_with_an_answer_left_is_ended_too() -> None:
    async def run() -> None:
        server, connection, wire = connected()
        wire.unsent = 10
        connection.force_close()
        assert wire.ended == "closed"
        for now in (0.0, 1.1):
            server.end_unread(now, 1)
        assert wire.ended == "aborted"
        connection.connection_lost(None)

    asyncio.run(run())


@pytest.mark.parametrize("data", [b"G", b"GET /x HTTP/1.1\r\nHost: x\r\nX: ", b"\r\n"])
def test_a_late_head_is_told_and_ended(data: bytes) -> None:
    async def run() -> None:
        server, connection, wire = connected()
        connection.data_received(data)
        begun = clock.monotonic()
        server.end_late_heads(begun + 0.5, 1)
        assert not wire.data
        connection.data_received({b"G": b"E", b"\r\n": data}.get(data, b"a"))  # a trickle moves no deadline
        server.end_late_heads(begun + 1.5, 1)
        assert wire.data.startswith(b"HTTP/1.1 400 ") and wire.ended == "closed"
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_request_that_is_answered_or_sends_its_body_is_no_late_head() -> None:
    async def run() -> None:
        begun = asyncio.Event()
        server, connection, wire = connected(begun)
        connection.data_received(b"POST / HT")
        connection.data_received(b"TP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        connection.data_received(b"abc")
        await asyncio.wait_for(begun.wait(), 5)
        connection.data_received(b"def")
        server.end_late_heads(clock.monotonic() + 99, 1)
        assert not wire.data and not wire.ended
        connection.connection_lost(None)

    asyncio.run(run())
