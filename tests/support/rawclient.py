"""A client that sends bytes as they are and reads what comes until the connection ends."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any

_STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d) [A-Z][A-Za-z ]+\r\n")


class Reply:
    """All that came back. `statuses` without interim ones; `seconds` until the connection ended, None if it did not."""

    def __init__(self, data: bytes, seconds: float | None) -> None:
        self.data, self.seconds = data, seconds

    @property
    def statuses(self) -> list[int]:
        return [int(code) for code in _STATUS.findall(self.data) if code != b"100"]

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.data.rpartition(b"\r\n\r\n")[2])["error"])


def connect(port: int, *, receive: int = 0) -> socket.socket:
    """A connection; `receive` bounds what the kernel takes for a client that does not read."""
    connection = socket.socket()
    if receive:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", port))
    return connection


def read_all(connection: socket.socket, limit: float = 20) -> Reply:
    """Everything until the peer ends the connection, or `limit` seconds."""
    begun, data = time.monotonic(), b""
    connection.settimeout(limit)
    try:
        while piece := connection.recv(1 << 20):
            data += piece
            connection.settimeout(max(begun + limit - time.monotonic(), 0.01))
    except TimeoutError:
        return Reply(data, None)
    except ConnectionError:
        pass
    return Reply(data, time.monotonic() - begun)


def send(port: int, data: bytes, *, limit: float = 20) -> Reply:
    """Send bytes and read the rest. A peer that closes while we still send is heard all the same."""
    with connect(port) as connection:
        try:
            connection.sendall(data)
        except ConnectionError:
            pass
        return read_all(connection, limit)
