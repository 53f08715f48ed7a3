"""A client's connection: aiohttp's request parser with three ears of our own.

It tells the pump of the running call when the client reads too slowly, when it catches up, and when it is gone, without
waiting for the handler's task to be cancelled.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from aiohttp import StreamReader, web
from aiohttp.web_protocol import RequestHandler

from appliance import clock
from appliance.errors import ApiError
from appliance.wire import headers
from appliance.wire.openai import Shape

from .answer import Answer, Sent
from .faults import ServerLog

SERVER = "llm-appliance"  # instead of aiohttp's name and version
MAX_HEADERS = 128
MAX_LINE = 16384
KEEPALIVE = 75.0  # seconds that a connection may be idle, before its first request too
LINGER = 2.0  # seconds in which a client that still sends may take notice of its refusal
YOUNG = 1.0  # seconds for which an idle connection is not closed for another: it may have a request on its way
SPARE = 64  # connections beyond the limit that are still answered; more are cut off
CROWDED_WAIT = 2.0  # seconds that a client is asked to wait when there are too many


class Pump(Protocol):
    """What wants to know of the client."""

    def client_left(self) -> None:
        """The connection ended."""

    def pause(self) -> None:
        """The client's buffer is full."""

    def resume(self) -> None:
        """It has room again."""


class ClientConnection(RequestHandler):
    """One connection; at most one call runs on it at a time."""

    __slots__ = ("body", "heads", "idle", "is_surplus", "pump")

    body: StreamReader | None  # of the newest request
    pump: Pump | None
    heads: dict[ClientConnection, float]  # the server's: where a connection stands while it sends a request's head
    idle: dict[ClientConnection, float]  # the server's: since when it has had no request
    is_surplus: bool  # one more than there may be, when it came

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.pump is not None:
            self.pump.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.pump is not None:
            self.pump.resume()

    def eof_received(self) -> None:
        """A client that sends no more is gone: the transport closes behind this call."""
        self._left()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.heads.pop(self, None)
        self.idle.pop(self, None)
        self._left()
        super().connection_lost(exc)

    def _left(self) -> None:
        pump, self.pump = self.pump, None
        if pump is not None:
            pump.client_left()

    def data_received(self, data: bytes) -> None:
        self.idle.pop(self, None)
        super().data_received(data)
        if self._messages:
            self.body = self._messages[-1][1]
            self.heads.pop(self, None)
        elif not self._request_in_progress and (self.body is None or self.body.is_eof()):
            self.heads.setdefault(self, clock.monotonic())  # no message came of these bytes: a head has begun

    def head_is_late(self) -> None:
        """The request's head took too long: say so, and end."""
        transport = self.transport
        if transport is not None and not self._request_in_progress and not self._messages:
            answer = _answer(transport)
            answer.refuse(ApiError("invalid_request", "the head of the request did not arrive in time"))
            self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """A request that is no HTTP, or a fault of ours: one JSON body, and no page and no traceback to the client."""
        if status == 500:
            self.logger.error("a request failed", exc_info=exc)
            error = ApiError("engine_error", "the gateway failed on this request")
        else:
            error = ApiError("invalid_request", "this is not a well-formed HTTP request")
        return refused(request, error)


def refused(request: web.BaseRequest, error: ApiError) -> Sent:
    """Answer with an error and let the connection end."""
    if request.transport is not None:
        _answer(request.transport).refuse(error)
    return Sent(False)


def _answer(transport: asyncio.Transport) -> Answer:
    return Answer(
        transport, shape=Shape.OPENAI, request_id=secrets.token_hex(16), http11=True, keep_alive=False, extra=[]
    )


