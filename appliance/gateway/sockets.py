"""All sockets on which the gateway listens: from systemd, from the process before, or its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from appliance import names
from appliance.config.model import Gateway
from appliance.host.places import Places

from .listeners import Listener, adopt, bind, unix_socket
from .tasks import Tasks

PUBLIC, ADMIN, CONTROL = "public", "admin", "control"  # the first two: FileDescriptorName= of the socket units
Factory = Callable[[], asyncio.Protocol]


@dataclass(frozen=True, slots=True)
class Servers:
    """What makes a protocol for a connection of each kind."""

    public: Factory
    admin: Factory
    control: Factory


class Sockets:
    """The listeners. `kept`: systemd holds the public ones too, so what connects while nobody accepts waits there."""

    def __init__(self, run: str, tasks: Tasks, report: Callable[[str], None]) -> None:
        places = Places(run=run)
        self._control_path = places.under_run(names.GATEWAY_SOCKET)
        self._handover_path = places.under_run(names.GATEWAY_HANDOVER_SOCKET)
        self._tasks, self._report = tasks, report
        self.public: list[Listener] = []
        self.admin: list[Listener] = []
        self.control: list[Listener] = []
        self.kept = False
        self._ours = True  # the paths

    def open(
        self,
        gateway: Gateway,
        passed: Mapping[str, list[int]],
        servers: Servers,
        tls: ssl.SSLContext | None,
        handshake: Callable[[], float],
    ) -> None:
        """Listen where descriptors were passed, else where the configuration says. Raises Failed."""

        def listeners(made: list[socket.socket], factory: Factory, tls: ssl.SSLContext | None = None) -> list[Listener]:
            return [Listener(one, factory, self._tasks, self._report, tls, handshake if tls else None) for one in made]

        public = adopt(passed.get(PUBLIC, [])) or [bind(address) for address in gateway.listen]
        admin = adopt(passed.get(ADMIN, [])) or [bind(gateway.admin_listen)]
        control = adopt(passed.get(CONTROL, []))
        if not control and (made := self._unix(self._control_path, 0o117, names.GROUP)):
            control = [made]
        self.public = listeners(public, servers.public, tls)
        self.admin = listeners(admin, servers.admin)
        self.control = listeners(control, servers.control)

    def handover(self) -> socket.socket | None:
        """The socket to which processes that came before tell what they hold; None where it cannot be had."""
        return self._unix(self._handover_path, 0o177)

    def _unix(self, path: str, mask: int, group: str = "") -> socket.socket | None:
        try:
            return unix_socket(path, mask, group)
        except OSError as error:
            self._report(f"a socket is missing: {path}: {error.strerror}")
            return None

    @property
    def handover_path(self) -> str:
        """Where `handover` listens."""
        return self._handover_path

    @property
    def all(self) -> list[Listener]:
        return [*self.public, *self.admin, *self.control]

    def start(self) -> None:
        """Accept (again)."""
        for listener in self.all:
            listener.start()

    def stop(self) -> None:
        """Accept no more; what connects waits."""
        for listener in self.all:
            listener.stop()

    def descriptors(self) -> list[tuple[str, int]]:
        """All of them for another process."""
        kinds = ((PUBLIC, self.public), (ADMIN, self.admin), (CONTROL, self.control))
        return [(name, one.socket.fileno()) for name, listeners in kinds for one in listeners]

    def leave(self) -> None:
        """They are another process's now."""
        self._ours = False
        self.close()

    def close(self) -> None:
        """Let go of all; our own paths go as well."""
        for listener in self.all:
            listener.close()
        if self._ours:
            for path in (self._control_path, self._handover_path):
                with contextlib.suppress(OSError):
                    os.unlink(path)
