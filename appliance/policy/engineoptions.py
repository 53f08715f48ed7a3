"""What an engine's vLLM flags fix of a plan."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace

from .cards import GIB
from .sizing import Options

_SCALES = {"": 1, "k": 1000, "K": 1 << 10, "m": 1000**2, "M": 1 << 20}


def tokens(text: str) -> int:
    """`32768`, `32K` (1024 each) or `32k` (1000 each), as vLLM reads them. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text.strip())
    number = int(float(match[1]) * _SCALES[match[2]]) if match else 0
    if not 0 < number < 1 << 31:
        raise ValueError(f"{text!r} is no number of tokens")
    return number


def of_flags(flags: Mapping[str, object], share: float | None) -> Options:
    """The options; `share` is vLLM's part of each GPU where it is not its own default."""

    def number(flag: str) -> int | None:
        value = flags.get(flag)
        if isinstance(value, str):  # vLLM takes 32K, too
            with contextlib.suppress(ValueError):
                return tokens(value)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def words(flag: str) -> str:
        value = flags.get(flag)
        return value if isinstance(value, str) else "auto"

    offload = flags.get("cpu_offload_gb")
    draft = flags.get("speculative_config")
    guessed = (
        draft.get("num_speculative_tokens") if isinstance(draft, dict) and "mtp" in str(draft.get("method")) else 0
    )
    made = Options(
        tp=number("tensor_parallel_size"),
        pp=number("pipeline_parallel_size") or 1,
        max_model_len=number("max_model_len"),
        kv_cache_dtype=words("kv_cache_dtype"),
        max_num_seqs=number("max_num_seqs"),
        max_num_batched_tokens=number("max_num_batched_tokens"),
        kv_cache_bytes=number("kv_cache_memory_bytes"),
        dtype=words("dtype"),
        eager=flags.get("enforce_eager") is True,
        prefix_caching=flags.get("enable_prefix_caching") is not False,
        speculative=guessed if isinstance(guessed, int) else 0,
        quantization="" if words("quantization") == "auto" else words("quantization"),
        offload=int(offload * GIB) if isinstance(offload, (int, float)) else 0,
    )
    return made if share is None else replace(made, utilization=share)
