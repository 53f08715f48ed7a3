"""The memory that request bodies take, all calls together: counted as bytes come, refused where they would be too many.

What a client announces is only asked about; what it has sent is counted, for a promise takes no memory. A body is
given back when the engine's answer has begun, since the call is not sent again from then on, or with its call.

What the process takes for them is more: 769 MiB at the limit of 512 MiB with a thousand clients that send 1 MiB slowly
(488 of them refused), 1.5 GB when all send at once as fast as they can, for what was received and not yet taken over.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.errors import ApiError

PIECE = 4096  # bytes from which a piece of a body is kept as it came; a small one takes more memory than it holds
WAIT = 5.0  # seconds to ask for: bodies go as fast as engines begin to answer, which nobody can promise


class Bodies:
    """What all shares hold."""

    def __init__(self) -> None:
        self.held = 0


class Share:
    """One call's part; given back once, however often that is asked."""

    __slots__ = ("_bodies", "size")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.size = 0

    def check(self, size: int, limit: int) -> None:
        """Raise ApiError where `size` more bytes would be more than `limit` for all."""
        held = self._bodies.held
        if held + size > limit:
            raise ApiError(
                "gateway_overloaded",
                f"request bodies take {held} of {limit} bytes (gateway.max_bodies), this one wants {size} more",
                retry_after=WAIT,
            )

    def grow(self, size: int, limit: int) -> None:
        """So many bytes more are held. Raises ApiError, and holds no more, where they are too many."""
        self.check(size, limit)
        self._bodies.held += size
        self.size += size

    def give_back(self) -> None:
        """Nothing is held any more."""
        self._bodies.held -= self.size
        self.size = 0


def keep(kept: list[bytes | bytearray], pieces: Iterable[bytes]) -> None:
    """Add to the pieces of a body that came before; small ones are put together."""
    for piece in pieces:
        if len(piece) >= PIECE:
            kept.append(piece)
        elif kept and isinstance(kept[-1], bytearray):
            kept[-1] += piece
        else:
            kept.append(bytearray(piece))


def too_large(limit: int) -> ApiError:
    """One body alone is more than a body may be."""
    return ApiError("request_too_large", f"the body is larger than {limit} bytes (gateway.max_body)")
