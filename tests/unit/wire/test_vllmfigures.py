from __future__ import annotations

import pytest

from appliance.wire.vllmfigures import figures, merged
from appliance.wire.vllmlog import Reader


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Model loading took 27.5185 GiB memory and 5.71 seconds", {"weights_gib": 27.5185}),
        ("Available KV cache memory: 40.43 GiB", {"kv_gib": 40.43}),
        ("Available KV cache memory: -2.10 GiB", {"kv_gib": -2.1}),
        ("GPU KV cache size: 264,944 tokens", {"kv_tokens": 264944}),
        ("Maximum concurrency for 32,768 tokens per request: 8.09x", {"context": 32768, "at_once": 8.09}),
        (
            "CPU KV cache size: 46,592 tokens, Maximum concurrency for 4,096 tokens per request: 11.38x",
            {"kv_tokens": 46592, "context": 4096, "at_once": 11.38},
        ),
        ("Explicitly set (1.0/23.21) GiB for KV cache on node 0.", {"kv_gib": 1.0}),
        ("Loading weights took 3.20 seconds", {}),
        ("KV cache memory: lots", {}),
        ("", {}),
    ],
)
def test_lines_of_a_start(line: str, found: dict[str, float]) -> None:
    assert figures(line) == found
    assert figures(Reader().read(f"(Worker_TP0 pid=7) INFO 11-29 11:49:57 [gpu_worker.py:1] {line}").text) == found


def test_several_workers_are_as_tight_as_the_tightest() -> None:
    known: dict[str, float] = {}
    for said in ({"weights_gib": 7.1}, {"weights_gib": 7.3}, {"kv_gib": 9.0}, {"kv_gib": 8.5}, {"kv_gib": 8.8}):
        known = merged(known, said)
    assert merged(known, {"kv_tokens": 10}) == {"weights_gib": 7.3, "kv_gib": 8.5, "kv_tokens": 10}
