"""Heads of requests: read, or refused as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire.requesthead import (
    FIELD_LIMIT,
    HEAD_LIMIT,
    KNOWN,
    KNOWN_LIMIT,
    LINE_LIMIT,
    BadRequest,
    RequestHead,
    RequestHeads,
    may_begin,
    parse_request_head,
    skip_empty_lines,
)


def parse(*fields: bytes, line: bytes = b"POST /p HTTP/1.1", host: bytes = b"Host: x") -> RequestHead:
    return parse_request_head(b"\r\n".join([line, *([host] if host else []), *fields]))


def test_a_head_of_an_sdk() -> None:
    head = parse(b"Content-Length: 12", b"X-Api-Key:  k \t", b"x-api-key: other", b"ACCEPT: a\tb", b"X: \xff")
    assert (head.method, head.path, head.http11, head.length, head.keep_alive) == ("POST", "/p", True, 12, True)
    assert head.fields == [("host", "x"), ("accept", "a\tb"), ("x", "\xff")]
    assert head.get("host") == "x" and head.get("none") == "" and not head.expects_continue
    assert head.secret == "k" and head.onward == "accept: a\tb\r\nx: \xff\r\n"


@pytest.mark.parametrize(
    ("fields", "secret"),
    [([], ""), ([b"Authorization: Bearer  k "], "k"), ([b"authorization: BEARER k", b"X-Api-Key: other"], "k"),
     ([b"Authorization: Basic k"], ""), ([b"Authorization: Basic k", b"x-api-key: other"], "other"),
     ([b"Authorization: Bearer", b"x-api-key: \tother"], "other"), ([b"X-API-Key:k"], "k"),
     ([b"Authorization: Bearer k", b"Authorization: Bearer other"], "k")],
)  # fmt: skip
def test_keys(fields: list[bytes], secret: str) -> None:
    head = parse(*fields)
    assert head.secret == secret and "authorization" not in head.values and "x-api-key" not in head.values


LINES = st.sampled_from(
    [b"Authorization: Bearer a", b"authorization: Bearer bc", b"Authorization: Basic a", b"AUTHORIZATION: Bearer z",
     b"X-Api-Key: a", b"x-api-key: b", b"X-API-KEY: c", b"Content-Length: 5", b"content-length: 17",
     b"CONTENT-LENGTH: 3", b"Content-Length: 5x", b"Content-Length: " + b"1" * 16, b"Content-Length: 5 ",
     b"Transfer-Encoding: chunked", b"Connection: close", b"Connection: x-hop", b"X-Hop: 1", b"Accept: */*",
     b"Cookie: a", b"X-Request-Id: 1", b"X: \r", b"Authorization: Bearer a b", b"Authorization: Bearer \xff"]
)  # fmt: skip


@given(st.lists(st.lists(LINES, max_size=5), min_size=2, max_size=6))
def test_a_head_that_is_known_is_the_same_as_one_that_is_read(heads: list[list[bytes]]) -> None:
    reader = RequestHeads()
    for lines in heads:
        block = b"\r\n".join([b"POST /p HTTP/1.1", b"Host: x", *lines])
        assert _outcome(reader.read, block) == _outcome(parse_request_head, block)


def _outcome(read: Callable[[bytes], RequestHead], block: bytes) -> object:
    try:
        return read(block)
    except BadRequest as error:
        return str(error)


def test_what_is_known_is_bounded_and_holds_no_secret() -> None:
    def block(number: int, extra: bytes = b"") -> bytes:
        return b"POST /%d HTTP/1.1\r\nHost: x%b\r\nAuthorization: Bearer sesame\r\nContent-Length: 5" % (number, extra)

    reader = RequestHeads()
    for number in range(KNOWN * 2):
        assert reader.read(block(number)) == reader.read(block(number)), "the second time it is known"
    for extra in (
        b"\r\nCookie: sesame",
        b"\r\nProxy-Authorization: sesame",
        b"\r\nX: " + b"sesame" * (KNOWN_LIMIT // 6),
    ):
        assert reader.read(block(1, extra)).secret == "sesame"
    (known,) = vars(reader).values()
    assert len(known) == KNOWN and "sesame" not in repr(known)


@pytest.mark.parametrize(
    ("line", "fields", "length", "keep"),
    [
        (b"GET / HTTP/1.1", [], 0, True),
        (b"GET / HTTP/1.1", [b"Connection: x", b"Connection: a, Close"], 0, False),
        (b"GET / HTTP/1.1", [b"Connection: closed"], 0, True),
        (b"GET / HTTP/1.1", [b"Upgrade: h2c"], 0, False),
        (b"GET / HTTP/1.0", [b"Connection: keep-alive"], 0, False),
        (b"POST / HTTP/1.1", [b"Transfer-Encoding: Chunked"], None, True),
        (b"POST / HTTP/1.1", [b"Content-Encoding: identity", b"Content-Length: 0"], 0, True),
        (b"POST / HTTP/1.1", [b"Content-Length: 007"], 7, True),
    ],
)
def test_framing(line: bytes, fields: list[bytes], length: int | None, keep: bool) -> None:
    head = parse(*fields, line=line)
    assert (head.length, head.keep_alive) == (length, keep)


@pytest.mark.parametrize(
    ("target", "path"),
    [(b"/a?b#c", "/a"), (b"/a%2Fb", "/a%2Fb"), (b"//a", "//a"), (b"http://h/a?b", "/a"),
     (b"HTTPS://u:p@h:65535/a", "/a"),
     (b"http://[::1]:80", "/"), (b"http://h?b", "/")],
)  # fmt: skip
def test_paths(target: bytes, path: str) -> None:
    assert parse(line=b"GET %b HTTP/1.1" % target).path == path
    assert parse(line=b"OPTIONS * HTTP/1.1").path == "*"


@pytest.mark.parametrize(
    "line",
    [b"GET / HTTP/1.2", b"GET / HTTP/2.0", b"GET / HTTP/0.9", b"GET /", b"GET  / HTTP/1.1", b"GET /a b HTTP/1.1",
     b"GET / HTTP/1.1 ", b" GET / HTTP/1.1", b"get / HTTP/1.1", b"G-T / HTTP/1.1", b"G" * 21 + b" / HTTP/1.1",
     b"CONNECT h:1 HTTP/1.1", b"CONNECT /p HTTP/1.1", b"GET * HTTP/1.1", b"GET p HTTP/1.1", b"GET mailto:x HTTP/1.1",
     b"GET ftp://h/ HTTP/1.1", b"GET http:///p HTTP/1.1", b"GET http://h:65536/ HTTP/1.1", b"GET http://[::1/ HTTP/1.1",
     b"GET http://h:x/ HTTP/1.1", b"GET /\xff HTTP/1.1", b"GET /\x01 HTTP/1.1", b"GET /\t HTTP/1.1\t",
     b"GET /" + b"a" * LINE_LIMIT + b" HTTP/1.1"],
)  # fmt: skip
def test_bad_request_lines(line: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(line=line)


@pytest.mark.parametrize(
    "fields",
    [[b"Content-Length: 5", b"Content-Length: 5"], [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
     [b"Transfer-Encoding: chunked", b"Content-Length: 5"], [b"Transfer-Encoding: chunked"] * 2,
     [b"Transfer-Encoding: gzip, chunked"], [b"Transfer-Encoding: identity"], [b"Transfer-Encoding:"],
     [b"Transfer-Encoding: \x0bchunked"], [b"Content-Length:"], [b"Content-Length: +5"], [b"Content-Length: -5"],
     [b"Content-Length: 0x5"], [b"Content-Length: 5_0"], [b"Content-Length: 5, 5"], [b"Content-Length: " + b"1" * 16],
     [b"Content-Length: \xb2"], [b"Content-Encoding: gzip"], [b"Content-Type: a", b"Content-Type: a"], [b"Host: x"],
     [b"X : a"], [b" X: a"], [b"X: a", b" b"], [b"X"], [b": a"], [b"X\xff: a"], [b"X: a\0b"], [b"X: a\x7f"],
     [b"X: a\nY: b"], [b"X: a\rY: b"], [b"X: a\r"], [b"Sec-WebSocket-Key1: a"], [b""],
     [b"X: a"] * FIELD_LIMIT, [b"X: " + b"a" * LINE_LIMIT], [b"X: " + b"a" * 16000] * 5],
)  # fmt: skip
def test_bad_fields(fields: list[bytes]) -> None:
    with pytest.raises(BadRequest):
        parse(*fields)


def test_versions_differ() -> None:
    with pytest.raises(BadRequest):
        parse(host=b"")
    with pytest.raises(BadRequest):
        parse(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0")
    assert parse(host=b"", line=b"GET / HTTP/1.0").path == "/"
    assert parse(b"Expect: 100-Continue").expects_continue
    assert not parse(b"Expect: 100-continue", line=b"POST / HTTP/1.0").expects_continue


@given(st.binary(max_size=80), st.integers(0, 80), st.integers(0, 3))
def test_bytes_anywhere_are_read_or_refused(noise: bytes, place: int, taken: int) -> None:
    good = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nX: y"
    block = good[:place] + noise + good[place + taken :]
    try:
        head = parse_request_head(block)
    except BadRequest as error:
        assert noise not in str(error).encode("latin-1", "replace") or len(noise) < 4
        return
    lines = block.split(b"\r\n")
    told = [
        line for line in lines[1:] if not line.lower().startswith((b"content-length:", b"authorization:", b"x-api"))
    ]
    assert len(head.fields) == len(told) and b"\0" not in block
    assert not any(b"\n" in line or b"\r" in line for line in lines)
    for (name, value), line in zip(head.fields, told, strict=True):
        assert line.lower().startswith(name.encode("latin-1") + b":") and value.encode("latin-1") in line


def test_what_can_still_become_a_head() -> None:
    assert may_begin(b"G") and may_begin(b"\r") and may_begin(b"POST /" + b"a" * 1000)
    for data in (b"\0", b"\x16\x03\x01", b"get", b"\r\n"[1:], b"G" * (HEAD_LIMIT + 1)):
        assert not may_begin(data)
    assert skip_empty_lines(b"\r\n" * 3 + b"\rG") == b"\rG" and skip_empty_lines(b"\n\r\n") == b"\n\r\n"
