"""One way of running a model on given cards, in bytes: what each GPU holds, what is left for the KV cache, what fits.

    the share of memory (gpu_memory_utilization)
        - weights            policy/weights
        - context, peak      policy/overhead
        = KV cache           policy/kvcache: tokens, longest request, requests at once

Nothing is judged here; `policy/fitting` does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.architecture import Architecture
from appliance.quantity import UNKNOWN, Maybe

from . import kvcache, overhead, weights
from .cards import Card
from .kvcache import Cache
from .overhead import Batch, Overhead
from .weights import Weights

UTILIZATION = 0.92  # vLLM's own default of gpu_memory_utilization
BATCHES_IN_FLIGHT = 2  # asynchronous scheduling, vLLM's default: one batch runs while the next is made


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the operator has fixed; None or "auto" leaves the choice to the plan."""

    tp: int | None = None
    pp: int = 1
    max_model_len: int | None = None
    kv_cache_dtype: str = "auto"
    utilization: float = UTILIZATION
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_bytes: int | None = None  # kv_cache_memory_bytes: instead of what is left
    dtype: str = "auto"
    eager: bool = False
    prefix_caching: bool = True
    speculative: int = 0
    quantization: str = ""  # of a checkpoint that has none: vLLM shrinks it while loading
    offload: int = 0  # bytes of weights that stay in the host's memory, on each GPU
    corrections: Mapping[tuple[int, int], int] = field(default_factory=dict)  # what starts taught (`planerror`)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """One GPU's memory under one way of running. Sizes in bytes."""

    tp: int
    pp: int
    card: Card
    batch: Batch
    kv_dtype: str
    share: int  # what vLLM may use
    weights: int
    overhead: Overhead
    correction: int  # by how much an earlier start left more room than all this says, or less
    cache: Cache | None  # None: the model keeps nothing of a request
    kv: int  # left for the cache; negative when there is too little
    context: Maybe[int]  # the longest request that the model was made for, or that the operator asks for
    at_once: Mapping[int, float] = field(default_factory=dict)  # context length -> requests

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp

    @property
    def longest(self) -> Maybe[int]:
        """The largest max_model_len that starts; UNKNOWN without a context length."""
        if self.context is UNKNOWN or self.cache is None:
            return self.context
        return self.cache.longest(self.kv, self.context)

    @property
    def tokens(self) -> Maybe[int]:
        """vLLM's "GPU KV cache size" at the largest max_model_len; UNKNOWN where nothing is kept."""
        longest = self.longest
        if self.cache is None or longest is UNKNOWN:
            return UNKNOWN
        return self.cache.tokens(self.kv, longest) if longest else 0


def value_bytes(kv_dtype: str, model: Architecture) -> Maybe[int]:
    """Bytes of one value in the cache; "auto" is the checkpoint's own choice, else the model's precision, 16 bits.

    UNKNOWN for a form that is not counted here.
    """
    if kv_dtype != "auto":
        return kvcache.KV_BYTES.get(kv_dtype, UNKNOWN)
    own = model.quantisation.kv_dtype if model.quantisation else ""
    return kvcache.KV_BYTES.get(own, 2)


def size(
    model: Architecture,
    checkpoint: Weights,
    card: Card,
    options: Options,
    *,
    tp: int,
    contexts: tuple[int, ...] = (),
) -> Sizing:
    """The sizing of one replica on `tp * options.pp` cards of one kind."""
    usual = overhead.defaults(card)
    batch = Batch(options.max_num_batched_tokens or usual.tokens, options.max_num_seqs or usual.requests)
    share = int(card.memory * options.utilization)
    loaded = checkpoint if model.quantisation else weights.shrunk(checkpoint, options.quantization)
    held = max(weights.per_gpu(loaded, model, tp, options.pp) - options.offload, 0)
    kv_bytes = value_bytes(options.kv_cache_dtype, model)
    beside = overhead.overhead(model, batch, tp=tp, pp=options.pp, eager=options.eager)
    setting = kvcache.Setting(
        tp=tp,
        pp=options.pp,
        kv_bytes=2 if kv_bytes is UNKNOWN else kv_bytes,
        in_flight=batch.tokens * BATCHES_IN_FLIGHT,
        prefix_caching=options.prefix_caching,
        speculative=options.speculative,
    )
    cache = kvcache.layout(model, setting)
    correction = options.corrections.get((tp, options.pp), 0) if options.kv_cache_bytes is None else 0
    left = share - held - beside.total + correction if options.kv_cache_bytes is None else options.kv_cache_bytes
    fitting = {length: min(cache.concurrency(left, length), batch.requests) for length in contexts} if cache else {}
    return Sizing(
        tp=tp,
        pp=options.pp,
        card=card,
        batch=batch,
        kv_dtype=options.kv_cache_dtype,
        share=share,
        weights=held,
        overhead=beside,
        correction=correction,
        cache=cache,
        kv=left,
        context=model.context if options.max_model_len is None else options.max_model_len,
        at_once=fitting,
    )
