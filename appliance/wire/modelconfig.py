"""A checkpoint's config.json (Hugging Face's form) as an `Architecture`.

Families name the same figure differently, nest the language model under another key, and leave out what equals the
default of their class. Defaults are used only for families whose class is listed here; any other missing figure is
UNKNOWN and named. What a layer keeps of a request is `layerkinds`' part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from appliance.architecture import Architecture, Experts, Keeps, Quantisation
from appliance.quantity import UNKNOWN, Maybe

from . import layerkinds
from .jsonfields import Fields

LARGEST = 4 << 20  # bytes; the longest config.json of a known family is about 100 KiB
NESTED = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config")

# What the classes of `transformers` assume where config.json is silent; only families that are published so.
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
                    "max_position_embeddings": 131072, "sliding_window": 4096, "tie_word_embeddings": True},
    "gemma2": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000,
               "max_position_embeddings": 8192, "sliding_window": 4096, "tie_word_embeddings": True},
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
    "gemma4_text": {"tie_word_embeddings": True},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True},
}  # fmt: skip


def parse(text: str | bytes) -> Architecture:
    """The architecture that a config.json describes. Raises ValueError when it is no JSON object or far too long."""
    if len(text) > LARGEST:
        raise ValueError(f"config.json is longer than {LARGEST} bytes")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("config.json is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("config.json is not a JSON object")
    return read(cast(dict[str, object], value))


def read(config: Mapping[str, object]) -> Architecture:
    """The architecture of an already parsed config.json. Never raises: what cannot be read is UNKNOWN."""
    own, inner = Fields(config), _inner(config)
    family = inner.text("model_type") or own.text("model_type") or "unnamed"
    fields = inner.over(_DEFAULTS.get(family, {}))
    unknown: list[str] = []

    def needed(what: str, value: Maybe[int]) -> Maybe[int]:
        if value is UNKNOWN:
            unknown.append(what)
        return value

    hidden = needed("hidden size", fields.number("hidden_size", "n_embd", "d_model"))
    heads = needed("attention heads", fields.number("num_attention_heads", "n_head", "n_heads"))
    kv_heads = _kv_heads(fields, heads)
    head_dim = fields.number("head_dim", "attention_head_dim", "kv_channels")
    if head_dim is UNKNOWN and hidden is not UNKNOWN and heads is not UNKNOWN:
        head_dim = hidden // heads
    counted = fields.number("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if counted is UNKNOWN and layerkinds.told(fields):
        counted = layerkinds.told(fields)
    count = needed("number of layers", counted)
    shape = layerkinds.Shape(family, 0 if count is UNKNOWN else count, kv_heads, head_dim, fields)
    layers, doubts = layerkinds.layers(shape)
    tied = fields.truth("tie_word_embeddings")
    return Architecture(
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=fields.number("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim"),
        vocabulary=needed("vocabulary size", fields.number("vocab_size", "padded_vocab_size")),
        context=needed("context length", _context(fields)),
        dtype=_dtype(fields) or _dtype(own),
        tied=bool(own.truth("tie_word_embeddings")) if tied is None else tied,
        experts=_experts(fields, len(layers)),
        quantisation=quantisation(own) or quantisation(inner),
        multimodal=any(key in config for key in ("vision_config", "audio_config", "visual")),
        latent_heads=any(layer.keeps is Keeps.LATENT for layer in layers),
        unknown=(*unknown, *doubts),
    )


def _inner(config: Mapping[str, object]) -> Fields:
    """The language model's own fields: below one or two keys in models that also see or hear."""
    fields = Fields(config)
    for _ in range(2):
        nested = next((fields.table(key) for key in NESTED if fields.table(key)), None)
        if nested is None:
            break
        fields = Fields(nested)
    return fields


def _kv_heads(fields: Fields, heads: Maybe[int]) -> Maybe[int]:
    """Without a word about them every head has its own keys, as in the first transformers."""
    if fields.truth("multi_query") and not fields.truth("new_decoder_architecture"):
        return 1
    told = fields.number("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_num_groups")
    return heads if told is UNKNOWN else told


