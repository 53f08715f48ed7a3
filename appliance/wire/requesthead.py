"""A request's head as bytes, read so that no other reader can take it differently.

Strict where HTTP leaves room: CRLF alone ends a line, a field's name is a token up to its colon, the fields that frame
a request or say what it is stand once, a length is plain digits, `chunked` is the only coding. Whatever else is there
is refused, so that nothing behind a request can be taken for another one.

Law: a head is read or refused as a whole; nothing of a refused one is used.

A client says the same head again and again, but for its key and its body's length. `RequestHeads` reads such a head
once; of a key it keeps nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from .headers import LENGTH_DIGITS, TOKEN, upstream_fields

HEAD_LIMIT = 65536  # bytes of a head
LINE_LIMIT = 16384
FIELD_LIMIT = 128

_LINE_ENDS_AND_TEXT = bytes(code for code in range(256) if code >= 32 and code != 127) + b"\t\r\n"
_EMPTY_LINES = re.compile(rb"(?:\r\n)*")
_AUTHORITY = re.compile(r"(?:[^@/?#\[\]]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^@:/?#\[\]]+)(?::([0-9]{1,5}))?")
# A key and a length, as nearly all clients write them. What stands around them is the same each time.
_DIFFERING = re.compile(
    rb"\r\n([Aa]uthorization: Bearer |[Xx]-[Aa]pi-[Kk]ey: |[Cc]ontent-[Ll]ength: )([!-~]+)(?=\r\n|\Z)"
)
_LENGTH = b"content-length: "
# Names of fields that may be secret as well, or are new each time: a head with one of them is not kept.
_NOT_KEPT = re.compile(
    rb"\n[^:\r\n]*(?:auth|key|token|secret|cookie|session|credential|password|request-id|trace)[^:\r\n]*:",
    re.IGNORECASE,
)
# Told by attributes of their own, and not among the fields.
_OWN = frozenset({"authorization", "x-api-key", "content-length"})
KNOWN, KNOWN_LIMIT = 256, 4096  # heads that are kept, and bytes of one
# Told twice, two readers could believe different ones.
_SINGLE = frozenset({"host", "content-length", "transfer-encoding", "content-type", "content-encoding"})


class BadRequest(ValueError):
    """Bytes that are no plain HTTP/1 request; the message says why, and repeats nothing of them."""


@dataclass(slots=True)
class RequestHead:
    """A request's head; nobody changes it. Names of fields are in lower case, `values` holds the first of each name.

    `path` is as it was sent, without host and query. The body's `length`, None where it comes in chunks, and the
    `secret` of the caller's key, empty where none was sent, stand here alone: the fields leave them out.
    """

    method: str
    path: str
    http11: bool
    fields: list[tuple[str, str]]
    values: Mapping[str, str]
    keep_alive: bool
    onward: str  # the fields that go on to an engine, as lines
    length: int | None
    secret: str

    def get(self, name: str) -> str:
        """The first field of that name (in lower case), or the empty string."""
        return self.values.get(name, "")

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits to be asked for the body."""
        return self.http11 and self.get("expect").lower() == "100-continue"


class RequestHeads:
    """Reads heads; one that differs from an earlier one in its key and its length alone is not parsed again."""

    def __init__(self) -> None:
        # What stands around key and length, in order; whether the key is the first of the two, and the head.
        self._known: dict[tuple[bytes, ...], tuple[bool, RequestHead]] = {}

    def read(self, block: bytes) -> RequestHead:
        """`parse_request_head`, of which the result is the same. Raises BadRequest."""
        parts = _DIFFERING.split(block) if len(block) <= KNOWN_LIMIT else ()
        if len(parts) != 7:
            return parse_request_head(block)
        before, name, value, between, other_name, other, after = parts
        shape = before, name, between, other_name, after
        known = self._known.get(shape)
        if known is None:
            head = parse_request_head(block)
            self._keep(shape, head)
            return head
        key_first, head = known
        secret, digits = (value, other) if key_first else (other, value)
        if not digits.isdigit() or len(digits) > LENGTH_DIGITS:
            return parse_request_head(block)
        return RequestHead(
            head.method, head.path, head.http11, head.fields, head.values, head.keep_alive, head.onward,
            int(digits), secret.decode("ascii"),
        )  # fmt: skip

    def _keep(self, shape: tuple[bytes, ...], head: RequestHead) -> None:
        """Know a head from now on, where what differs is one key and one length."""
        before, name, between, other_name, after = shape
        key_first = name.lower() != _LENGTH
        around = b"%b%b%b" % (before, between, after)
        if key_first == (other_name.lower() != _LENGTH) or _NOT_KEPT.search(around):
            return
        if len(self._known) >= KNOWN:
            del self._known[next(iter(self._known))]
        kept = RequestHead(
            head.method, head.path, head.http11, head.fields, head.values, head.keep_alive, head.onward, 0, ""
        )  # fmt: skip
        self._known[shape] = key_first, kept


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


def _framed(method: str, path: str, http11: bool, fields: list[tuple[str, str]], values: dict[str, str]) -> RequestHead:
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
    # A client that asks for another protocol may go on in it without waiting for our answer.
    keep_alive = http11 and "upgrade" not in values
    if connection is not None and "close" in map(str.strip, connection.split(",")):
        keep_alive = False
    onward, secret = upstream_fields(fields, connection), _secret(values)
    if not _OWN.isdisjoint(values):
        fields = [pair for pair in fields if pair[0] not in _OWN]
        values = {name: value for name, value in values.items() if name not in _OWN}
    return RequestHead(method, path, http11, fields, values, keep_alive, onward, length, secret)


def _secret(values: Mapping[str, str]) -> str:
    """The key that the client sent, empty where it sent none."""
    scheme, _, rest = values.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and rest:
        return rest.strip()
    return values.get("x-api-key", "").strip()
