"""What each layer of a model keeps of a request, from the ways in which families say it.

    layer_types                 one word a layer (most families since 2025)
    hybrid_override_pattern     one letter a layer (Nemotron-H)
    full_attention_interval     every n-th layer attends to all, the others are linear (Qwen3-Next)
    sliding_window(_pattern)    all layers, or all but every n-th, look back only so far
    kv_lora_rank                MLA: a compressed vector instead of keys and values
    linear_attn_config          lists of layers (Kimi Linear)

A model whose way is not among them is full attention only where nothing in its file speaks of another kind; else the
doubt is returned.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.architecture import Keeps, Layer
from appliance.quantity import UNKNOWN, Maybe

from .jsonfields import Fields

MOST_LAYERS = 2048
_NONE = Layer(Keeps.NOTHING)

# Kinds of attention whose memory is not computed here: better said than counted as full attention.
_FOREIGN = ("compress_ratios", "ssm_cfg", "attn_type_list", "mamba2_layers", "lightning_attention", "compress_rates")
_NOT_MLA = frozenset({"minicpm3"})  # vLLM keeps whole keys for it
_DOUBLED = frozenset({"longcat_flash"})
_ENCODERS = frozenset({"bert", "roberta", "xlm-roberta", "distilbert", "modernbert", "nomic_bert", "gte", "new",
                       "electra", "deberta", "deberta-v2", "mpnet"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's common figures and the fields that they came from."""

    family: str
    count: int
    kv_heads: Maybe[int]
    head_dim: Maybe[int]
    fields: Fields


def layers(shape: Shape) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """(one Layer for each, doubts). No layers where a needed figure is missing; the doubts say which."""
    if not 0 < shape.count <= MOST_LAYERS:
        return (), ()
    if shape.family in _DOUBLED:
        return (), (f"what a layer keeps ({shape.family} attends twice in each)",)
    if shape.family in _ENCODERS:  # a text is read whole: nothing is kept for a next token
        return (_NONE,) * shape.count, ()
    foreign = [name for name in _FOREIGN if name in shape.fields]
    if foreign:
        return (), (f"what a layer keeps ({', '.join(foreign)} of {shape.family})",)
    kinds = _kinds(shape)
    state = _state(shape) if any(kind in _STATES for kind in kinds) else None
    made: list[Layer] = []
    doubts = set()
    for kind in kinds:
        parts = [state] if kind in _STATES else [_attention(shape, kind)]
        if kind == "hybrid":  # attention and a state side by side in one layer
            parts.append(_attention(shape, "full_attention"))
        for part in parts:
            if part is None:
                doubts.add(f"what a layer of type {kind} keeps ({shape.family})")
            else:
                made.append(part)
    if doubts:
        return (), tuple(sorted(doubts))
    shared = shape.fields.number("num_kv_shared_layers")
    if shared is not UNKNOWN and 0 < shared < len(made):
        made[-shared:] = [_NONE] * shared  # they read the keys of earlier layers
    return tuple(made), ()


_STATES = frozenset({"linear_attention", "mamba", "mamba1", "mamba2", "conv", "kda", "hybrid"})
_LETTERS = {"M": "mamba", "*": "full_attention", "-": "nothing", "E": "nothing"}


def told(fields: Fields) -> int:
    """How many layers the lists name, for a file that gives no number; 0 when there is no list."""
    words = fields.words("layer_types") or fields.words("layers_block_type")
    return len(words) or len(fields.text("hybrid_override_pattern"))


