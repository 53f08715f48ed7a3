"""The headers of safetensors files, and the index of a checkpoint in several: what tensors take, without reading them.

A file begins with eight bytes, the length of a JSON header, little-endian; the header maps each tensor's name to
`dtype`, `shape` and `data_offsets`. Both come from strangers: lengths are bounded before anything is allocated, and a
header whose figures contradict one another is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PREFIX = 8
LARGEST_HEADER = 100_000_000  # the format's own limit
LARGEST_INDEX = 64 << 20
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "U16": 16, "I16": 16, "F16": 16,
         "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6,
         "F6_E3M2": 6}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as its header describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class Index:
    """`model.safetensors.index.json`: the files, and the bytes of all tensors together (None: it does not say)."""

    files: tuple[str, ...]
    total: int | None


def header_length(prefix: bytes) -> int:
    """The length of the header that follows the first eight bytes. Raises ValueError when there can be none."""
    if len(prefix) < PREFIX:
        raise ValueError("shorter than a safetensors header")
    length = int.from_bytes(prefix[:PREFIX], "little")
    if not 2 <= length <= LARGEST_HEADER:
        raise ValueError(f"no safetensors file: a header of {length} bytes")
    return length


def tensors(header: bytes) -> tuple[Tensor, ...]:
    """The tensors of one file, in the header's order. Raises ValueError when the header is damaged or lies."""
    table = _object(header, LARGEST_HEADER, "header")
    return tuple(_tensor(name, value) for name, value in table.items() if name != "__metadata__")


def file_size(header: bytes) -> int:
    """The bytes that a whole file with this header has. Raises ValueError when the header cannot be read."""
    table = _object(header, LARGEST_HEADER, "header")
    try:
        ends = [entry["data_offsets"][1] for name, entry in table.items() if name != "__metadata__"]
        return PREFIX + len(header) + max(ends, default=0)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError("the header does not say where tensors end") from error


def _tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, dict):
        raise ValueError(f"tensor {name[:80]!r} has no description")
    dtype, shape, offsets = value.get("dtype"), _whole(value.get("shape")), _whole(value.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:
        raise ValueError(f"tensor {name[:80]!r} is not described as the format demands")
    begin, end = offsets
    if end < begin:
        raise ValueError(f"tensor {name[:80]!r} ends before it begins")
    bits = _BITS.get(dtype)
    if bits is not None and (end - begin) * 8 != -(-math.prod(shape) * bits // 8) * 8:
        raise ValueError(f"tensor {name[:80]!r}: {end - begin} bytes do not hold {dtype} of shape {shape}")
    return Tensor(name, dtype, shape, end - begin)


def index(text: bytes) -> Index:
    """An index file. Raises ValueError when it is damaged, or names a file that is not one of its own directory."""
    table = _object(text, LARGEST_INDEX, "index")
    weights = table.get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise ValueError("the index names no tensors")
    files = set()
    for name in weights.values():
        if not isinstance(name, str) or not name or "/" in name or "\\" in name or name.startswith("."):
            raise ValueError(f"the index names a file that cannot be: {str(name)[:80]!r}")
        files.add(name)
    metadata = table.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():  # some tools write it so
        total = int(total)
    good = isinstance(total, int) and not isinstance(total, bool) and total > 0
    return Index(tuple(sorted(files)), total if good else None)


def _object(text: bytes, limit: int, what: str) -> Mapping[str, Any]:
    if len(text) > limit:
        raise ValueError(f"the {what} is longer than {limit} bytes")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"the {what} is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"the {what} is not a JSON object")
    return value


def _whole(value: object) -> tuple[int, ...] | None:
    """A list of whole numbers that are not negative; None when it is anything else."""
    if not isinstance(value, list) or not all(type(member) is int and member >= 0 for member in value):
        return None
    return tuple(value)
