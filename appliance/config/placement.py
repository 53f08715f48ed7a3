"""Which GPUs each replica of an engine gets from the engine's `gpus`.

The list is the whole engine's. Replicas split it evenly in the list's order, unless one replica needs all of it (its
parallel sizes say so) or it is shorter than the replicas: then they share it.
"""

from __future__ import annotations

import math

from appliance.config.model import Auto, Engine

PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size")
MEMORY_SHARE = 0.92  # vLLM's own default of gpu_memory_utilization


def gpus_needed(engine: Engine) -> int | None:
    """GPUs that one replica uses by its vLLM flags; None when no flag says so (then it uses what it is given)."""
    sizes = [size for flag in PARALLEL if isinstance(size := engine.vllm.get(flag), int)]
    return math.prod(sizes) if sizes else None


def gpus_of(engine: Engine, instance: str) -> Auto | tuple[int | str, ...]:
    """The GPUs of one replica: "auto", none for CPU, or its part of the list."""
    if engine.gpus == "auto" or engine.replicas == 1:
        return engine.gpus
    part, rest = divmod(len(engine.gpus), engine.replicas)
    if part == 0 or rest or (gpus_needed(engine) or 0) > part:
        return engine.gpus
    index = engine.instances.index(instance)
    return engine.gpus[index * part : (index + 1) * part]


def memory_share(engine: Engine) -> float | None:
    """The part of each of its GPUs that a replica takes; None when a KV size in bytes decides instead."""
    if "kv_cache_memory_bytes" in engine.vllm:
        return None
    share = engine.vllm.get("gpu_memory_utilization", MEMORY_SHARE)
    return float(share) if isinstance(share, (int, float)) else None