def _kinds(shape: Shape) -> list[str]:
    """One word for each layer."""
    fields, count = shape.fields, shape.count
    words = fields.words("layer_types") or fields.words("layers_block_type")
    if len(words) >= count:
        return ["full_attention" if word == "attention" else word for word in words[:count]]
    pattern = fields.text("hybrid_override_pattern")
    if pattern:
        return [_LETTERS.get(letter, letter) for letter in pattern]
    linear = Fields(fields.table("linear_attn_config") or {})
    if "full_attn_layers" in linear:
        full = set(linear.numbers("full_attn_layers"))  # counted from 1
        return ["full_attention" if n + 1 in full else "kda" for n in range(count)]
    every = fields.number("full_attention_interval")
    if every is not UNKNOWN and every > 0:
        return ["full_attention" if n % every == every - 1 else "linear_attention" for n in range(count)]
    period, offset = fields.number("attn_layer_period"), fields.number("attn_layer_offset")
    if period is not UNKNOWN and offset is not UNKNOWN and period > 0:
        return ["full_attention" if n % period == offset else "mamba1" for n in range(count)]
    if "attn_layer_indices" in fields:
        full = set(fields.numbers("attn_layer_indices"))
        return ["full_attention" if n in full else "mamba" for n in range(count)]
    if "mamba_d_state" in fields or "ssm_state_size" in fields or "state_size" in fields:
        return ["hybrid" if "num_attention_heads" in fields else "mamba"] * count
    return _windows(shape)


def _windows(shape: Shape) -> list[str]:
    """Models of attention alone, where some or all layers look back only so far."""
    fields, count = shape.fields, shape.count
    if "attention_chunk_size" in fields:  # Llama 4: layers without rotary positions attend to all
        marks = fields.numbers("no_rope_layers")
        if len(marks) >= count:
            return ["chunked_attention" if mark else "full_attention" for mark in marks[:count]]
        return ["full_attention" if (n + 1) % 4 == 0 else "chunked_attention" for n in range(count)]
    window = fields.number("sliding_window")
    if window is UNKNOWN or window == 0 or fields.truth("use_sliding_window") is False:
        return ["full_attention"] * count
    every = fields.number("sliding_window_pattern", "_sliding_window_pattern")
    if every is UNKNOWN:
        every = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4}.get(shape.family, 0)
    if every:
        return ["full_attention" if (n + 1) % every == 0 else "sliding_attention" for n in range(count)]
    first = fields.number("max_window_layers")
    if fields.truth("use_sliding_window") and first is not UNKNOWN:
        return ["full_attention" if n < first else "sliding_attention" for n in range(count)]
    return ["sliding_attention"] * count


