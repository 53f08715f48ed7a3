"""The figures in vLLM's start-up lines: what it found when it divided a GPU's memory.

A worker says what its own GPU holds, so several may say the same thing otherwise; what counts is the tightest one. The
names of figures are ours, sizes are in GiB, as vLLM writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NUMBER = r"(-?[\d,]+(?:\.\d+)?)"
_FIGURES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(rf"Model loading took {_NUMBER} GiB"), ("weights_gib",)),
    (re.compile(rf"Available KV cache memory: {_NUMBER} GiB"), ("kv_gib",)),
    (re.compile(rf"Explicitly set \({_NUMBER}/[\d.]+\) GiB for KV cache"), ("kv_gib",)),
    (re.compile(rf"\w KV cache size: {_NUMBER} tokens"), ("kv_tokens",)),
    (re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request: {_NUMBER}x"), ("context", "at_once")),
)


def figures(text: str) -> dict[str, float]:
    """The figures in a line's text; most lines have none."""
    if "KV cache" not in text and "tokens per request" not in text and not text.startswith("Model loading took "):
        return {}
    found: dict[str, float] = {}
    for pattern, names in _FIGURES:
        if match := pattern.search(text):
            found |= {name: float(number.replace(",", "")) for name, number in zip(names, match.groups(), strict=True)}
    return found


def merged(known: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    """Several workers' figures as one: the most weights, the least room."""
    found = {**known, **new}
    if "weights_gib" in known:
        found["weights_gib"] = max(known["weights_gib"], found["weights_gib"])
    if "kv_gib" in known:
        found["kv_gib"] = min(known["kv_gib"], found["kv_gib"])
    return found
