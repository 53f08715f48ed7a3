"""Whether a call that an engine dropped is sent again, and when clients are asked to come back.

Only before the first byte of a body and only while nothing of one was delivered: the engine may have begun to work
(it sends a stream's head at once), but nobody has seen it. A pooled connection that the engine had closed meanwhile
says nothing of the engine, so it costs no retry. Everything else is sent again once; a second loss is an engine in
trouble, and more copies would not help it. A call under which an engine has crashed before is not sent to the next one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import ceil
from zlib import crc32

RESENDS = 1
SPREAD = 0.15  # of a wait that many clients are told at once
LONGEST = 120.0  # seconds; OpenAI's SDK does not retry at all when asked to wait longer
SHARED = frozenset({"queue_full", "queue_timeout"})  # refusals of 429 that come in crowds, as those of 503 do


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
    suspect: bool = False  # an engine has crashed before with this call in flight


def after_loss(loss: Loss) -> Next:
    """What to do with the call."""
    if loss.delivered or loss.answered or (loss.suspect and loss.connected):
        return Next.GIVE_UP
    if loss.reused:
        return Next.FRESH
    return Next.OTHER if loss.resent < RESENDS else Next.GIVE_UP


@dataclass(frozen=True, slots=True)
class Hint:
    """What a refused client is told: whole seconds, milliseconds (None: nothing), and not to try again."""

    seconds: int | None
    milliseconds: int | None
    never: bool


def hint(status: int, code: str, wait: float | None, word: str, *, final: bool) -> Hint:
    """The hints of a refusal. `wait` is in seconds; `word`, the call's id, says where in the spread it comes.

    All that an engine's end turns away at once would else come back at once, for SDKs obey to the millisecond.
    """
    if wait is None:
        return Hint(None, None, final)
    if not final and wait <= LONGEST and (status == 503 or code in SHARED):
        wait = min(wait * (1 + SPREAD * crc32(word.encode()) / 2**32), LONGEST)
    return Hint(max(ceil(wait), 1), ceil(wait * 1000), final or wait > LONGEST)