def _context(fields: Fields) -> Maybe[int]:
    """Tokens; scaled positions multiply the length that they name as the original one."""
    told = fields.number("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
    scaling = Fields(fields.table("rope_scaling") or fields.table("rope_parameters") or {})
    kind = scaling.text("rope_type") or scaling.text("type")
    factor = scaling.real("factor")
    if kind in ("yarn", "linear", "dynamic") and factor is not None and factor > 1:
        original = scaling.number("original_max_position_embeddings")
        if original is not UNKNOWN:
            scaled = int(original * factor)
            return scaled if told is UNKNOWN else max(told, scaled)
        if told is not UNKNOWN:
            return int(told * factor)
    return told


def _dtype(fields: Fields) -> str:
    return (fields.text("dtype") or fields.text("torch_dtype")).removeprefix("torch.")


def _experts(fields: Fields, layers: int) -> Experts | None:
    count = fields.number("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if count is UNKNOWN or count < 2:
        return None
    active = fields.number("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "experts_per_token")
    width = fields.number("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    shared = fields.number("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    if shared is UNKNOWN:
        many = fields.number("n_shared_experts", "num_shared_experts")
        shared = 0 if many is UNKNOWN or width is UNKNOWN else many * width
    dense = fields.number("first_k_dense_replace", "moe_layer_start_index")
    every = fields.number("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", "expert_layer_period")
    plain = fields.numbers("mlp_only_layers")
    sparse = layers - (0 if dense is UNKNOWN else dense) - len(plain)
    if every is not UNKNOWN and every > 1:
        sparse //= every
    pattern = fields.text("hybrid_override_pattern")
    if pattern:
        sparse = pattern.count("E")
    return Experts(
        count,
        1 if active is UNKNOWN else active,
        0 if width is UNKNOWN else width,
        max(sparse, 0),
        shared,
    )


# quant_method, as published -> vLLM's word
_METHODS = {"compressed-tensors": "compressed-tensors", "modelopt": "modelopt", "bitsandbytes": "bitsandbytes",
            "awq": "awq", "gptq": "gptq", "auto-round": "auto_round", "fp8": "fp8", "fbgemm_fp8": "fbgemm_fp8",
            "mxfp4": "mxfp4", "nvfp4": "nvfp4", "modelopt_fp4": "nvfp4", "modelopt_fp8": "fp8"}  # fmt: skip


def quantisation(fields: Fields) -> Quantisation | None:
    """The checkpoint's `quantization_config` (or `compression_config`); None when there is none."""
    table = fields.table("quantization_config") or fields.table("compression_config")
    if not table:
        return None
    quant = Fields(table)
    method = quant.text("quant_method") or ("compressed-tensors" if quant.table("config_groups") else "")
    method = _METHODS.get(method.lower(), method.lower() or "unnamed")
    algorithm = quant.text("quant_algo").upper()
    kv = Fields(quant.table("kv_cache_scheme") or {})
    kv_dtype = "fp8" if kv.number("num_bits") == 8 or quant.text("kv_cache_quant_algo").upper() == "FP8" else ""
    if method == "compressed-tensors" or quant.table("config_groups"):
        return _grouped(quant, kv_dtype, method)
    if method == "modelopt" and algorithm:
        method = {"NVFP4": "nvfp4", "FP8": "fp8"}.get(algorithm, method)
    if method in ("nvfp4", "mxfp4"):
        return Quantisation(method, 4, 16 if method == "nvfp4" else 32, kv_dtype)
    if method in ("fp8", "fbgemm_fp8"):
        block = quant.numbers("weight_block_size")
        return Quantisation(method, 8, block[0] * block[-1] if block else 0, kv_dtype)
    if method == "bitsandbytes":
        if quant.truth("load_in_8bit"):
            return Quantisation(method, 8, 0, kv_dtype)
        # 64 weights share a scale of four bytes, or of one byte where scales are quantised as well.
        return Quantisation(method, 4, 256 if quant.truth("bnb_4bit_use_double_quant") else 64, kv_dtype)
    return Quantisation(method, quant.number("bits", "w_bit"), quant.number("group_size", "q_group_size"), kv_dtype)


def _grouped(quant: Fields, kv_dtype: str, method: str) -> Quantisation:
    """`config_groups` of compressed-tensors: the first group speaks for the linear layers."""
    groups = Fields(quant.table("config_groups") or {})
    first = Fields(next((table for table in groups.tables() if table.get("weights")), {}))
    weights = Fields(first.table("weights") or {})
    bits, group = weights.number("num_bits"), weights.number("group_size")
    if bits == 4 and weights.text("type") == "float":
        return Quantisation("nvfp4", 4, 16 if group is UNKNOWN else group, kv_dtype)
    if bits == 8 and weights.text("type") == "float":
        return Quantisation("fp8", 8, 0 if group is UNKNOWN else group, kv_dtype)
    return Quantisation(method, bits, 0 if group is UNKNOWN else group, kv_dtype)
