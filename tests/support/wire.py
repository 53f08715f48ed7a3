"""The far side of a connection without one: what is written to it, and how it was ended."""

from __future__ import annotations

import asyncio


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.ended = ""  # or "closed", "aborted"
        self.unsent = 0
        self.paused = self.at_end = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.at_end = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return bool(self.ended)

    @property
    def aborted(self) -> bool:
        return self.ended == "aborted"

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"
