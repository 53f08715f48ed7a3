"""What a model is, in the figures that decide memory: layers and what each keeps of a request, sizes, quantisation.

`wire/modelconfig` reads it from a checkpoint's config.json, `policy/` computes with it. A figure that the file does not
tell is UNKNOWN and named in `unknown`; nothing is guessed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from appliance.quantity import UNKNOWN, Maybe


class Keeps(enum.Enum):
    """What a layer keeps in GPU memory of a running request."""

    FULL = "full attention"  # keys and values of every token
    SLIDING = "sliding window"  # of the last `window` tokens
    CHUNKED = "chunked attention"  # of the current chunk of `window` tokens
    LATENT = "latent (MLA)"  # one compressed vector a token, shared by all heads
    STATE = "recurrent state"  # a fixed size for each request (Mamba, linear attention, short convolution)
    NOTHING = "nothing"  # a layer without attention, or one that reads another's keys


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the decoder. Sizes are of the whole model, before anything is split over GPUs."""

    keeps: Keeps
    kv_heads: int = 0
    head_dim: int = 0  # of a key
    value_dim: int = 0  # of a value
    window: int = 0  # tokens, of SLIDING and CHUNKED
    latent: int = 0  # values a token, of LATENT
    index_bytes: int = 0  # bytes a token of a sparse-attention index beside a LATENT
    conv_width: int = 0  # channels of a STATE's convolution ...
    conv_steps: int = 0  # ... and how many past steps of each it keeps, two bytes a value
    state_bytes: int = 0  # the rest of a STATE


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts: how many there are, how many work on a token, and how wide each is."""

    count: int
    active: int
    width: int
    layers: int  # that have experts; the others are dense
    shared_width: int = 0  # of the experts that work on every token, together


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How the checkpoint stores its linear layers. `method` is vLLM's word; `bits` of one weight."""

    method: str
    bits: Maybe[int] = UNKNOWN
    group: Maybe[int] = UNKNOWN  # weights that share a scale; 0: a whole channel
    kv_dtype: str = ""  # the checkpoint's own choice for the KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model as its config.json tells it."""

    family: str  # model_type
    layers: tuple[Layer, ...] = ()
    hidden: Maybe[int] = UNKNOWN
    heads: Maybe[int] = UNKNOWN
    kv_heads: Maybe[int] = UNKNOWN
    head_dim: Maybe[int] = UNKNOWN
    intermediate: Maybe[int] = UNKNOWN
    vocabulary: Maybe[int] = UNKNOWN
    context: Maybe[int] = UNKNOWN  # tokens that the model was made for
    dtype: str = ""  # "bfloat16", "float16", "float32"; empty: the file does not say
    tied: bool = False  # input and output embedding are one tensor
    experts: Experts | None = None
    quantisation: Quantisation | None = None
    multimodal: bool = False
    latent_heads: bool = False  # attention is MLA: heads are split, what is kept is not
    unknown: tuple[str, ...] = ()  # what the file does not tell, or tells in a way that is not known here


DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}
