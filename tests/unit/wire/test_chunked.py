from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire.chunked import LINE_LIMIT, ChunkDecoder, FramingError


def encode(payloads: list[bytes], trailer: bytes = b"") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in payloads if p) + b"0\r\n" + trailer + b"\r\n"


def decode(pieces: list[bytes]) -> tuple[bytes, ChunkDecoder]:
    decoder = ChunkDecoder()
    return b"".join(b"".join(decoder.feed(piece)) for piece in pieces), decoder


def test_every_cut_in_two_gives_the_same() -> None:
    wire = encode([b"data: {}\n\n", b"x" * 17, b"\r\n0\r\n\r\n"], b"X-T: 1\r\n") + b"HTTP/1.1"
    for cut in range(len(wire) + 1):
        payload, decoder = decode([wire[:cut], wire[cut:]])
        assert payload == b"data: {}\n\n" + b"x" * 17 + b"\r\n0\r\n\r\n", cut
        assert decoder.done and not decoder.at_boundary


def test_byte_by_byte_gives_the_same() -> None:
    wire = encode([b"ab", b"c" * 300])
    payload, decoder = decode([wire[n : n + 1] for n in range(len(wire))])
    assert payload == b"ab" + b"c" * 300 and decoder.done and decoder.rest == b""


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_any_cuts_give_the_same(payloads: list[bytes], cuts: list[int]) -> None:
    wire = encode(payloads)
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    payload, decoder = decode([wire[a:b] for a, b in pairwise(edges)])
    assert payload == b"".join(payloads) and decoder.done


def test_boundaries_are_known() -> None:
    decoder = ChunkDecoder()
    assert decoder.at_boundary
    decoder.feed(b"2\r\na")
    assert not decoder.at_boundary
    decoder.feed(b"b\r\n")
    assert decoder.at_boundary
    decoder.feed(b"2;ext=1\r")
    assert not decoder.at_boundary


@pytest.mark.parametrize(
    "wire",
    [b"g\r\n", b"\r\n", b"-1\r\nx", b"0x3\r\nabc\r\n", b"1_0\r\n", b"2\r\nabc\r\n", b"2\r\nab\n\n", b"1" * 17 + b"\r\n",
     b"f" * (LINE_LIMIT + 2), b" 1\r\n", b"\n1\r\n", b"+1\r\nx", b"1;a\nb\r\n", b"1;a\rb\r\n", b"0\r\na: b\nc\r\n\r\n",
     b"0\r\n" + b"a: b\r\n" * (LINE_LIMIT // 6 + 1)],
)  # fmt: skip
def test_what_is_no_framing_is_refused(wire: bytes) -> None:
    with pytest.raises(FramingError):
        decode([wire])
    with pytest.raises(FramingError):
        decode([wire[n : n + 1] for n in range(len(wire))])
