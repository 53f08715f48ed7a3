"""How a checkpoint's bytes spread over GPUs.

Tensor parallelism splits the big matrices, keeps norms, routers and MLA's down-projections whole on every GPU, and
keeps key and value projections whole per head: with more GPUs than such heads they are replicated. Pipeline parallelism
gives each stage its layers, the first one the input embedding, the last one the output.

`from_tensors` knows each tensor from the headers; `from_total` has only the sum and takes the parts that are not split
evenly from the architecture; `from_architecture` counts parameters, for checkpoints in other forms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from appliance.architecture import DTYPE_BYTES, Architecture, Keeps, Quantisation
from appliance.quantity import UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes of a checkpoint by how they are split. `source` is a phrase for people."""

    layers: int = 0  # split over all GPUs of a stage
    keys: int = 0  # key and value projections
    whole: int = 0  # on every GPU of a stage
    embedding: int = 0
    head: int = 0
    beside: int = 0  # encoders of other senses: split, first stage
    source: str = ""
    exact: bool = False

    @property
    def total(self) -> int:
        """All bytes, once."""
        return self.layers + self.keys + self.whole + self.embedding + self.head + self.beside


_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_OTHER_SENSE = re.compile(r"vision|visual|audio|multi_modal|mm_projector|patch_embed|image_newline|connector")
_DRAFT = re.compile(r"(?:^|\.)(?:mtp|nextn|eh_proj)\b")
_EMBEDDING = re.compile(r"embed_tokens|\bwte\b|word_embeddings|tok_embeddings|embed_in\b")
_HEAD = re.compile(r"lm_head|embed_out|output_layer|^output\.")
_KEYS = re.compile(r"\b(?:k_proj|v_proj|wk|wv)\b")
_WHOLE = re.compile(r"norm|router|mlp\.gate\.|\.gate\.(?:weight|e_score)|kv_a_proj|q_a_proj|indexer|ln_\d|layer_scalar")


def from_tensors(tensors: Iterable[tuple[str, str, int]], model: Architecture) -> Weights:
    """Sort (name, dtype, bytes) of every tensor. Draft layers are left out: vLLM loads them only when told to draft."""
    sums = {"layers": 0, "keys": 0, "whole": 0, "embedding": 0, "head": 0, "beside": 0}
    halve = model.dtype == "float32" and model.quantisation is None  # vLLM serves such checkpoints in 16 bits
    count = sum(1 for _ in model.layers) or None
    for name, dtype, size in tensors:
        kind = _kind(name, count, model.tied)
        if kind:
            sums[kind] += size // 2 if halve and dtype == "F32" else size
    return Weights(**sums, source="the tensors' headers", exact=True)


def _kind(name: str, count: int | None, tied: bool) -> str:
    """The field of Weights that a tensor belongs to; empty for one that is not loaded."""
    if _OTHER_SENSE.search(name):
        return "beside"
    number = _LAYER.search(name)
    if _DRAFT.search(name) or (number and count is not None and int(number[1]) >= count):
        return ""
    if number is None:
        if _EMBEDDING.search(name):
            return "embedding"
        if _HEAD.search(name):
            return "" if tied else "head"
        return "whole"
    if _WHOLE.search(name):
        return "whole"
    return "keys" if _KEYS.search(name) else "layers"


def known(
    tensors: Sequence[tuple[str, str, int]], total: int | None, source: str, model: Architecture
) -> Weights | None:
    """By what is known of a checkpoint: its tensors, else the sum of all, else the architecture."""
    if tensors:
        return from_tensors(tensors, model)
    return from_architecture(model) if total is None else from_total(total, model, source)


def from_total(total: int, model: Architecture, source: str) -> Weights:
    """Spread a checkpoint's sum: embeddings, keys and routers by the architecture, the rest over all GPUs."""
    parts = _parts(model)
    rest = total - parts.embedding - parts.head - parts.keys - parts.whole
    if rest < 0:  # a figure of the architecture is not meant as it is read here
        return Weights(layers=total, source=source)
    return replace(parts, layers=rest, source=source)


def from_architecture(model: Architecture) -> Weights | None:
    """Count parameters. None where a layer is of a kind whose weights cannot be told from what it keeps."""
    hidden, heads, width, vocabulary = model.hidden, model.heads, model.intermediate, model.vocabulary
    if hidden is UNKNOWN or heads is UNKNOWN or vocabulary is UNKNOWN or not model.layers:
        return None
    if any(layer.keeps in (Keeps.LATENT, Keeps.STATE, Keeps.NOTHING) for layer in model.layers):
        return None
    experts = model.experts
    sparse = experts.layers if experts else 0
    linear = 0.0
    for layer in model.layers:
        linear += hidden * heads * (layer.head_dim + layer.value_dim)
    dense = len(model.layers) - sparse
    if dense and width is UNKNOWN:
        return None
    linear += dense * 3 * hidden * (0 if width is UNKNOWN else width)
    per_weight = linear_bytes(model.quantisation, model.dtype)
    expert = 0
    if experts:
        expert = sparse * experts.count * 3 * hidden * experts.width
        linear += sparse * 3 * hidden * experts.shared_width
    body = (linear if _all_linear(model.quantisation) else 0) + expert
    size = int(body * per_weight)
    if not _all_linear(model.quantisation):
        size += int(linear * DTYPE_BYTES.get(model.dtype, 2))
    return replace(_parts(model), layers=size, source="a count of parameters")


