"""HTTP over a unix socket, for the standard library's client; `unixget` is for an event loop."""

from __future__ import annotations

import http.client
import socket


class UnixConnection(http.client.HTTPConnection):
    """A connection to the server that listens at `path`; each step blocks up to `timeout_s`."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Open the socket. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
