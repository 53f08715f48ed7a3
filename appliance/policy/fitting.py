"""Will it run, and with which settings: a plan, or refusals each with what would work instead.

What the operator fixed is kept and refused when it cannot work; what is left open is chosen, in this order: the fewest
GPUs that hold the model and the wanted context, then fewer requests at once where the sampler's peak eats the cache,
then an fp8 cache, then still fewer requests, then a shorter context.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from appliance.architecture import Architecture
from appliance.quantity import UNKNOWN, format_size

from . import overhead, sizing, weights
from .cards import Card
from .sizing import Options, Sizing
from .weights import Weights

WANTED = 32768  # tokens; agents' conversations reach this, and a context below it is worth another GPU
FEW_REQUESTS = 256  # vLLM's own default outside its H100 class
VERY_FEW_REQUESTS = 64  # still more than a cache that is short of room can hold at a useful length
STEP = 256  # max_model_len is rounded down to it
FP8_CACHE = 80  # compute capability from which vLLM has kernels for an fp8 cache
BFLOAT16 = 80
LOWEST = 75  # CUDA 13, which vLLM's wheels are built with, has no code for older cards

# vLLM 0.32: the lowest compute capability of each method, of its classes' get_min_capability
MINIMUM = {"awq": 75, "gptq": 60, "auto_round": 60, "fp8": 75, "fbgemm_fp8": 80, "nvfp4": 75, "mxfp4": 80,
           "compressed-tensors": 70, "bitsandbytes": 70, "modelopt": 80, "torchao": 75, "experts_int8": 80,
           "fp_quant": 100, "humming": 75}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why it cannot work, and what would."""

    reason: str
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One setting of the recommended `[engine.vllm]`, with its reason."""

    key: str
    value: int | float | str | bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The judgement. `verdict` is `unknown` where the architecture does not tell enough."""

    verdict: Literal["fits", "does not fit", "unknown"]
    sizing: Sizing | None
    lines: tuple[Line, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()


def plan(
    model: Architecture,
    checkpoint: Weights | None,
    cards: tuple[Card, ...],
    options: Options,
    contexts: tuple[int, ...] = (),
) -> Plan:
    """Judge one engine on the given cards (at least one)."""
    card = min(cards, key=lambda one: (one.memory, one.capability))
    notes = _notes(model, cards, card)
    refusals = [*_split(model, checkpoint, card, len(cards), options), *_impossible(model, card, options)]
    if refusals:
        return Plan(verdict="does not fit", sizing=None, refusals=tuple(refusals), notes=notes)
    if checkpoint is None:
        return Plan(verdict="unknown", sizing=None, notes=(*notes, "the size of the weights is not known"))
    if sizing.value_bytes(options.kv_cache_dtype, model) is UNKNOWN:
        doubt = f"what a KV cache in {options.kv_cache_dtype} takes is not known here"
        return Plan(verdict="unknown", sizing=None, notes=(*notes, doubt))
    if model.unknown:
        doubt = "what one request takes cannot be computed"
        return Plan(verdict="unknown", sizing=None, notes=(*notes, doubt))
    tried = [
        settled
        for tp in _candidates(model, len(cards), options)
        for settled in _settle(model, checkpoint, card, options, tp)
    ]
    chosen = next((one for one in tried if _good(one[0], options)), None) or max(tried, key=lambda one: _worth(one[0]))
    found, made = chosen
    found = sizing.size(model, checkpoint, card, made, tp=found.tp, contexts=contexts)
    refusals = _refusals(model, checkpoint, found, options, len(cards))
    if refusals:
        return Plan(verdict="does not fit", sizing=found, refusals=tuple(refusals), notes=notes)
    return Plan(verdict="fits", sizing=found, lines=_lines(model, found, options), notes=notes)


def _notes(model: Architecture, cards: tuple[Card, ...], card: Card) -> tuple[str, ...]:
    notes = [f"config.json does not tell: {what}" for what in model.unknown]
    if len({one.name for one in cards}) > 1:
        notes.append(f"the cards differ: each is counted as the smallest, {card.name}")
    if card.unified:
        notes.append(f"{card.name} shares its memory with the host: what the host uses is not left for vLLM")
    if model.multimodal:
        notes.append("images and sound take memory of their own, which is not counted")
    return tuple(notes)


def widths(model: Architecture, most: int) -> tuple[int, ...]:
    """The tensor-parallel sizes up to `most` that divide the model's heads."""
    heads, keys = model.heads, model.kv_heads
    if heads is UNKNOWN or heads == 0:
        return (1,)
    good = [n for n in range(1, most + 1) if heads % n == 0]
    if keys is not UNKNOWN and keys and not model.latent_heads:
        good = [n for n in good if keys % n == 0 or n % keys == 0]
    return tuple(good)


def _candidates(model: Architecture, cards: int, options: Options) -> tuple[int, ...]:
    if options.tp is not None:
        return (options.tp,)
    return widths(model, max(cards // options.pp, 1))


def _split(model: Architecture, checkpoint: Weights | None, card: Card, cards: int, options: Options) -> list[Refusal]:
    """A number of GPUs that the model cannot be split over, or that is not there; the alternatives hold the model."""
    tp = options.tp or 1
    good = [n for n in widths(model, max(cards // options.pp, 1)) if n != tp]
    if checkpoint is not None and not model.unknown:
        good = [n for n in good if sizing.size(model, checkpoint, card, options, tp=n).kv > 0]
    instead = tuple(f"tensor_parallel_size = {n}" for n in good) or (f"more than {cards} such cards",)
    if tp * options.pp > cards:
        return [
            Refusal(f"{tp * options.pp} GPUs are asked for, {cards} there {'is' if cards == 1 else 'are'}", instead)
        ]
    if tp not in widths(model, tp):
        heads = f"{model.heads} attention heads ({model.kv_heads} with keys)"
        return [Refusal(f"{heads} cannot be split over {tp} GPUs", instead)]
    return []


def _impossible(model: Architecture, card: Card, options: Options) -> list[Refusal]:
    """What no amount of memory changes."""
    found = []
    quant = model.quantisation
    needed = MINIMUM.get(quant.method, LOWEST) if quant else LOWEST
    if card.capability < LOWEST:
        found.append(
            Refusal(
                f"{card.name} (compute capability {_dotted(card.capability)}) is too old for this vLLM, "
                f"which needs {_dotted(LOWEST)}",
                ("a card of the Turing generation or later",),
            )
        )
    elif quant and card.capability < needed:
        found.append(
            Refusal(
                f"{quant.method} needs compute capability {_dotted(needed)}, {card.name} has "
                f"{_dotted(card.capability)}",
                ("a checkpoint in AWQ or GPTQ form", f"a card of compute capability {_dotted(needed)} or later"),
            )
        )
    if options.kv_cache_dtype.startswith("fp8") and card.capability < FP8_CACHE:
        found.append(Refusal(f"{card.name} has no fp8 KV cache", ('kv_cache_dtype = "auto"',)))
    wanted = options.max_model_len
    if wanted is not None and model.context is not UNKNOWN and wanted > model.context:
        found.append(
            Refusal(
                f"max_model_len {wanted} is more than the model's {model.context} tokens",
                (f"max_model_len = {model.context}",),
            )
        )
    return found


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


def _settle(
    model: Architecture, checkpoint: Weights, card: Card, options: Options, tp: int
) -> list[tuple[Sizing, Options]]:
    """The ways to try on so many GPUs, the most generous first."""
    ways = [options]
    usual = sizing.size(model, checkpoint, card, options, tp=tp)
    if options.max_num_seqs is None and usual.batch.requests > FEW_REQUESTS:
        ways.append(replace(options, max_num_seqs=FEW_REQUESTS))
    if options.kv_cache_dtype == "auto" and card.capability >= FP8_CACHE and sizing.value_bytes("auto", model) != 1:
        ways.append(replace(ways[-1], kv_cache_dtype="fp8"))
    if options.max_num_seqs is None:
        ways.append(replace(ways[-1], max_num_seqs=VERY_FEW_REQUESTS))
    sized = [(sizing.size(model, checkpoint, card, way, tp=tp), way) for way in ways]
    return [(found, _bounded(found, way, options)) for found, way in sized]


def _bounded(found: Sizing, way: Options, given: Options) -> Options:
    """A hybrid needs a state for each request that may run: no more requests than there are blocks."""
    if found.cache is None or not found.cache.fixed_states or given.max_num_seqs is not None:
        return way
    blocks = found.cache.blocks(found.kv)
    return way if blocks >= found.batch.requests or blocks < 1 else replace(way, max_num_seqs=blocks)


def _target(found: Sizing, options: Options) -> int:
    if options.max_model_len is not None:
        return options.max_model_len
    return WANTED if found.context is UNKNOWN else min(found.context, WANTED)


def _good(found: Sizing, options: Options) -> bool:
    if found.kv < 0:
        return False
    return found.cache is None or (found.longest is not UNKNOWN and found.longest >= _target(found, options))


def _worth(found: Sizing) -> tuple[int, int]:
    longest = found.longest
    return (0 if longest is UNKNOWN or found.kv < 0 else longest, found.kv)


def _refusals(model: Architecture, checkpoint: Weights, found: Sizing, options: Options, cards: int) -> list[Refusal]:
    """What the memory does not allow."""
    if found.kv <= 0 and (found.cache is not None or found.kv < 0):
        used = found.weights + found.overhead.total
        return [
            Refusal(
                f"weights and working memory take {format_size(used)} of each GPU, vLLM may use "
                f"{format_size(found.share)} of {found.card.name}",
                _room(model, checkpoint, found, options, cards),
            )
        ]
    if found.cache is None or found.longest is UNKNOWN:
        return []
    refusals = []
    wanted = options.max_model_len
    if (wanted is not None and found.longest < wanted) or found.longest < STEP:
        need = found.cache.request_bytes(wanted or STEP)
        shorter = (f"max_model_len = {found.longest // STEP * STEP}",) if found.longest >= STEP else ()
        refusals.append(
            Refusal(
                f"one request of {wanted or STEP} tokens takes {format_size(need)} of KV cache, "
                f"{format_size(max(found.kv, 0))} are left",
                (*shorter, *_room(model, checkpoint, found, options, cards)),
            )
        )
    blocks = found.cache.blocks(found.kv)
    if found.cache.fixed_states and options.max_num_seqs is not None and blocks < options.max_num_seqs:
        refusals.append(
            Refusal(
                f"max_num_seqs {options.max_num_seqs} is more than the {blocks} blocks that hold requests' states",
                (f"max_num_seqs = {blocks}",),
            )
        )
    return refusals


def _room(model: Architecture, checkpoint: Weights, found: Sizing, options: Options, cards: int) -> tuple[str, ...]:
    """What would make room, as far as it does."""
    ways = []

    def enough(tp: int, one: Options, what: Weights = checkpoint) -> bool:
        return _good(sizing.size(model, what, found.card, one, tp=tp), one)

    wider = next((n for n in widths(model, 16) if n > found.tp and enough(n, options)), None)
    if wider is not None:
        here = wider * options.pp <= cards
        ways.append(f"tensor_parallel_size = {wider}" + ("" if here else f", on {wider * options.pp} such cards"))
    narrow = replace(options, kv_cache_dtype="fp8")
    if options.kv_cache_dtype == "auto" and found.card.capability >= FP8_CACHE and enough(found.tp, narrow):
        ways.append('kv_cache_dtype = "fp8"')
    few = VERY_FEW_REQUESTS
    if (
        options.max_num_seqs is not None
        and few < options.max_num_seqs
        and enough(found.tp, replace(options, max_num_seqs=few))
    ):
        ways.append(f"max_num_seqs = {few}")
    if weights.linear_bytes(model.quantisation, model.dtype) > 1:
        for word, part in (("an FP8", 0.5), ("a 4-bit (AWQ, GPTQ or NVFP4)", 0.27)):
            smaller = replace(checkpoint, layers=int(checkpoint.layers * part), keys=int(checkpoint.keys * part))
            if enough(found.tp, replace(options, quantization=""), smaller):
                ways.append(f"{word} checkpoint of the model, about {format_size(smaller.total)}")
                break
    return tuple(ways) or ("a smaller model, or cards with more memory",)


def _lines(model: Architecture, found: Sizing, given: Options) -> tuple[Line, ...]:
    """The settings that differ from vLLM's own choice, each with its reason."""
    lines = []
    if found.tp > 1:
        why = (
            "as asked" if given.tp else f"the fewest GPUs that hold {format_size(found.weights * found.tp)} of weights"
        )
        lines.append(Line("tensor_parallel_size", found.tp, why))
    if found.pp > 1:
        lines.append(Line("pipeline_parallel_size", found.pp, "as asked"))
    if model.dtype == "bfloat16" and found.card.capability < BFLOAT16 and given.dtype == "auto":
        lines.append(Line("dtype", "half", f"{found.card.name} has no bfloat16"))
    longest = found.longest
    if longest is not UNKNOWN and model.context is not UNKNOWN and found.cache is not None:
        if given.max_model_len is not None:
            lines.append(Line("max_model_len", given.max_model_len, "as asked"))
        elif longest < model.context:
            held = f"the cache holds {longest} tokens, the model could {model.context}"
            lines.append(Line("max_model_len", longest // STEP * STEP, held))
    if found.kv_dtype != "auto":
        why = "as asked" if given.kv_cache_dtype != "auto" else "twice the tokens in the same memory"
        lines.append(Line("kv_cache_dtype", found.kv_dtype, why))
    if given.utilization != sizing.UTILIZATION:
        lines.append(Line("gpu_memory_utilization", given.utilization, "as asked"))
    usual = overhead.defaults(found.card).requests
    if given.max_num_seqs is not None:
        lines.append(Line("max_num_seqs", given.max_num_seqs, "as asked"))
    elif found.batch.requests != usual:
        why = f"the peak of {usual}, vLLM's own choice, would take room from the cache"
        if found.batch.requests not in (FEW_REQUESTS, VERY_FEW_REQUESTS):
            why = f"each request needs a state; there is no room for vLLM's own {usual}"
        lines.append(Line("max_num_seqs", found.batch.requests, why))
    return tuple(lines)
