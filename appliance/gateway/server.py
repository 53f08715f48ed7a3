"""All connections of one listener: how many there may be, and when one that only waits is ended.

At its limit, a new connection takes the place of the one that has been idle for longest; where none is, it is answered
503. They do not wait in the kernel's backlog instead: there nobody would tell them for how long. Deadlines are looked
at now and then, all together: a request sets no timer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from appliance import clock
from appliance.errors import ApiError
from appliance.wire.requesthead import RequestHead, RequestHeads

from .connection import ClientConnection
from .outlet import LAST_WORD
from .turn import Turn

KEEPALIVE = 75.0  # seconds that a connection may be idle, before its first request too
YOUNG = 1.0  # seconds for which an idle connection is not closed for another: it may have a request on its way
SPARE = 64  # connections beyond the limit that are still answered; more are cut off
CROWDED_WAIT = 2.0  # seconds that a client is asked to wait when there are too many
BODY_LIMIT = 10  # times the limit of a silence: the longest time for a whole body


class ClientServer:
    """Makes a connection for each accepted socket, and gives each request's head to `handle`."""

    def __init__(
        self, handle: Callable[[ClientConnection, RequestHead], None], *, most: Callable[[], int] = lambda: sys.maxsize
    ) -> None:
        self.handle, self._most = handle, most
        self.reader = RequestHeads()
        self.turn = Turn(asyncio.get_running_loop())
        self.connections: set[ClientConnection] = set()
        self.idle: dict[ClientConnection, float] = {}  # longest first
        self.heads: dict[ClientConnection, float] = {}  # oldest first
        self.bodies: dict[ClientConnection, float] = {}
        self._unread: dict[ClientConnection, tuple[int, float]] = {}  # bytes that wait for a client, and since when

    def __call__(self) -> ClientConnection:
        return ClientConnection(self)

    def made(self, connection: ClientConnection) -> None:
        """Count a connection; one too many takes an idle one's place, or will be refused."""
        self.connections.add(connection)
        surplus = len(self.connections) - self._most()
        connection.is_surplus = surplus > 0 and not self._end_idle()
        if connection.is_surplus and surplus > SPARE and connection.outlet is not None:
            connection.outlet.transport.abort()

    def lost(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)

    def is_crowded(self) -> ApiError | None:
        """Why a connection that was one too many is not served; None where there is room by now."""
        if len(self.connections) <= self._most():
            return None
        text = f"all {self._most()} connections are in use (gateway.max_connections)"
        return ApiError("gateway_overloaded", text, retry_after=CROWDED_WAIT)

    def _end_idle(self) -> bool:
        """Close the connection that has been idle for longest; False when none has been for long enough."""
        connection, since = next(iter(self.idle.items()), (None, 0.0))
        if connection is None or clock.monotonic() - since < YOUNG:
            return False
        del self.idle[connection]
        connection.close()
        return True

    # --- deadlines ------------------------------------------------------------------------------------------------
    def end_late(self, now: float, head: float, body: float) -> None:
        """End connections that wait too long for a request, for the rest of its head (`head` seconds) or its body
        (`body` seconds of silence); costs nothing for the others."""
        while self.idle:
            connection, since = next(iter(self.idle.items()))
            if now - since <= KEEPALIVE:
                break
            del self.idle[connection]
            connection.close()
        while self.heads:
            connection, since = next(iter(self.heads.items()))
            if now - since <= head:
                break
            del self.heads[connection]
            connection.refuse(ApiError("invalid_request", "the head of the request did not arrive in time"))
        for connection in list(self.bodies):
            connection.end_late_body(now, body, body * BODY_LIMIT)

    def fail_bodies(self, error: ApiError) -> None:
        """Answer those requests whose bodies are not here yet."""
        for connection in list(self.bodies):
            connection.fail_body(error)

    def end_unread(self, now: float, limit: float) -> None:
        """End connections whose answer is complete, but whose client has taken nothing of it for `limit` seconds; and
        those of TLS that are closed, but whose client does not say so.

        To close such a connection is not enough: that waits for what is unsent, and for TLS's last word.
        """
        before, self._unread = self._unread, {}
        for connection in list(self.connections):
            outlet = connection.outlet
            if outlet is None or connection.job is not None:  # a running call has its own deadlines
                continue
            unsent = outlet.unsent
            if not unsent and not outlet.transport.is_closing():
                continue
            size, since = before.get(connection, (unsent, now))
            if size == unsent and now - since > (limit if unsent else LAST_WORD):
                outlet.abort()
            else:
                self._unread[connection] = (unsent, since if size == unsent else now)

    # --- the end --------------------------------------------------------------------------------------------------
    def is_read(self) -> bool:
        """Whether clients have taken all that was written to them."""
        return not any(each.outlet is not None and each.outlet.unsent for each in self.connections)

    def close_idle(self) -> int:
        """Close connections without a request; returns how many are left."""
        busy = 0
        for connection in list(self.connections):
            if connection.is_busy:
                busy += 1
            else:
                connection.close()
        return busy

    def close(self) -> None:
        """Close all, when what was written to them is sent."""
        for connection in list(self.connections):
            connection.close()

    def abort(self) -> None:
        """Cut off those whose clients did not take what was written."""
        for connection in list(self.connections):
            if connection.outlet is not None:
                connection.outlet.abort()