class ClientServer(web.Server):
    """Makes a ClientConnection for each accepted socket, and asks of each request whether its framing is plain.

    At its limit of connections, a new one takes the place of the one that has been idle for longest; where none is, it
    is answered 503. They do not wait in the kernel's backlog instead: there nobody would tell them for how long.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        report: Callable[[str], None],
        *,
        handler_cancellation: bool = False,
        most: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        super().__init__(self._checked, handler_cancellation=handler_cancellation)
        self._handler, self._most = handler, most
        self._idle: dict[ClientConnection, float] = {}  # longest first
        self._log = ServerLog(report)
        self._heads: dict[ClientConnection, float] = {}  # connections in a request's head, oldest first
        self._unread: dict[RequestHandler, tuple[int, float]] = {}  # bytes that wait for a client, and since when

    async def _checked(self, request: web.BaseRequest) -> web.StreamResponse:
        fault = headers.request_fault(request.method, (request.version.major, request.version.minor), request.headers)
        if fault:
            return refused(request, ApiError("invalid_request", fault))
        connection = cast(ClientConnection, request.protocol)
        if connection.is_surplus and len(self._connections) > self._most():
            text = f"all {self._most()} connections are in use (gateway.max_connections)"
            return refused(request, ApiError("gateway_overloaded", text, retry_after=CROWDED_WAIT))
        try:
            return await self._handler(request)
        finally:
            if connection.transport is not None and not connection._messages:
                self._idle[connection] = clock.monotonic()

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Count a connection; one too many takes an idle one's place, or will be refused."""
        super().connection_made(handler, transport)
        connection = cast(ClientConnection, handler)
        surplus = len(self._connections) - self._most()
        connection.is_surplus = surplus > 0 and not self._end_idle()
        self._idle[connection] = clock.monotonic()
        if connection.is_surplus and surplus > SPARE:
            transport.abort()

    def _end_idle(self) -> bool:
        """Close the connection that has been idle for longest; False when none has been for long enough."""
        connection, since = next(iter(self._idle.items()), (None, 0.0))
        if connection is None or clock.monotonic() - since < YOUNG:
            return False
        del self._idle[connection]
        connection.force_close()
        return True

    def __call__(self) -> ClientConnection:
        connection = ClientConnection(
            self,
            loop=self._loop,
            keepalive_timeout=KEEPALIVE,
            logger=self._log,  # type: ignore[arg-type]  # all of a logger that aiohttp's server uses
            access_log=None,  # type: ignore[arg-type]  # the ledger writes ours
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
            max_headers=MAX_HEADERS,
            lingering_time=LINGER,
            auto_decompress=False,
        )
        connection.pump = connection.body = None
        connection.heads, connection.idle = self._heads, self._idle
        connection.is_surplus = False
        return connection

    def end_late_heads(self, now: float, limit: float) -> None:
        """End connections whose request head is not whole after `limit` seconds; costs nothing for the others."""
        while self._heads:
            connection, since = next(iter(self._heads.items()))
            if now - since <= limit:
                return
            del self._heads[connection]
            connection.head_is_late()

    def end_unread(self, now: float, limit: float) -> None:
        """End connections whose answer is complete, but whose client has taken nothing of it for `limit` seconds.

        To close such a connection is not enough: that waits for what is unsent.
        """
        before, self._unread = self._unread, {}
        for connection, transport in self._connections.items():
            unsent = transport.get_write_buffer_size()
            if not unsent or getattr(connection, "pump", None) is not None:  # a running call has deadlines of its own
                continue
            size, since = before.get(connection, (unsent, now))
            if size == unsent and now - since > limit:
                transport.abort()
            else:
                self._unread[connection] = (unsent, since if size == unsent else now)

    def busy(self) -> int:
        """Connections with a request that is read, waits or is answered."""
        return sum(bool(one._request_in_progress or one._messages) for one in self.connections)

    def close_idle(self) -> int:
        """Close connections without a running request; returns how many are left."""
        busy = 0
        for connection in self.connections:
            if connection._request_in_progress or connection._messages:
                busy += 1
            elif connection.transport is not None:
                connection.force_close()
        return busy
