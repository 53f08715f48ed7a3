"""Connections to one engine: pooled, last in first out, over a unix socket or TCP.

An engine closes an idle connection after five seconds; the pool lets go of one after `IDLE_LIMIT`, so that a request
seldom meets a connection that is about to end. There is no limit on the number: admission holds that.

A request is written at the end of the turn of the loop, with those of other calls.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

from appliance import clock

from .turn import Turn

IDLE_LIMIT = 3.0
JOINED = 16384  # bytes of a body up to which it is copied behind its head; a larger one is not


class ConnectFailed(Exception):
    """The engine's socket does not answer; the text says why."""


class Late(ConnectFailed):
    """It may still be there, and busy: it did not answer in time."""


class Owner(Protocol):
    """Who uses a connection just now."""

    def engine_lost(self, connection: EngineConnection) -> None:
        """The connection ended."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where an engine listens. `path` is a unix socket; else `host`, `port`, with TLS where `tls`."""

    path: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False
    prefix: str = ""
    key: str = ""

    @property
    def authority(self) -> str:
        """The Host field."""
        if self.path:
            return "engine"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def opening(self, path: str) -> str:
        """How a request for a path begins: all that is the same each time."""
        key = f"authorization: Bearer {self.key}\r\n" if self.key else ""
        return f"POST {self.prefix}{path} HTTP/1.1\r\nhost: {self.authority}\r\n{key}"


def remote_target(url: str, key: str) -> Target:
    """The target of a `remote` URL."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    return Target("", parts.hostname or "", parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"), key)


class EngineConnection(asyncio.Protocol):
    """One connection; what it receives goes to `feed` of the owner, nothing is looked at here."""

    __slots__ = ("_request", "broke", "feed", "idle_since", "owner", "pool", "reused", "transport")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.transport: asyncio.Transport | None = None
        self.owner: Owner | None = None
        self.feed: Callable[[bytes], None] | None = None
        self._request: tuple[Callable[[bytes], None], Sequence[bytes | memoryview]] | None = None  # not written yet
        self.reused = False
        self.broke = False  # it was lost, where it could have been closed
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        feed = self.feed
        if feed is None:  # an engine that speaks unasked is out of step; an owner whose request waits hears of the end
            if self.transport is not None:
                self.transport.abort()
            return
        feed(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.transport, self.broke = None, exc is not None
        self.pool.forget(self)
        owner = self.owner
        self._let_go()
        if owner is not None:
            owner.engine_lost(self)

    def send(self, owner: Owner, feed: Callable[[bytes], None], request: Sequence[bytes | memoryview]) -> None:
        """Send a head and a body's pieces; what comes then goes to `feed`, and the end from now on to `owner`."""
        self.owner, self._request = owner, (feed, request)
        self.pool.turn.add(self._write)

    def _write(self) -> None:
        transport, waiting = self.transport, self._request
        if transport is None or waiting is None or transport.is_closing():  # it ended meanwhile, or its owner did
            return
        self.feed, request = waiting
        self._request = None
        if len(request) < 2 or len(request[1]) <= JOINED:
            transport.write(b"".join(request))
        else:
            transport.writelines(request)  # one call of the kernel, as far as its buffer takes it

    def _let_go(self) -> None:
        self.owner = self.feed = self._request = None

    def release(self, *, keep: bool) -> None:
        """The owner is done; the connection goes back to its pool or ends."""
        self._let_go()
        transport = self.transport
        # An engine that answered before it had read the whole request may never read the rest: then what comes next?
        if keep and transport is not None and not transport.is_closing() and not transport.get_write_buffer_size():
            transport.resume_reading()
            self.pool.give(self)
        else:
            self.abort()

    def abort(self) -> None:
        """End the connection at once: the engine sees it and stops its work for this call."""
        self._let_go()
        if self.transport is not None:
            self.transport.abort()


class Pool:
    """The connections of one target."""

    def __init__(self, target: Target, loop: asyncio.AbstractEventLoop) -> None:
        self.target = target
        self._loop = loop
        self.turn = Turn(loop)
        self._idle: deque[EngineConnection] = deque()
        self._closed = False
        self._tls = ssl.create_default_context() if target.tls else None

    def take(self) -> EngineConnection | None:
        """An idle connection that is still fresh; None when there is none. The oldest ones are let go on the way."""
        now = clock.monotonic()
        while self._idle and now - self._idle[0].idle_since > IDLE_LIMIT:
            self._idle.popleft().abort()
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                connection.reused = True
                return connection
        return None

    async def connect(self, deadline: float) -> EngineConnection:
        """A new connection within `deadline` seconds. Raises ConnectFailed, and Late of it."""
        connection = EngineConnection(self)
        target = self.target

        def factory() -> EngineConnection:
            return connection

        try:
            if target.path:
                await asyncio.wait_for(self._loop.create_unix_connection(factory, target.path), deadline)
            else:
                await asyncio.wait_for(
                    self._loop.create_connection(factory, target.host, target.port, ssl=self._tls), deadline
                )
        except (asyncio.TimeoutError, TimeoutError):
            connection.abort()
            raise Late(f"no connection within {deadline:g} s") from None
        except OSError as error:
            raise ConnectFailed(error.strerror or type(error).__name__) from None
        except BaseException:  # cancelled while it was being made
            connection.abort()
            raise
        if connection.transport is None:  # what dies with calls in its backlog takes them and says nothing
            raise ConnectFailed("the connection was closed at once")
        return connection

    def give(self, connection: EngineConnection) -> None:
        """Keep a connection for the next call, where one may come."""
        if self._closed:
            connection.abort()
            return
        connection.idle_since = clock.monotonic()
        self._idle.append(connection)

    def forget(self, connection: EngineConnection) -> None:
        """The connection ended; O(idle) only when it was idle, which the owner knows by having none."""
        if connection.owner is None and connection in self._idle:
            self._idle.remove(connection)

    def trim(self) -> None:
        """Let go of connections that have been idle too long; called now and then."""
        now = clock.monotonic()
        while self._idle and now - self._idle[0].idle_since > IDLE_LIMIT:
            self._idle.popleft().abort()

    def close(self) -> None:
        """End all idle connections, and from now on each that becomes idle."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()
