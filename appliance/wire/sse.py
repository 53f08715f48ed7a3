"""Server-sent events: where one ends, and what kind it is, by a look at its bytes.

No event is parsed on the way. What decides is a prefix, a suffix or a name that JSON can only hold as a key: inside a
JSON string every quote is escaped, so `"choices":[]` in an event is never somebody's text.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from .openai import Shape

EVENT_LIMIT = 16 << 20  # an event longer than this is no event; the largest real ones (logprobs, audio) stay below 2 MB
COMMENT = b": keep-alive\n\n"

_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")


def queued(position: int, wait_s: int | None) -> bytes:
    """The comment for a client that waits; how long it still may is left out where nobody knows."""
    return b": queued position=%d%b\n\n" % (position, b"" if wait_s is None else b" expected_wait_s=%d" % wait_s)


class EventTooLong(ValueError):
    """An event passed EVENT_LIMIT without an end."""


def is_one(payload: bytes) -> bool:
    """Whether a payload is one whole event, its lines ended as nearly all are."""
    return payload.endswith(b"\n\n") and payload.find(b"\n\n") == len(payload) - 2 and b"\r" not in payload


class EventSplitter:
    """Feed payload, get whole events with their blank line; an unfinished one is kept until its end comes.

    Law: the events of a byte string are the same however it was cut, and together with `held` they are the string.
    """

    __slots__ = ("_buffer", "_scanned")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0

    @property
    def held(self) -> int:
        """Bytes of an unfinished event."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Events that end in these bytes. Raises EventTooLong."""
        if not self._buffer and is_one(data):
            return [data]
        buffer = self._buffer
        buffer += data
        events: list[bytes] = []
        start, scan = 0, self._scanned
        while True:
            # A CR at the very end may be half of a CRLF: wait for the next byte.
            match = _END.search(buffer, scan)
            if match is None or (match.end() == len(buffer) and buffer.endswith(b"\r")):
                break
            events.append(bytes(buffer[start : match.end()]))
            start = scan = match.end()
        del buffer[:start]
        if len(buffer) > EVENT_LIMIT:
            raise EventTooLong(f"an event is longer than {EVENT_LIMIT} bytes")
        self._scanned = max(len(buffer) - 3, 0)
        return events


class Kind(enum.Enum):
    """What an event is to the gateway."""

    DELTA = "delta"  # tokens
    COMMENT = "comment"  # nothing but comment lines: bytes, but no progress
    USAGE = "usage"  # OpenAI's usage event: it is there only because somebody asked for it
    DONE = "done"  # the answer is whole
    ERROR = "error"  # the answer broke
    OTHER = "other"


class Profile(NamedTuple):
    """How an API's token events look, for the look that costs least.

    `suffixes` with the chunk's CRLF: such a chunk is a token event. Where the end says nothing, `prefixes` do. `done`:
    the chunk, framed, that says that the answer is whole; empty where no event is always the same.
    """

    suffixes: tuple[bytes, ...]
    prefixes: tuple[bytes, ...] = ()
    done: bytes = b""


# An OpenAI delta ends in its choices; the usage event ends in `}}` or `[]}`, an error event in `}}`.
# Completions write `"usage":null` behind the choices; there the prefix `data: {"id"` is checked as well, by the kind.
PROFILES: Mapping[Shape, Profile] = {
    Shape.OPENAI: Profile((b"}]}\n\n\r\n", b'}],"usage":null}\n\n\r\n'), done=b"e\r\ndata: [DONE]\n\n\r\n"),
    Shape.ANTHROPIC: Profile((b"\n\n\r\n",), (b"event: content_block_delta\n",)),
    Shape.RESPONSES: Profile((b"\n\n\r\n",), (b"event: response.output_text.delta\n",)),
}

_EMPTY_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_NAME = re.compile(rb"^event:[ ]?([^\r\n]*)", re.MULTILINE)


def kind(event: bytes, shape: Shape) -> Kind:
    """What an event is; never raises."""
    if event.startswith(b":") and b"\ndata:" not in event and b"\nevent:" not in event:
        return Kind.COMMENT
    if shape is Shape.OPENAI:
        return _openai_kind(event)
    found = _NAME.search(event)
    name = found[1] if found else b""
    if name in (b"error", b"response.failed"):
        return Kind.ERROR
    if name in (b"message_stop", b"response.completed", b"response.incomplete") or data_of(event) == b"[DONE]":
        return Kind.DONE
    if name.endswith((b".delta", b"_delta")) and name != b"message_delta":
        return Kind.DELTA
    if not name:
        return _openai_kind(event)
    return Kind.OTHER


def _openai_kind(event: bytes) -> Kind:
    data = data_of(event)
    if data == b"[DONE]":
        return Kind.DONE
    if data is None:
        return Kind.OTHER
    if b'"error"' in event and _is_error(data):
        return Kind.ERROR
    if b'"usage"' in event and _EMPTY_CHOICES.search(event):
        return Kind.USAGE
    return Kind.DELTA


def _is_error(data: bytes) -> bool:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and (bool(value.get("error")) or value.get("object") == "error")


def data_of(event: bytes) -> bytes | None:
    """The data lines of an event, joined; None when it has none."""
    if event.startswith(b"data:") and event.find(b"\n") == len(event) - 2:
        return event[5:].strip()
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def chunk(payload: bytes) -> bytes:
    """A payload as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)
