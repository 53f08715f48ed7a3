"""An engine that answers every call with bytes of the test's choosing, and notes what it was sent."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterable

HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


class RawEngine:
    """A thread for each connection. `answer` is what a call gets; with `then_close` the connection ends behind it."""

    def __init__(self) -> None:
        self.answer: bytes | Iterable[bytes] = b""
        self.metrics: bytes = HEALTHY
        self.then_close = False
        self.requests: list[bytes] = []  # heads of the calls, in order
        self.open: set[socket.socket] = set()  # connections that brought a call and have not ended
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(20)
                while self._one(connection):
                    pass
        finally:
            self.open.discard(connection)

    def _one(self, connection: socket.socket) -> bool:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return False
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        while length is not None and len(body) < int(length[1]):
            body += connection.recv(65536)
        if head.startswith(b"GET "):
            connection.sendall(self.metrics if head.startswith(b"GET /metrics") else HEALTHY)
            return False
        self.open.add(connection)
        self.requests.append(head)
        for piece in [self.answer] if isinstance(self.answer, bytes) else self.answer:
            connection.sendall(piece)
        return not self.then_close

    def close(self) -> None:
        """Accept no more."""
        self._listener.close()
