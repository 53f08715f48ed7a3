"""The journal's end of its socket, for what a process in this one tells it."""

from __future__ import annotations

import socket
from pathlib import Path

from appliance.host.journal import Journal


class Listener:
    """Takes records; its queue is short, so one who tells much must be listened to meanwhile."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.journal = Journal("llm-supervisor", path=str(path))

    def entries(self) -> list[dict[str, str]]:
        """The records that came since the last call, each as its fields."""
        found: list[dict[str, str]] = []
        while True:
            try:
                record = self._socket.recv(65536).decode()
            except BlockingIOError:
                return found
            found.append(dict(line.split("=", 1) for line in record.splitlines()))

    def close(self) -> None:
        self.journal.close()
        self._socket.close()
