"""Which GPUs each replica of an engine gets from the engine's `gpus`.

The list is the whole engine's. Replicas split it evenly in the list's order, unless one replica needs all of it (its
parallel sizes say so) or it is shorter than the replicas: then they share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from appliance.config.model import Auto, Config, Engine

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


def own_gpus(config: Config, instance: str, present: Sequence[str]) -> tuple[str, ...]:
    """The GPUs of one instance as CUDA_VISIBLE_DEVICES takes them; "auto" is every GPU that no other engine names."""
    engine = config.engine_of(instance)
    if engine is None:
        raise KeyError(instance)
    given = gpus_of(engine, instance)
    if given != "auto":
        return tuple(_named(gpu, present) for gpu in given)
    claimed = {
        _named(gpu, present)
        for other in config.engines
        if other is not engine and other.gpus != "auto"
        for gpu in other.gpus
    }
    return tuple(gpu for gpu in present if gpu not in claimed)


def _named(gpu: int | str, present: Sequence[str]) -> str:
    """A GPU's UUID where it is known; else as it was written."""
    if isinstance(gpu, int):
        return present[gpu] if gpu < len(present) else str(gpu)
    return gpu
