from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire.headers import (
    BadHead,
    parse_head,
    request_id,
    upstream_fields,
)


def test_a_head_of_vllm() -> None:
    head = parse_head(
        b"HTTP/1.1 200 OK\r\ndate: x\r\nserver: uvicorn\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\nx-own: 1"
    )
    assert head.is_stream and head.chunked and head.length is None and head.keep_alive and head.status == 200
    assert head.onward == "content-type: text/event-stream; charset=utf-8\r\nx-own: 1\r\n"
    assert head.onward_stream == "x-own: 1\r\n"


@pytest.mark.parametrize(
    ("block", "length", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5", 5, True),
        (b"HTTP/1.1 200\r\ncontent-length: 5\r\nConnection: Close", 5, False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 5", 5, False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\nconnection: keep-alive", 5, True),
        (b"HTTP/1.1 204 No Content", 0, True),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 5", 0, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 6", 6, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0", 0, True),
        (b"HTTP/1.1 200 OK", None, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5", 5, True),
    ],
)
def test_framing(block: bytes, length: int | None, keep: bool) -> None:
    head = parse_head(block)
    assert (head.length, head.keep_alive) == (length, keep)


@pytest.mark.parametrize(
    "block",
    [b"", b"SSH-2.0-x", b"HTTP/2 200", b"HTTP/1.1 20", b"HTTP/1.1 2000", b"HTTP/1.1 abc",
     b"HTTP/1.1 200 OK\r\nno colon",
     b"HTTP/1.1 200 OK\r\n: x", b"HTTP/1.1 200 OK\r\na : x", b"HTTP/1.1 200 OK\r\na: x\ny: z",
     b"HTTP/1.1 200 OK\r\ncontent-length: -1",
     b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2",
     b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nCONTENT-LENGTH: 1", b"HTTP/1.1 200 OK\r\ncontent-length: 5 5",
     b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked",
     b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked",
     b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5",
     b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked",
     b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked",
     b"HTTP/1.1 200 OK\r\ncontent-length: +5", b"HTTP/1.1 200 OK\r\ncontent-length: 5, 5",
     b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5000,
     b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip",
     b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x", b"HTTP/1.1 099 x", b"HTTP/1.1 600 x",
     b"HTTP/1.1 200 OK\r\na b: x", b"HTTP/1.1 200 OK\r\na\xe9: x", b"HTTP/1.1 200 OK\r\na: x\x00",
     b"HTTP/1.1 200 OK\r\na: \x1b[0m",
     b"HTTP/1.1 200 OK\r\na: x\r\n folded", b"HTTP/1.1 200 OK" + b"\r\na: b" * 65,
     "HTTP/1.1 ²00 OK".encode("latin-1")],
)  # fmt: skip
def test_a_head_that_is_none(block: bytes) -> None:
    with pytest.raises(BadHead):
        parse_head(block)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_head_or_refused(block: bytes) -> None:
    try:
        parse_head(b"HTTP/1.1 200 OK\r\n" + block)
    except BadHead:
        pass


def test_what_goes_up_and_what_stays() -> None:
    fields = [("Authorization", "x"), ("X-API-Key", "x"), ("Host", "h"), ("Connection", "x-hop, close"), ("X-Hop", "1"),
              ("Transfer-Encoding", "chunked"), ("Content-Length", "3"), ("Cookie", "c"), ("Accept-Encoding", "gzip"),
              ("traceparent", "t"), ("Content-Type", "application/json"), ("Upgrade", "h2c"),
              ("Expect", "100-continue")]  # fmt: skip
    fields = [(name.lower(), value) for name, value in fields]
    kept = "traceparent: t\r\ncontent-type: application/json\r\n"
    assert upstream_fields(fields, "x-hop, close") == kept
    assert upstream_fields(fields, None) == "x-hop: 1\r\n" + kept


def test_a_stream_has_its_own_cache_control() -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\ncache-control: public\r\nconnection: x-hop\r\nx-hop: 1\r\nset-cookie: a")
    assert head.onward == "cache-control: public\r\n" and head.onward_stream == ""


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-123_x.y:z/=@+", True), ("", False), ("a b", False), ("a\tb", False), ("é", False), ("a" * 129, False),
     ('a"b', False), ("a\r\nX: y", False)],
)  # fmt: skip
def test_request_ids(given: str, kept: bool) -> None:
    assert request_id(given) == (given if kept else None)
