"""Which header fields cross the gateway, and what a response head from an engine says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# RFC 9110 7.6.1 and the framing that each side of the gateway makes for itself.
HOP_BY_HOP = _words(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    "upgrade content-length http2-settings"
)
# A client's fields that an engine must not see, or that the gateway sets anew: keys above all.
_NOT_UPSTREAM = HOP_BY_HOP | _words(
    "authorization x-api-key cookie host expect accept-encoding content-encoding x-request-id forwarded "
    "x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip origin referer"
)
# An engine's fields that the gateway writes itself.
_NOT_DOWNSTREAM = HOP_BY_HOP | _words(
    "server date x-request-id x-engine x-queue-time-ms x-queue-position x-accel-buffering access-control-allow-origin "
    "access-control-allow-credentials access-control-allow-headers access-control-allow-methods set-cookie "
    "x-ratelimit-limit-requests x-ratelimit-remaining-requests x-ratelimit-reset-requests "
    "x-ratelimit-limit-tokens x-ratelimit-remaining-tokens x-ratelimit-reset-tokens"
)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
HEAD_LIMIT = 65536
FIELD_LIMIT = 64  # fields of a response: a client's own limit may be a hundred
TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # a field's name
LENGTH_DIGITS = 15  # of a Content-Length; a longer one counts nothing that exists


class BadHead(ValueError):
    """A response head that is not HTTP/1."""


@dataclass(slots=True)
class ResponseHead:
    """A response's status, framing and fields; neither `length` nor `chunked`: ends with the connection.

    Nobody changes it: the same head is one object for all calls that it answers.
    """

    status: int
    chunked: bool
    length: int | None
    keep_alive: bool
    is_stream: bool  # whether the body is server-sent events
    onward: str  # the fields that go on to the client, as lines
    onward_stream: str  # for a stream, whose Content-Type and Cache-Control the gateway writes


def request_id(given: str) -> str | None:
    """The client's own request id when it is one that may stand in a log and a header; None otherwise."""
    return given if _REQUEST_ID.fullmatch(given) else None


def upstream_fields(fields: Iterable[tuple[str, str]], connection: str | None) -> str:
    """A client's fields, names in lower case, that go on to the engine, as lines; those that its Connection field
    names stay behind as well."""
    pairs = [pair for pair in fields if pair[0] not in _NOT_UPSTREAM]
    if connection is not None:
        named = {word.strip().lower() for word in connection.split(",")}
        pairs = [pair for pair in pairs if pair[0] not in named]
    return render_fields(pairs)


def _downstream(fields: Iterable[tuple[str, str]], named: set[str]) -> list[tuple[str, str]]:
    """An engine's fields that go on to the client; `named` are words of its Connection field."""
    return [(name, value) for name, value in fields if name not in _NOT_DOWNSTREAM and name not in named]


def parse_head(block: bytes) -> ResponseHead:
    """The head of a response, without its last blank line. Raises BadHead.

    Engines say the same again and again, but for a body's length: that is read each time, the rest once.
    """
    parts = _LENGTH.split(block)
    head = _parse_around(parts[0], parts[2]) if len(parts) == 3 else None
    if head is None:
        return _parse(block)
    return ResponseHead(
        head.status, head.chunked, int(parts[1]), head.keep_alive, head.is_stream, head.onward, head.onward_stream
    )


_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,15})(?=\r\n|\Z)")


@lru_cache(maxsize=256)
def _parse_around(before: bytes, after: bytes) -> ResponseHead | None:
    """The head with any length between; None where the length is not told there alone, or means nothing."""
    if b"content-length" in (before + after).lower():
        return None
    head = _parse(before + b"\r\ncontent-length: 1" + after)
    return head if head.length == 1 else None


@lru_cache(maxsize=256)
def _parse(block: bytes) -> ResponseHead:
    lines = block.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    code = rest[:3]
    is_code = len(code) == 3 and code.isascii() and code.isdigit()
    if version not in ("HTTP/1.1", "HTTP/1.0") or not is_code or rest[3:4] not in ("", " "):
        raise BadHead("the engine does not answer in HTTP/1")
    if not 100 <= int(code) < 600 or code == "101":
        raise BadHead(f"the engine answered {code}, which no call asks for")
    if len(lines) > FIELD_LIMIT + 1:
        raise BadHead(f"the engine's response head has more than {FIELD_LIMIT} fields")
    fields: list[tuple[str, str]] = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        # A bare CR, LF or NUL in a value would end the field early for a careless reader behind us.
        if not colon or not TOKEN.fullmatch(name) or _CONTROL.search(value):
            raise BadHead("the engine sent a broken header field")
        fields.append((name.lower(), value.strip(" \t")))
    return _framed(int(code), version, tuple(fields))


def _framed(status: int, version: str, fields: tuple[tuple[str, str], ...]) -> ResponseHead:
    chunked, length = False, None
    words: set[str] = set()
    for name, value in fields:
        if name == "transfer-encoding":
            if value.lower() != "chunked" or chunked or version == "HTTP/1.0":
                raise BadHead(f"the engine uses a transfer encoding that the gateway does not speak: {value[:40]!r}")
            chunked = True
        elif name == "content-length":
            is_number = value.isascii() and value.isdigit() and len(value) <= LENGTH_DIGITS
            if not is_number or (length is not None and int(value) != length):
                raise BadHead("the engine sent a broken Content-Length")
            length = int(value)
        elif name == "content-encoding" and value.lower() not in ("", "identity"):
            raise BadHead(f"the engine sent a content encoding that nobody asked for: {value[:40]!r}")
        elif name == "connection":
            words |= {word.strip().lower() for word in value.split(",")}
    if chunked and length is not None:  # one of the two is a lie, and the body's end with it
        raise BadHead("the engine sent both Content-Length and Transfer-Encoding")
    if status in (204, 304) or status < 200:
        chunked, length = False, 0
    keep_alive = "close" not in words and (version == "HTTP/1.1" or "keep-alive" in words)
    kind = next((value for name, value in fields if name == "content-type"), "")
    is_stream = kind.partition(";")[0].strip().lower() == "text/event-stream"
    onward = _downstream(fields, words)
    stream = [pair for pair in onward if pair[0] not in ("content-type", "cache-control")]
    length = None if chunked else length
    return ResponseHead(status, chunked, length, keep_alive, is_stream, render_fields(onward), render_fields(stream))


def render_fields(fields: Iterable[tuple[str, str]]) -> str:
    """Fields as lines. Values come from parsed heads or from us, so none holds a line break."""
    return "".join([f"{name}: {value}\r\n" for name, value in fields])
