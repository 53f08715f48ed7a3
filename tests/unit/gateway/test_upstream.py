"""Connections to engines that are about to end, and requests that wait for the end of the turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from appliance.gateway.upstream import JOINED, ConnectFailed, EngineConnection, Pool, Target
from tests.support.wire import Wire


class Loop:
    """Its connections end before whoever asked for one is told of it, as in a backlog whose process dies."""

    async def create_unix_connection(self, factory: Callable[[], EngineConnection], _path: str) -> Any:
        connection = factory()
        transport = asyncio.Transport()
        connection.connection_made(transport)
        connection.connection_lost(None)
        return transport, connection

    async def create_connection(self, factory: Callable[[], EngineConnection], *_where: Any, **_more: Any) -> Any:
        return await self.create_unix_connection(factory, "")


@pytest.mark.parametrize("target", [Target(path="/x"), Target(host="h", port=1)])
def test_a_connection_that_ended_at_once_is_none(target: Target) -> None:
    async def connect() -> None:
        with pytest.raises(ConnectFailed, match="closed at once"):
            await Pool(target, cast(asyncio.AbstractEventLoop, Loop())).connect(1.0)

    asyncio.run(connect())


class Stage:
    """A connection with an owner, whose request waits."""

    def __init__(self, request: tuple[bytes, ...] = (b"HEAD ", b"BODY")) -> None:
        self.engine = Wire()
        self.heard = b""
        self.is_lost = False
        self.connection = EngineConnection(Pool(Target(path="/x"), asyncio.get_running_loop()))
        self.connection.connection_made(self.engine)
        self.connection.send(self, self.feed, request)

    def feed(self, data: bytes) -> None:
        self.heard += data

    def engine_lost(self, connection: EngineConnection) -> None:
        assert connection is self.connection
        self.is_lost = True


@pytest.mark.parametrize("size", [0, JOINED, JOINED + 1, 1 << 20])
def test_a_request_is_written_whole_at_the_end_of_the_turn(size: int) -> None:
    async def run() -> None:
        stage = Stage((b"HEAD ", b"x" * size, b"}"))
        assert stage.engine.data == b""
        await asyncio.sleep(0)
        assert stage.engine.data == b"HEAD " + b"x" * size + b"}"
        stage.connection.data_received(b"an answer")
        assert stage.heard == b"an answer"

    asyncio.run(run())


def test_what_an_engine_says_before_it_was_asked_is_nobodys_answer() -> None:
    """It is another call's, or of an engine that went mad; and the one that waits must hear that its engine went."""

    async def run() -> None:
        stage = Stage()
        stage.connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
        assert stage.engine.aborted and stage.heard == b""
        stage.connection.connection_lost(None)
        assert stage.is_lost
        await asyncio.sleep(0)
        assert stage.engine.data == b"" and stage.heard == b""

    asyncio.run(run())


def test_a_call_that_ends_in_the_same_turn_is_never_sent() -> None:
    async def run() -> None:
        stage = Stage()
        stage.connection.release(keep=False)
        await asyncio.sleep(0)
        assert stage.engine.data == b"" and stage.engine.aborted and not stage.is_lost

    asyncio.run(run())


def test_a_connection_that_ended_in_the_same_turn_is_not_written_to() -> None:
    async def run() -> None:
        stage = Stage()
        stage.engine.ended = "closed"  # as a transport that closes: its end is told in the next turn
        await asyncio.sleep(0)
        assert stage.engine.data == b""
        stage.connection.connection_lost(None)
        assert stage.is_lost

    asyncio.run(run())


def test_a_pool_that_nobody_asks_any_more_keeps_no_connection() -> None:
    """Its engine has another place by now, or none; the calls that it has go on."""

    async def run() -> None:
        stage = Stage()
        await asyncio.sleep(0)
        stage.connection.pool.close()
        assert not stage.engine.ended
        stage.connection.release(keep=True)
        assert stage.engine.aborted

    asyncio.run(run())
