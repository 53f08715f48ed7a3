"""Whether a call that an engine dropped is sent again.

Only before the first byte of a body and only while nothing of one was delivered: the engine may have begun to work
(it sends a stream's head at once), but nobody has seen it. A pooled connection that the engine had closed meanwhile
says nothing of the engine, so it costs no retry. Everything else is sent again once; a second loss is an engine in
trouble, and more copies would not help it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

RESENDS = 1


class Next(enum.Enum):
    """What to do after a loss."""

    FRESH = "fresh"  # the same replica, on a new connection
    OTHER = "other"  # another replica if one has room, else the same
    GIVE_UP = "give-up"


@dataclass(frozen=True, slots=True)
class Loss:
    """A connection that ended before its answer did."""

    connected: bool  # False: the connect itself failed
    reused: bool  # the connection had carried an earlier call
    answered: bool  # at least one byte of a body came back
    delivered: bool  # at least one byte of the answer went to the client
    resent: int  # how often this call was sent again before


def after_loss(loss: Loss) -> Next:
    """What to do with the call."""
    if loss.delivered or loss.answered:
        return Next.GIVE_UP
    if loss.reused:
        return Next.FRESH
    return Next.OTHER if loss.resent < RESENDS else Next.GIVE_UP
