"""Listening sockets: those that systemd passed, or our own; and an accept loop that empties the backlog at once.

libuv accepts one connection in a turn of the loop, so a busy loop lets new clients wait for seconds. Here a readable
listener is drained; a listener that is closed or kept is a decision of the caller, since systemd's outlive us.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import os
import select
import socket
import ssl
from collections.abc import Callable
from typing import Any

from appliance.errors import Failed
from appliance.host.ports import port_owner

from .tasks import Tasks

BACKLOG = 4096
BATCH = 128  # connections accepted before other work gets its turn
# Seconds in which TLS must have ended a connection, what is unsent included: as good as none. A client may be slow, and
# who has all and does not say its last word is ended by its `Outlet`, or by `ClientServer.end_unread`.
TLS_END = 86400.0
PAUSE = 0.1  # seconds to stop accepting when descriptors have run out


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[V6]:PORT`."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def bind(address: str) -> socket.socket:
    """A listening socket. Raises Failed; a taken port is named with its owner."""
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise Failed(f"{address}: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            owner = port_owner(port)
            raise Failed(
                f"{address} is taken" + (f" by {owner}" if owner else " by another program"),
                hint="stop that program, or change gateway.listen or gateway.admin_listen",
            ) from None
        raise Failed(f"{address}: {(error.strerror or str(error)).lower()}") from None
    return listener


def unix_socket(path: str, mask: int, group: str = "") -> socket.socket | None:
    """A listening unix socket in the place of whatever is there; None where its directory is missing. Raises OSError.

    `mask` is taken from its mode; `group` may open it, where it exists and the socket is ours to give.
    """
    if not os.path.isdir(os.path.dirname(path)):
        return None
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(mask)
    try:
        listener.bind(path)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    if group:
        with contextlib.suppress(KeyError, OSError):
            os.chown(path, -1, grp.getgrnam(group).gr_gid)
    return listener


def adopt(descriptors: list[int]) -> list[socket.socket]:
    """Sockets from descriptors that the service manager passed."""
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


class Listener:
    """Accepts on one socket and hands each connection to a protocol factory."""

    def __init__(
        self,
        listener: socket.socket,
        factory: Callable[[], asyncio.Protocol],
        tasks: Tasks,
        report: Callable[[str], None],
        tls: ssl.SSLContext | None = None,
        handshake: Callable[[], float] | None = None,
    ) -> None:
        """`handshake`, which comes with `tls`, gives the seconds in which both sides must agree on it."""
        self.socket, self._handshake = listener, handshake
        self._factory, self._tasks, self._report, self._tls = factory, tasks, report, tls
        self._loop = asyncio.get_running_loop()
        self._accepting = self._stopped = self._troubled = False
        self._name = listener.getsockname()  # told in `status` after the socket was closed, too
        self._accepted = 0
        self._waited: int | None = None  # `_accepted` at the last look, when a connection waited then
        listener.setblocking(False)

    @property
    def address(self) -> str:
        """Where it listens, as people write it."""
        name = self._name
        if isinstance(name, tuple):
            return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        return str(name)

    def start(self) -> None:
        """Accept from now on."""
        self._stopped = False
        if not self._accepting:
            self._accepting = True
            self._loop.add_reader(self.socket.fileno(), self._accept)

    def stop(self) -> None:
        """Accept no more; connections that wait stay in the backlog for whoever holds the socket next."""
        self._stopped = True
        self._pause()

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self.socket.fileno())

    def retire(self, *, keep: bool) -> None:
        """Accept no more; a socket that nobody takes over is emptied first and then closed."""
        if keep:
            self.stop()
        else:
            self._accept()
            self.close()

    def close(self) -> None:
        """Accept no more and let go of the socket; a second call does nothing."""
        if self.socket.fileno() >= 0:
            self.stop()
            self.socket.close()

    def _accept(self) -> None:
        for _ in range(BATCH):
            try:
                connection, _peer = self.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if not self._troubled:  # told once, not ten times a second
                    self._report(f"no connection can be accepted on {self.address}: {(error.strerror or '').lower()}")
                self._troubled = True
                self._pause()
                self._loop.call_later(PAUSE, self._resume)
                return
            self._troubled = False
            self._accepted += 1
            connection.setblocking(False)
            self._tasks.start(self._connect(connection), "accept")

    def _resume(self) -> None:
        if self.socket.fileno() >= 0 and not self._stopped:
            self.start()

    async def _connect(self, connection: socket.socket, *, plain: bool = False) -> None:
        tls: dict[str, Any] = {}
        if self._handshake is not None and not plain:
            tls = {"ssl": self._tls, "ssl_handshake_timeout": self._handshake(), "ssl_shutdown_timeout": TLS_END}
        try:
            await self._loop.connect_accepted_socket(self._factory, connection, **tls)
        except (OSError, asyncio.TimeoutError, TimeoutError):  # a handshake that failed is the client's affair
            connection.close()

    # --- whether it works -----------------------------------------------------------------------------------------
    def stuck(self, *, calls_run: bool) -> bool:
        """Whether connections wait as at the last look, and none was accepted between the two.

        Without free descriptors nothing can be accepted; while calls run, that is load and no fault.
        """
        if self._stopped or self.socket.fileno() < 0 or (self._troubled and calls_run):
            self._waited = None
            return False
        poll = select.poll()
        poll.register(self.socket.fileno(), select.POLLIN)
        before, self._waited = self._waited, self._accepted if poll.poll(0) else None
        return self._waited is not None and before == self._waited

    async def ask(self, request: bytes) -> bytes:
        """The first bytes of the answer to a request, over a pair of sockets and all that is behind accepting."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        with ours:
            await self._connect(theirs, plain=True)
            await self._loop.sock_sendall(ours, request)
            return await self._loop.sock_recv(ours, 4096)
