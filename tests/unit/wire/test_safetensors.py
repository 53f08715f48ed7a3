"""Headers of safetensors files, honest and hostile."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire.safetensors import LARGEST_HEADER, Index, Tensor, header_length, index, tensors

GOOD = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}


def header(**table: Any) -> bytes:
    return json.dumps(table).encode()


def test_a_header() -> None:
    small = {**GOOD, "dtype": "F8_E4M3", "data_offsets": [12, 18]}
    assert tensors(header(__metadata__={"format": "pt"}, a=GOOD, b=small)) == (
        Tensor("a", "BF16", (2, 3), 12),
        Tensor("b", "F8_E4M3", (2, 3), 6),
    )
    assert tensors(header(a={"dtype": "F4", "shape": [3, 3], "data_offsets": [0, 5]}))[0].size == 5
    assert tensors(header(a={"dtype": "X9", "shape": [3], "data_offsets": [0, 7]}))[0].size == 7  # of tomorrow
    assert tensors(b"{}    ") == ()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'{"a": 1}',
        header(a={}),
        header(a={**GOOD, "dtype": 5}),
        header(a={**GOOD, "shape": [2, -3]}),
        header(a={**GOOD, "shape": [2, True]}),
        header(a={**GOOD, "shape": "2x3"}),
        header(a={**GOOD, "data_offsets": [12, 0]}),
        header(a={**GOOD, "data_offsets": [0]}),
        header(a={**GOOD, "data_offsets": [0, 13]}),  # not what the shape takes
        header(a={**GOOD, "shape": [1 << 60, 1 << 60]}),
        b'{"a":' * 100_000,
        b"\xff\xff",
    ],
)
def test_a_header_that_lies(text: bytes) -> None:
    with pytest.raises(ValueError):
        tensors(text)


@pytest.mark.parametrize(("prefix", "length"), [(b"\x08" + bytes(7), 8), (b"\x02" + bytes(7) + b"{}", 2)])
def test_the_length_before_it(prefix: bytes, length: int) -> None:
    assert header_length(prefix) == length


@pytest.mark.parametrize(
    "prefix",
    [b"", bytes(7), bytes(8), b"\xff" * 8, (LARGEST_HEADER + 1).to_bytes(8, "little"), b"GGUF" + bytes(4) + b"\x01"],
)
def test_a_length_that_cannot_be(prefix: bytes) -> None:
    with pytest.raises(ValueError):
        header_length(prefix)


def test_an_index() -> None:
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    files = tuple(sorted(weights.values()))
    assert index(header(metadata={"total_size": 7}, weight_map=weights)) == Index(files, 7)
    assert index(header(metadata={"total_size": 7.0}, weight_map=weights)).total == 7
    for total in (None, -1, "7", True, 0):
        assert index(header(metadata={"total_size": total}, weight_map=weights)).total is None
    assert index(header(weight_map=weights)).total is None


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "", ".hidden", "a\\b", 5, None])
def test_an_index_names_files_of_its_own_directory(name: Any) -> None:
    with pytest.raises(ValueError):
        index(header(weight_map={"a": name}))


@given(st.binary(max_size=200))
def test_any_bytes_end_in_an_answer(text: bytes) -> None:
    for read in (header_length, tensors, index):
        with contextlib.suppress(ValueError):
            read(text)
