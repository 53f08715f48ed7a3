"""A request's head as bytes, read so that no other reader can take it differently.

Strict where HTTP leaves room: CRLF alone ends a line, a field's name is a token up to its colon, the fields that frame
a request or say what it is stand once, a length is plain digits, `chunked` is the only coding. Whatever else is there
is refused, so that nothing behind a request can be taken for another one.

Law: a head is read or refused as a whole; nothing of a refused one is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from .headers import LENGTH_DIGITS, TOKEN

HEAD_LIMIT = 65536  # bytes of a head
LINE_LIMIT = 16384
FIELD_LIMIT = 128

_LINE_ENDS_AND_TEXT = bytes(code for code in range(256) if code >= 32 and code != 127) + b"\t\r\n"
_EMPTY_LINES = re.compile(rb"(?:\r\n)*")
_AUTHORITY = re.compile(r"(?:[^@/?#\[\]]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^@:/?#\[\]]+)(?::([0-9]{1,5}))?")
# Told twice, two readers could believe different ones.
_SINGLE = frozenset({"host", "content-length", "transfer-encoding", "content-type", "content-encoding"})


class BadRequest(ValueError):
    """Bytes that are no plain HTTP/1 request; the message says why, and repeats nothing of them."""


@dataclass(slots=True)
class RequestHead:
    """A request's head; nobody changes it. Names of fields are in lower case, `values` holds the first of each name.

    `path` is as it was sent, without host and query. `length` is the body's, None where it comes in chunks.
    """

    method: str
    path: str
    http11: bool
    fields: list[tuple[str, str]]
    values: Mapping[str, str]
    length: int | None
    keep_alive: bool
    connection: str | None = None  # all its Connection fields, in lower case

    def get(self, name: str) -> str:
        """The first field of that name (in lower case), or the empty string."""
        return self.values.get(name, "")

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits to be asked for the body."""
        return self.http11 and self.get("expect").lower() == "100-continue"


def skip_empty_lines(data: bytes) -> bytes:
    """What comes behind empty lines, which old clients send after a body."""
    found = _EMPTY_LINES.match(data)
    return data[found.end() :] if found is not None else data


def may_begin(data: bytes) -> bool:
    """Whether a head that is not whole can still become one."""
    return len(data) <= HEAD_LIMIT and (data[:1].isupper() or data == b"\r")


def parse_request_head(block: bytes) -> RequestHead:
    """The head, without its last empty line. Raises BadRequest."""
    if len(block) > HEAD_LIMIT:
        raise BadRequest("the head of the request is too long")
    lines = block.decode("latin-1").split("\r\n")
    ends = len(lines) - 1
    if block.count(b"\n") != ends or block.count(b"\r") != ends or block.translate(None, _LINE_ENDS_AND_TEXT):
        raise BadRequest("the head of the request holds half a line end or a control character")
    if ends > FIELD_LIMIT:
        raise BadRequest(f"the request has more than {FIELD_LIMIT} header fields")
    if len(block) > LINE_LIMIT and max(map(len, lines)) > LINE_LIMIT:
        raise BadRequest("a line of the request's head is too long")
    words = lines[0].split(" ")
    if len(words) != 3:
        raise BadRequest("this is no HTTP request line")
    method, target, version = words
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest("this server speaks HTTP/1.1 and HTTP/1.0")
    path = _path(method, target)
    fields: list[tuple[str, str]] = []
    values: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequest("a header field has no colon")
        name, value = _name(name), value.strip(" \t")
        fields.append((name, value))
        if name not in values:
            values[name] = value
        elif name in _SINGLE:
            raise BadRequest(f"the header field {name} stands twice")
    return _framed(method, path, version == "HTTP/1.1", fields, values)


@lru_cache(maxsize=1024)
def _name(name: str) -> str:
    """A field's name in lower case; most clients send the same few."""
    if not TOKEN.fullmatch(name):
        raise BadRequest("the name of a header field is no token")
    return name.lower()


@lru_cache(maxsize=256)
def _path(method: str, target: str) -> str:
    """The path of a request's target."""
    if not (method.isascii() and method.isalpha() and method.isupper() and len(method) <= 20):
        raise BadRequest("this is no HTTP method")
    if method == "CONNECT":
        raise BadRequest("this server is no proxy: CONNECT leads nowhere")
    if not target.isascii():
        raise BadRequest("the request's target is not ASCII")
    if target == "*" and method == "OPTIONS":
        return target
    if not target.startswith("/"):
        scheme, mark, rest = target.partition("://")
        if not mark or scheme.lower() not in ("http", "https"):
            raise BadRequest("the request's target is neither a path nor a URL")
        authority = re.split(r"[/?]", rest, maxsplit=1)[0]
        found = _AUTHORITY.fullmatch(authority)
        if found is None or int(found[1] or 0) > 65535:
            raise BadRequest("the host in the request's target is none")
        target = rest[len(authority) :]
        if not target.startswith("/"):
            target = "/" + target
    return target.partition("?")[0]


def _framed(
    method: str, path: str, http11: bool, fields: list[tuple[str, str]], values: Mapping[str, str]
) -> RequestHead:
    length: int | None = 0
    told, coding = values.get("content-length"), values.get("transfer-encoding")
    if told is not None:
        if coding is not None:
            raise BadRequest("the request has a Content-Length and a Transfer-Encoding")
        if not (told.isascii() and told.isdigit() and len(told) <= LENGTH_DIGITS):
            raise BadRequest("the Content-Length is not a number of bytes that can be sent")
        length = int(told)
    elif coding is not None:
        if not http11 or coding.lower() != "chunked":
            raise BadRequest("the only transfer encoding is chunked, in HTTP/1.1")
        length = None
    if http11 and "host" not in values:
        raise BadRequest("a request of HTTP/1.1 needs the header field Host")
    if "content-encoding" in values and values["content-encoding"].lower() not in ("", "identity"):
        raise BadRequest("compressed bodies are not taken: send the body without Content-Encoding")
    if "sec-websocket-key1" in values:  # eight bytes without framing follow its head
        raise BadRequest("this server speaks no WebSocket")
    connection = None
    if "connection" in values:
        connection = ",".join(value for name, value in fields if name == "connection").lower()
    keep_alive = http11 and (connection is None or "close" not in map(str.strip, connection.split(",")))
    # A client that asks for another protocol may go on in it without waiting for our answer.
    return RequestHead(method, path, http11, fields, values, length, keep_alive and "upgrade" not in values, connection)