def _attention(shape: Shape, kind: str) -> Layer | None:
    """A layer with attention of some kind, or without any; None when a figure is missing or the kind not known."""
    fields = shape.fields
    if kind in ("nothing", "mlp", "moe"):
        return _NONE
    kind = "full_attention" if kind == "indexed_attention" else kind  # sparse: of all tokens it keeps all
    latent, rope = fields.number("kv_lora_rank"), fields.number("qk_rope_head_dim")
    if kind == "full_attention" and latent is not UNKNOWN and rope is not UNKNOWN and shape.family not in _NOT_MLA:
        index = fields.number("index_head_dim")
        # Of an index vllm keeps one byte a value and a scale of four for each 128 (DeepSeek V3.2, GLM-5).
        beside = 0 if index is UNKNOWN else index + 4 * (-(-index // 128))
        return Layer(Keeps.LATENT, latent=latent + rope, index_bytes=beside)
    heads, dim = shape.kv_heads, shape.head_dim
    if kind == "full_attention":
        heads = _else(fields.number("num_global_key_value_heads"), heads)  # Gemma 4: fewer and wider than elsewhere
        dim = _else(fields.number("global_head_dim"), dim)
    if heads is UNKNOWN or dim is UNKNOWN:
        return None
    value = _else(fields.number("v_head_dim"), dim)
    if kind == "full_attention":
        return Layer(Keeps.FULL, heads, dim, value if value is not UNKNOWN else dim)
    keeps = {"sliding_attention": Keeps.SLIDING, "chunked_attention": Keeps.CHUNKED}.get(kind)
    window = fields.number("attention_chunk_size" if keeps is Keeps.CHUNKED else "sliding_window")
    if keeps is None or window is UNKNOWN:
        return None
    return Layer(keeps, heads, dim, dim, window=window)


def _else(value: Maybe[int], other: Maybe[int]) -> Maybe[int]:
    return other if value is UNKNOWN else value


def _state(shape: Shape) -> Layer | None:
    """The state of the model's recurrent layers; None when the file does not say what it takes."""
    fields = shape.fields
    return _delta(fields) or _kimi(fields) or _mamba2(fields) or _mamba1(fields) or _convolution(fields)


def _delta(fields: Fields) -> Layer | None:
    """Gated DeltaNet (Qwen3-Next and its successors)."""
    keys, values = fields.number("linear_num_key_heads"), fields.number("linear_num_value_heads")
    key, value = fields.number("linear_key_head_dim"), fields.number("linear_value_head_dim")
    kernel = fields.number("linear_conv_kernel_dim")
    if keys is UNKNOWN or values is UNKNOWN or key is UNKNOWN or value is UNKNOWN or kernel is UNKNOWN:
        return None
    size = 4 if fields.text("mamba_ssm_dtype") == "float32" else 2
    width = 2 * keys * key + values * value
    return Layer(Keeps.STATE, conv_width=width, conv_steps=kernel - 1, state_bytes=values * key * value * size)


def _kimi(fields: Fields) -> Layer | None:
    """Kimi Delta Attention: three convolutions (query, key, value) and a float32 state."""
    linear = Fields(fields.table("linear_attn_config") or {})
    heads, dim, kernel = linear.number("num_heads"), linear.number("head_dim"), linear.number("short_conv_kernel_size")
    if heads is UNKNOWN or dim is UNKNOWN or kernel is UNKNOWN:
        return None
    return Layer(Keeps.STATE, conv_width=3 * heads * dim, conv_steps=kernel - 1, state_bytes=heads * dim * dim * 4)


def _mamba2(fields: Fields) -> Layer | None:
    """Mamba-2 (Nemotron-H, Granite 4, Bamba, Zamba2, Falcon-H1); its state has the model's own 16 bits."""
    heads = fields.number("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_mamba_heads")
    dim = fields.number("mamba_head_dim", "mamba_d_head", "mamba_headdim")
    state = fields.number("ssm_state_size", "mamba_d_state", "state_size")
    groups = fields.number("n_groups", "mamba_n_groups", "mamba_ngroups")
    kernel = fields.number("conv_kernel", "mamba_d_conv")
    if heads is UNKNOWN or dim is UNKNOWN or state is UNKNOWN or groups is UNKNOWN or kernel is UNKNOWN:
        return None
    size = 4 if fields.text("mamba_ssm_cache_dtype") == "float32" else 2
    width = heads * dim + 2 * groups * state
    return Layer(Keeps.STATE, conv_width=width, conv_steps=kernel - 1, state_bytes=heads * dim * state * size)


def _mamba1(fields: Fields) -> Layer | None:
    """Mamba (Jamba, Falcon-Mamba)."""
    hidden, expand = fields.number("hidden_size"), fields.number("mamba_expand", "expand")
    state, kernel = fields.number("mamba_d_state", "state_size"), fields.number("mamba_d_conv", "conv_kernel")
    if hidden is UNKNOWN or expand is UNKNOWN or state is UNKNOWN or kernel is UNKNOWN:
        return None
    width = hidden * expand
    return Layer(Keeps.STATE, conv_width=width, conv_steps=kernel - 1, state_bytes=width * state * 2)


def _convolution(fields: Fields) -> Layer | None:
    """Short convolutions (LFM2)."""
    kernel, width = fields.number("conv_L_cache"), fields.number("conv_dim", "hidden_size")
    if kernel is UNKNOWN or width is UNKNOWN:
        return None
    return Layer(Keeps.STATE, conv_width=width, conv_steps=kernel - 1)