def _all_linear(quant: Quantisation | None) -> bool:
    """Whether attention is quantised too; OpenAI's mxfp4 checkpoints keep it in 16 bits."""
    return quant is None or quant.method != "mxfp4"


def linear_bytes(quant: Quantisation | None, dtype: str = "bfloat16") -> float:
    """Bytes of one weight of a linear layer, its share of the scales included."""
    if quant is None or quant.bits is UNKNOWN:
        return float(min(DTYPE_BYTES.get(dtype, 2), 2))
    size = quant.bits / 8
    group = 0 if quant.group is UNKNOWN else quant.group
    if quant.method in ("nvfp4", "mxfp4"):
        return size + 1 / (group or 16)
    if quant.method in ("awq", "gptq", "auto_round") and group:
        return size + (2 + quant.bits / 8) / group
    return size + (4 / group if group else 0)


# What vLLM makes of a 16-bit checkpoint while it loads, as a part of the linear layers' bytes.
SHRUNK = {"fp8": 0.5, "bitsandbytes": 0.28}


def shrunk(weights: Weights, method: str) -> Weights:
    """A checkpoint of 16 bits as it is held when vLLM quantises it on loading; the same for any other method."""
    part = SHRUNK.get(method)
    if part is None:
        return weights
    smaller = replace(weights, layers=int(weights.layers * part), keys=int(weights.keys * part))
    return replace(smaller, source=f"{weights.source}, {method} on loading")


def _parts(model: Architecture) -> Weights:
    """What is not split evenly, by the architecture; zero where a figure is not known."""
    hidden, vocabulary = model.hidden, model.vocabulary
    if hidden is UNKNOWN:
        return Weights()
    plain = min(DTYPE_BYTES.get(model.dtype, 2), 2)
    table = 0 if vocabulary is UNKNOWN else vocabulary * hidden * plain
    per_weight = linear_bytes(model.quantisation, model.dtype) if _all_linear(model.quantisation) else plain
    keys = sum(layer.kv_heads * (layer.head_dim + layer.value_dim) for layer in model.layers)
    whole = len(model.layers) * 2 * hidden * plain
    whole += sum(int(layer.latent * hidden * per_weight) for layer in model.layers)
    if model.experts:
        whole += model.experts.layers * model.experts.count * hidden * plain
    return Weights(
        keys=int(keys * hidden * per_weight),
        whole=whole,
        embedding=table,
        head=0 if model.tied else table,
    )


def per_gpu(weights: Weights, model: Architecture, tp: int = 1, pp: int = 1) -> int:
    """Bytes on the fullest GPU, the table of rotary positions included."""
    count = max(len(model.layers), 1)
    share = -(-count // pp) / count
    ranks = tp if model.kv_heads is UNKNOWN or model.kv_heads == 0 else min(tp, model.kv_heads)
    layers = weights.layers * _padding(model, tp)
    body = (layers / tp + weights.keys / ranks + weights.whole) * share
    first = (weights.embedding + weights.beside) / tp
    last = (weights.head or (weights.embedding if model.tied and pp > 1 else 0)) / tp
    return int(body + (first + last if pp == 1 else max(first, last)) + _rotary(model))


def _rotary(model: Architecture) -> int:
    """Sines and cosines for every position of the context, 16 bits each; one table for all layers."""
    if model.context is UNKNOWN or model.head_dim is UNKNOWN:
        return 0
    return model.context * min(model.head_dim, 256) * 2


def _padding(model: Architecture, tp: int) -> float:
    """How much MXFP4 experts grow on loading: Marlin wants widths in steps of 128 and hidden sizes in steps of 256.

    gpt-oss: 2880 x 2880 becomes 2944 x 3072, and 60.8 GiB on the disk 66.0 GiB on the GPU (vllm#23278).
    """
    experts, hidden = model.experts, model.hidden
    if experts is None or hidden is UNKNOWN or model.quantisation is None or model.quantisation.method != "mxfp4":
        return 1.0
    each = -(-experts.width // tp)
    return (-(-each // 128) * 128 / each) * (-(-hidden // 256) * 256 / hidden)
