"""What a start should find when it divides its GPUs' memory, by the policies of `plan`; state.json shows it beside what
vLLM says then.

For CUDA alone: on a CPU the cache is as large as it was told to be, and there is nothing to compare. A plan is a help,
and nothing that a start depends on: what cannot be told is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from appliance.errors import ApplianceError
from appliance.host import checkpoint, gpus
from appliance.policy import cards, engineoptions, sizing, weights
from appliance.policy.cards import GIB, Card
from appliance.policy.sizing import Sizing
from appliance.quantity import UNKNOWN


def planned(
    model: str, directory: str, flags: Mapping[str, object], own: Sequence[str], gpu_state: str
) -> dict[str, object] | None:
    """The figures for a model and its directory, the flags of the start and the UUIDs of its GPUs; never raises."""
    try:
        found = checkpoint.from_directory(directory)
        card = _card(own, gpu_state)
        known = [(one.name, one.dtype, one.size) for one in found.tensors]
        size = weights.known(known, found.total, found.source, found.architecture)
        if card is None or size is None or found.architecture.unknown:
            return None
        share = flags.get("gpu_memory_utilization")
        options = engineoptions.of_flags(flags, share if isinstance(share, float) else None)
        if sizing.value_bytes(options.kv_cache_dtype, found.architecture) is UNKNOWN:
            return None
        return {"model": model} | figures(sizing.size(found.architecture, size, card, options, tp=options.tp or 1))
    except (ApplianceError, OSError, ValueError, ArithmeticError, LookupError, TypeError):
        return None


def figures(plan: Sizing) -> dict[str, object]:
    """A plan in the words and units of vLLM's own lines (`wire/vllmfigures`), with what it is for."""
    told: dict[str, object] = {
        "gpu": plan.card.name,
        "tp": plan.tp,
        "pp": plan.pp,
        "weights_gib": round(plan.weights / GIB, 2),
        "kv_gib": round(plan.kv / GIB, 2),
    }
    if plan.cache is not None and plan.context is not UNKNOWN and plan.kv > 0:
        told["at_once"] = round(plan.cache.concurrency(plan.kv, plan.context), 2)
        told["kv_tokens"] = plan.cache.tokens(plan.kv, plan.context)
        told["context"] = plan.context
    return told


def _card(own: Sequence[str], gpu_state: str) -> Card | None:
    """The smallest of the engine's GPUs: each holds as much as that one."""
    found = [one for one in gpus.found(gpu_state) if one.uuid in own]
    known = [card for one in found if (card := cards.of_gpu(one.name, one.memory)) is not None]
    return min(known, key=lambda card: card.memory) if found and len(known) == len(own) else None
