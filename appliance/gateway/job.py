"""A request that is being handled, as its connection sees it."""

from __future__ import annotations

from typing import Protocol

from appliance.errors import ApiError


class Job(Protocol):
    """What the connection tells."""

    def received(self, size: int) -> None:
        """So many bytes of its body came. Raises ApiError where they are too many."""

    def body(self, data: bytes) -> None:
        """Its body is whole."""

    def body_failed(self, error: ApiError) -> None:
        """Its body is late, too large or broken; no more of it comes."""

    def client_left(self) -> None:
        """The connection ended."""

    def pause(self) -> None:
        """The client's buffer is full."""

    def resume(self) -> None:
        """It has room again."""
