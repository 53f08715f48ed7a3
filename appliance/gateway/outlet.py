"""What is written to a client: at once, or at the end of the turn and before whatever follows."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios

from .turn import Turn

LAST_WORD = 2.0  # seconds that TLS waits for a client's last word, when it has all
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, and no time


class Outlet:
    """One connection's. Law: bytes leave in the order in which they were given.

    Nothing is written when the client has gone meanwhile: a closed transport takes no bytes. Whoever writes to the
    transport beside this calls `flush` first.
    """

    __slots__ = ("_late", "_timer", "_turn", "transport")

    def __init__(self, transport: asyncio.Transport, turn: Turn) -> None:
        self.transport = transport
        self._turn = turn
        self._late = b""
        self._timer: asyncio.TimerHandle | None = None

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
        if self._is_tls:
            self.lost()
            self._timer = asyncio.get_running_loop().call_later(LAST_WORD, self._end_silent)

    def _end_silent(self, *, again: bool = False) -> None:
        """A client that has all, and does not say that it has, is waited for no longer. It is looked at twice: the
        kernel may just be empty, with more to come."""
        if self.unsent:
            return
        if again:
            self.transport.abort()
        else:
            self._timer = asyncio.get_running_loop().call_later(0.1, lambda: self._end_silent(again=True))

    def lost(self) -> None:
        """The connection has ended: nothing holds its memory any longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _is_tls(self) -> bool:
        return self.transport.get_extra_info("sslcontext") is not None

    def end(self) -> None:
        """Nothing more is written; the client hears so, where the transport can say it."""
        self.flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    @property
    def unsent(self) -> int:
        """Bytes that wait for the client. TLS does not tell what waits behind its own buffer: as long as the kernel
        holds some, more may wait there."""
        transport = self.transport
        size = transport.get_write_buffer_size()
        if not size and self._is_tls:
            with contextlib.suppress(AttributeError, OSError):  # it ends just now
                place = transport.get_extra_info("socket").fileno()
                size = int.from_bytes(fcntl.ioctl(place, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        return size

    def cut(self) -> None:
        """End the connection with a reset: where its end alone would say that an answer is whole, half of one would
        look so."""
        with contextlib.suppress(AttributeError, OSError):  # it ends just now
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()

    def abort(self) -> None:
        """End the connection now, whatever the client has taken."""
        if self.transport.get_write_buffer_size():
            self.cut()
        else:
            self.transport.abort()

    def flush(self) -> None:
        """Write now what waits."""
        if self._late:
            self.write(b"")
