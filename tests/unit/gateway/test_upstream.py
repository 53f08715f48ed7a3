"""Connections to engines that are about to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from appliance.gateway.upstream import ConnectFailed, EngineConnection, Pool, Target


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
