"""Token events as most engines send them: whole events in whole HTTP chunks, told by their frame and their last bytes.

What these looks do not know is not wrong, but has to be decoded.
"""

from __future__ import annotations

from typing import NamedTuple

from .chunked import whole_chunk
from .sse import Profile

SHORT = 4096  # bytes of the longest read that is looked up rather than read


def _opening(size: int) -> bytes:
    for digits in (1, 2, 3):
        payload = size - digits - 4  # without the two line ends of the frame
        if payload > 0 and len(line := b"%x" % payload) == digits:
            return line + b"\r\n"
    return b"-" * (size + 1)  # no chunk has this size: what is longer than the read begins none


# By the size of a read: how it begins if it is one chunk. To compare is cheaper than to read the number.
OPENINGS = tuple(map(_opening, range(SHORT)))


class Plain(NamedTuple):
    """So many bytes are whole chunks of whole events, with so many token events; `done`: the answer's last is there."""

    size: int
    events: int
    done: bool


def plain(data: bytes, profile: Profile) -> Plain:
    """How far these bytes, which begin a chunk, are what needs no decoding."""
    position = events = 0
    ended = False
    size, (suffixes, prefixes, done) = len(data), profile
    while position < size:
        start, end = whole_chunk(data, position)
        if not end:
            break
        if not data.endswith(suffixes, position, end):
            if not (done and data.startswith(done, position)):
                break
            ended = True
        elif prefixes and not (data.startswith(prefixes, start) and data.find(b"\n\n", start, end) == end - 4):
            break
        else:
            events += 1
        position = end
    return Plain(position, events, ended)
