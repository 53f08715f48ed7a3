"""Whole numbers in an engine's vLLM flags, as vLLM reads them (`32K`, too); what is none counts as not given."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

_SCALES = {"": 1, "k": 1000, "K": 1 << 10, "m": 1000**2, "M": 1 << 20}


def number(flags: Mapping[str, object], flag: str) -> int | None:
    """A flag above zero; None: vLLM's own default holds."""
    value = flags.get(flag)
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return tokens(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def batch_limit(flags: Mapping[str, object]) -> int | None:
    """Requests that an engine works on at once, `max_num_seqs`."""
    return number(flags, "max_num_seqs")


def tokens(text: str) -> int:
    """`32768`, `32K` (1024 each) or `32k` (1000 each), as vLLM reads them. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text.strip())
    found = int(float(match[1]) * _SCALES[match[2]]) if match else 0
    if not 0 < found < 1 << 31:
        raise ValueError(f"{text!r} is no number of tokens")
    return found
