from __future__ import annotations

import pytest

from appliance.policy.readahead import portions
from appliance.quantity import UNKNOWN

SHARDS = {"model-00001-of-00002.safetensors": 40, "model-00002-of-00002.safetensors": 30}
FIRST, SECOND = SHARDS


@pytest.mark.parametrize(
    ("sizes", "indexed", "available", "taken"),
    [
        (SHARDS, (), 1000, [(FIRST, 40), (SECOND, 30)]),
        ({**SHARDS, "config.json": 5, "pytorch_model.bin": 90, "x.gguf": 9}, (), 1000, [(FIRST, 40), (SECOND, 30)]),
        ({**SHARDS, "consolidated.safetensors": 70}, SHARDS, 1000, [(FIRST, 40), (SECOND, 30)]),
        (SHARDS, {"elsewhere.safetensors"}, 1000, [(FIRST, 40), (SECOND, 30)]),
        ({"b.gguf": 9, "a.gguf": 8, "a.txt": 1}, (), 1000, [("a.gguf", 8), ("b.gguf", 9)]),
        (SHARDS, (), 100, [(FIRST, 40), (SECOND, 10)]),
        (SHARDS, (), 80, [(FIRST, 40)]),
        (SHARDS, (), 1, []),
        (SHARDS, (), UNKNOWN, []),
        ({}, (), 1000, []),
    ],
)  # fmt: skip
def test_what_is_read_ahead(
    sizes: dict[str, int], indexed: set[str], available: int, taken: list[tuple[str, int]]
) -> None:
    assert list(portions(sizes, indexed, available)) == taken
