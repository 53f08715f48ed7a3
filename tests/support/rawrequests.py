"""Requests as bytes, for clients that speak HTTP by hand."""

from __future__ import annotations

import json

from tests.support.gatewayprocess import chat

CHAT = b"/v1/chat/completions"
BODY = json.dumps(chat()).encode()
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def post(fields: bytes = b"", body: bytes = BODY, *, path: bytes = CHAT, version: bytes = b"HTTP/1.1") -> bytes:
    """A call; its length is told where `fields` say nothing of it."""
    framed = b"content-length" in fields.lower() or b"transfer-encoding" in fields.lower()
    length = b"" if framed else b"Content-Length: %d\r\n" % len(body)
    return b"POST %b %b\r\nHost: x\r\n%b%b\r\n%b" % (path, version, fields, length, body)


def get(path: bytes, fields: bytes = b"", version: bytes = b"HTTP/1.1", method: bytes = b"GET") -> bytes:
    return b"%b %b %b\r\nHost: x\r\n%b\r\n" % (method, path, version, fields)


def chunks(body: bytes = BODY, last: bytes = b"0\r\n\r\n") -> bytes:
    return b"%x\r\n%b\r\n%b" % (len(body), body, last)


LENGTH = b"Content-Length: %d\r\n" % len(BODY)
SMUGGLED = post(b"X-Request-Id: SMUGGLED\r\n")
