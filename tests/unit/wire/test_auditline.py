from __future__ import annotations

import json

import pytest

from appliance.wire.auditline import (
    GENESIS,
    HEAD_BYTES,
    BadLine,
    Head,
    compose,
    day_of,
    day_of_torn,
    file_name,
    head_bytes,
    members,
    parse,
    parse_head,
    torn_name,
)


def test_a_line_is_json_and_holds_both_hashes() -> None:
    raw, digest = compose(1, GENESIS, members({"model": "北京\u2028\ud800", "n": None}))
    assert raw.endswith(b"\n") and raw.isascii() and raw.count(b"\n") == 1
    line = parse(raw[:-1])
    assert (line.seq, line.prev, line.hash) == (1, GENESIS, digest)
    assert json.loads(raw)["model"] == "北京\u2028\ud800" and line.body["n"] is None


def test_a_line_with_another_byte_is_none() -> None:
    raw = compose(3, "ab" * 32, members({"at": 1.5, "key_id": "k-1"}))[0][:-1]
    for at in range(len(raw)):
        with pytest.raises(BadLine):
            parse(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])


@pytest.mark.parametrize("raw", [b"", b"{}", b"null", b"\0" * 600, b'{"v":1,"hash":"' + b"0" * 64 + b'"}'])
def test_what_is_no_line(raw: bytes) -> None:
    with pytest.raises(BadLine):
        parse(raw)


def test_another_version_is_refused() -> None:
    raw = compose(1, GENESIS, members({"v": 2}))[0]
    with pytest.raises(BadLine, match="version"):
        parse(raw[:-1])


def test_the_head_is_one_sector_and_comes_back() -> None:
    head = Head(1, 10**12, "ab" * 32, file_name("2026-01-31"), 10**15)
    assert len(head_bytes(head)) == HEAD_BYTES and parse_head(head_bytes(head)) == head


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"\0" * 512, b'{"v":1}', b'{"v":1,"first":1,"last":true,"hash":"","file":"","size":0}']
)
def test_a_head_that_says_nothing(raw: bytes) -> None:
    assert parse_head(raw) is None


def test_names() -> None:
    assert day_of(file_name("2026-01-31")) == "2026-01-31"
    assert [day_of(name) for name in ("usage-2026-01-31.jsonl.gz", "chain.json", "usage-x.jsonl")] == [None] * 3
    assert day_of_torn(torn_name("2026-01-31", 7)) == "2026-01-31" and day_of_torn("torn-1") is None
