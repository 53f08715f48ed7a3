"""What vLLM 0.32 takes of its share of a GPU besides weights and KV cache.

The figures are fitted to vLLM's own start-up lines. Before it sizes the cache vLLM runs a forward pass of
`max_num_batched_tokens` tokens, then the sampler for `max_num_seqs` requests; the larger peak is set aside. Which of
the two it is depends on the card: 1024 requests of a large vocabulary are several GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.architecture import DTYPE_BYTES, Architecture, Keeps
from appliance.quantity import UNKNOWN

from .cards import GIB, Card

# Bytes that the sampler holds for each logit at its peak: 1.40 GiB for 256 x 151936, 5.58 GiB for 1024 x 151936,
# about 7.4 GiB for 1024 x 201088 (vllm#23278).
SAMPLER_BYTES = 38.5
ALONE = GIB // 10  # outside of torch, one GPU: 0.02 to 0.35 GiB in logs
TOGETHER = int(0.7 * GIB)  # NCCL and all-reduce buffers: 0.25 GiB on PCIe, 0.95 to 1.4 GiB with NVLink
GRAPHS = int(0.3 * GIB)  # CUDA graphs: a base ...
GRAPHS_PER_LAYER = 10 << 20  # ... and for each layer; 0.68 GiB for 36 layers, 2.4 GiB for a mixture of experts of 48
GRAPHS_EXPERTS = 2.5

LARGE = 70 * GIB  # from here vLLM's defaults are those of its H100 class, except on A100
LARGEST = 160 * GIB


@dataclass(frozen=True, slots=True)
class Batch:
    """vLLM's two limits of a step."""

    tokens: int  # max_num_batched_tokens
    requests: int  # max_num_seqs


@dataclass(frozen=True, slots=True)
class Overhead:
    """Bytes on each GPU."""

    context: int  # CUDA, NCCL
    activation: int
    graphs: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.context + self.activation + self.graphs


def defaults(card: Card) -> Batch:
    """vLLM's own limits for an API server on this card."""
    if card.memory >= LARGEST:
        return Batch(16384, 1024)
    if card.memory >= LARGE and "A100" not in card.name:
        return Batch(8192, 1024)
    return Batch(2048, 256)


def overhead(model: Architecture, batch: Batch, *, tp: int = 1, pp: int = 1, eager: bool = False) -> Overhead:
    """The estimate. A figure that the architecture does not tell counts as nothing: the cache is then less."""
    graphs = 0
    if not eager:
        layers = -(-len(model.layers) // pp)
        graphs = GRAPHS + int(layers * GRAPHS_PER_LAYER * (GRAPHS_EXPERTS if model.experts else 1))
    activation = max(_forward(model, batch.tokens, tp), _sampler(model, batch.requests))
    return Overhead(ALONE if tp * pp == 1 else TOGETHER, activation, graphs)


def _sampler(model: Architecture, requests: int) -> int:
    return 0 if model.vocabulary is UNKNOWN else int(requests * model.vocabulary * SAMPLER_BYTES)


def _forward(model: Architecture, tokens: int, tp: int) -> int:
    """The peak of one layer: residual, input and output, and the widest thing in between.

    Llama 3.1 8B has 110.6 KB a token = 2 bytes x 3 x (14336 + 4096), at 20,000 and at 29,000 tokens (vllm#10517).
    """
    if model.hidden is UNKNOWN:
        return 0
    width = 0 if model.intermediate is UNKNOWN else 3 * model.intermediate // tp
    experts = model.experts
    if experts:
        inner = max(2 * experts.width // tp, model.hidden) + experts.width // tp
        width = max(experts.active * inner + 3 * experts.shared_width // tp, width if _has_dense(model) else 0)
    states = [layer.conv_width for layer in model.layers if layer.keeps is Keeps.STATE]
    if states:
        width = max(width, 4 * max(states) // tp)
    return tokens * min(DTYPE_BYTES.get(model.dtype, 2), 2) * (3 * model.hidden + width)


def _has_dense(model: Architecture) -> bool:
    return model.experts is not None and model.experts.layers < len(model.layers)
