"""What is written to a client: at once, or at the end of the turn and before whatever follows."""

from __future__ import annotations

import asyncio

from .turn import Turn


class Outlet:
    """One connection's. Law: bytes leave in the order in which they were given.

    Nothing is written when the client has gone meanwhile: a closed transport takes no bytes. Whoever writes to the
    transport beside this calls `flush` first.
    """

    __slots__ = ("_late", "_turn", "transport")

    def __init__(self, transport: asyncio.Transport, turn: Turn) -> None:
        self.transport = transport
        self._turn = turn
        self._late = b""

    def write(self, data: bytes) -> None:
        """Write now: each write is a call into the kernel."""
        if self._late:
            data, self._late = self._late + data, b""
        if not self.transport.is_closing():
            self.transport.write(data)

    def write_late(self, data: bytes) -> None:
        """Write at the end of the turn."""
        is_first = not self._late
        self._late += data
        if is_first:
            self._turn.add(self.flush)

    def close(self) -> None:
        """Close the connection when all is sent."""
        self.flush()
        self.transport.close()

    def end(self) -> None:
        """Nothing more is written; the client hears so, where the transport can say it."""
        self.flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def flush(self) -> None:
        """Write now what waits."""
        if self._late:
            self.write(b"")
