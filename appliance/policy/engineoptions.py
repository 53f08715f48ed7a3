"""What an engine's vLLM flags fix of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .cards import GIB
from .flagnumbers import batch_limit, number
from .sizing import Options


def of_flags(flags: Mapping[str, object], share: float | None) -> Options:
    """The options; `share` is vLLM's part of each GPU where it is not its own default."""

    def words(flag: str) -> str:
        value = flags.get(flag)
        return value if isinstance(value, str) else "auto"

    offload = flags.get("cpu_offload_gb")
    draft = flags.get("speculative_config")
    guessed = (
        draft.get("num_speculative_tokens") if isinstance(draft, dict) and "mtp" in str(draft.get("method")) else 0
    )
    made = Options(
        tp=number(flags, "tensor_parallel_size"),
        pp=number(flags, "pipeline_parallel_size") or 1,
        max_model_len=number(flags, "max_model_len"),
        kv_cache_dtype=words("kv_cache_dtype"),
        max_num_seqs=batch_limit(flags),
        max_num_batched_tokens=number(flags, "max_num_batched_tokens"),
        kv_cache_bytes=number(flags, "kv_cache_memory_bytes"),
        dtype=words("dtype"),
        eager=flags.get("enforce_eager") is True,
        prefix_caching=flags.get("enable_prefix_caching") is not False,
        speculative=guessed if isinstance(guessed, int) else 0,
        quantization="" if words("quantization") == "auto" else words("quantization"),
        offload=int(offload * GIB) if isinstance(offload, (int, float)) else 0,
    )
    return made if share is None else replace(made, utilization=share)
