"""A client's connection: aiohttp's request parser with three ears of our own.

It tells the pump of the running call when the client reads too slowly, when it catches up, and when it is gone, without
waiting for the handler's task to be cancelled.
"""

from __future__ import annotations

from typing import Protocol

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from appliance.errors import ApiError
from appliance.wire import apierror
from appliance.wire.openai import Shape

SERVER = "llm-appliance"  # instead of aiohttp's name and version
MAX_HEADERS = 128
MAX_LINE = 16384
KEEPALIVE = 75.0  # also the time that a connection has to send its first whole request head


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

    __slots__ = ("pump",)

    pump: Pump | None

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
        self._left()
        super().connection_lost(exc)

    def _left(self) -> None:
        pump, self.pump = self.pump, None
        if pump is not None:
            pump.client_left()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """A request that is no HTTP, or a fault of ours: one JSON body, and no page and no traceback to the client."""
        if status == 500:
            self.logger.error("a request failed", exc_info=exc)
            error = ApiError("engine_error", "the gateway failed on this request")
        else:
            error = ApiError("invalid_request", "this is not a well-formed HTTP request")
        if request.writer.output_size > 0:
            raise ConnectionError("a response has begun already")
        response = web.Response(
            status=status,
            body=apierror.error_body(error, Shape.OPENAI),
            content_type="application/json",
            headers={"Server": SERVER},
        )
        response.force_close()
        return response


class ClientServer(web.Server):
    """Makes a ClientConnection for each accepted socket."""

    def __call__(self) -> ClientConnection:
        connection = ClientConnection(
            self,
            loop=self._loop,
            keepalive_timeout=KEEPALIVE,
            access_log=None,  # type: ignore[arg-type]  # the ledger writes ours
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
            max_headers=MAX_HEADERS,
            lingering_time=5.0,
        )
        connection.pump = None
        return connection

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
