"""config.json of many families, and of nobody."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.architecture import Architecture, Experts, Keeps, Layer, Quantisation
from appliance.quantity import UNKNOWN
from appliance.wire.jsonfields import Fields
from appliance.wire.modelconfig import LARGEST, parse, quantisation, read
from tests.support.publishedlogs import KIMI_LINEAR, LLAMA_8B, LOGS, QWEN36_27B, attention

BASE = attention("llama", 4, 64, 8, 2, 8)


def kinds(**more: Any) -> dict[Keeps, int]:
    found = read({**BASE, **more})
    assert found.unknown == ()
    return dict(Counter(layer.keeps for layer in found.layers))


def test_the_figures_of_a_plain_model() -> None:
    found = read(LLAMA_8B)
    assert (found.family, found.hidden, found.heads, found.kv_heads, found.head_dim) == ("llama", 4096, 32, 8, 128)
    assert (found.intermediate, found.vocabulary, found.context, found.dtype) == (14336, 128256, 131072, "bfloat16")
    assert found.layers == (Layer(Keeps.FULL, 8, 128, 128),) * 32
    assert (found.tied, found.experts, found.quantisation, found.multimodal, found.unknown) == (
        False, None, None, False, (),
    )  # fmt: skip


def test_other_names_of_the_same_figures() -> None:
    falcon = read({"model_type": "falcon", "n_layer": 3, "n_embd": 64, "n_head": 8, "multi_query": True,
                   "vocab_size": 9, "n_positions": 2048, "dtype": "torch.float16"})  # fmt: skip
    assert (falcon.kv_heads, falcon.head_dim, falcon.dtype, len(falcon.layers)) == (1, 8, "float16", 3)
    old = {key: value for key, value in BASE.items() if key not in ("num_key_value_heads", "head_dim")}
    assert (read(old).kv_heads, read(old).head_dim) == (8, 8)


def test_defaults_of_a_family_that_leaves_them_out() -> None:
    small = {"model_type": "gemma3", "vision_config": {"x": 1}, "torch_dtype": "bfloat16",
             "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560,
                             "intermediate_size": 10240, "sliding_window": 1024}}  # fmt: skip
    found = read(small)
    assert (found.heads, found.kv_heads, found.head_dim, found.vocabulary) == (8, 4, 256, 262208)
    assert (found.multimodal, found.tied, found.dtype, found.unknown) == (True, True, "bfloat16", ())
    assert Counter(layer.keeps for layer in found.layers) == {Keeps.SLIDING: 29, Keeps.FULL: 5}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {Keeps.FULL: 4}),
        ({"sliding_window": 4096}, {Keeps.SLIDING: 4}),
        ({"sliding_window": None}, {Keeps.FULL: 4}),
        ({"sliding_window": 4096, "use_sliding_window": False}, {Keeps.FULL: 4}),
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 3},
         {Keeps.FULL: 3, Keeps.SLIDING: 1}),
        ({"sliding_window": 4096, "sliding_window_pattern": 2}, {Keeps.FULL: 2, Keeps.SLIDING: 2}),
        ({"model_type": "gemma2", "sliding_window": 4096}, {Keeps.FULL: 2, Keeps.SLIDING: 2}),
        ({"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 128},
         {Keeps.FULL: 2, Keeps.SLIDING: 2}),
        ({"attention_chunk_size": 8192}, {Keeps.CHUNKED: 3, Keeps.FULL: 1}),
        ({"attention_chunk_size": 8192, "no_rope_layers": [1, 0, 1, 0]}, {Keeps.CHUNKED: 2, Keeps.FULL: 2}),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, {Keeps.LATENT: 4}),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "model_type": "minicpm3"}, {Keeps.FULL: 4}),
        ({"num_kv_shared_layers": 3}, {Keeps.FULL: 1, Keeps.NOTHING: 3}),
        ({"hybrid_override_pattern": "M-M*E", "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 16,
          "n_groups": 2, "conv_kernel": 4}, {Keeps.STATE: 2, Keeps.NOTHING: 2, Keeps.FULL: 1}),
        ({"layer_types": ["mamba", "attention", "mamba", "mamba"], "mamba_n_heads": 8, "mamba_d_head": 8,
          "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4}, {Keeps.STATE: 3, Keeps.FULL: 1}),
        ({"attn_layer_period": 4, "attn_layer_offset": 1, "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4},
         {Keeps.STATE: 3, Keeps.FULL: 1}),
        ({"attn_layer_indices": [2], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 1,
          "mamba_d_conv": 4}, {Keeps.STATE: 3, Keeps.FULL: 1}),
        ({"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4},
         {Keeps.STATE: 4, Keeps.FULL: 4}),
        ({"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3}, {Keeps.STATE: 2, Keeps.FULL: 2}),
        ({"num_hidden_layers": None, "layers_block_type": ["mamba", "moe", "attention"], "mamba_n_heads": 8,
          "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4},
         {Keeps.STATE: 1, Keeps.NOTHING: 1, Keeps.FULL: 1}),
        ({"layer_types": ["indexed_attention"] * 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128},
         {Keeps.LATENT: 4}),
        ({"model_type": "bert"}, {Keeps.NOTHING: 4}),
    ],
)  # fmt: skip
def test_what_layers_keep(more: dict[str, Any], expected: dict[Keeps, int]) -> None:
    assert kinds(**more) == expected


def test_states_have_their_size() -> None:
    delta = read(QWEN36_27B).layers[0]
    assert (delta.conv_width, delta.conv_steps, delta.state_bytes) == (10240, 3, 48 * 128 * 128 * 4)
    kimi = read(KIMI_LINEAR).layers[0]
    assert (kimi.conv_width, kimi.state_bytes) == (3 * 32 * 128, 32 * 128 * 128 * 4)


def test_wider_heads_where_attention_is_full() -> None:
    found = read({**BASE, "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 1024,
                  "global_head_dim": 512, "num_global_key_value_heads": 1})  # fmt: skip
    assert found.layers[0] == Layer(Keeps.SLIDING, 2, 8, 8, window=1024)
    assert found.layers[3] == Layer(Keeps.FULL, 1, 512, 512)


@pytest.mark.parametrize(
    ("config", "unknown"),
    [
        ({}, "number of layers"),
        ({**BASE, "vocab_size": None}, "vocabulary size"),
        ({**BASE, "max_position_embeddings": "many"}, "context length"),
        ({**BASE, "compress_ratios": [1]}, "compress_ratios"),
        ({**BASE, "layer_types": ["retention"] * 4}, "retention"),
        ({**BASE, "layer_types": ["linear_attention"] * 4}, "linear_attention"),
        ({**BASE, "attn_type_list": [0, 1, 0, 1]}, "attn_type_list"),
        ({**BASE, "model_type": "longcat_flash"}, "attends twice"),
    ],
)
def test_what_is_missing_is_named(config: dict[str, Any], unknown: str) -> None:
    assert any(unknown in what for what in read(config).unknown)


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"type": "linear", "factor": 2.0}, 262144),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 131072),
        ({"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, 163840),
    ],
)
def test_stretched_positions(scaling: dict[str, Any], context: int) -> None:
    assert read({**BASE, "rope_scaling": scaling}).context == context


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, Quantisation("awq", 4, 128)),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, Quantisation("gptq", 8, 32)),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, Quantisation("fp8", 8, 16384)),
        ({"quant_method": "mxfp4"}, Quantisation("mxfp4", 4, 32)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
         Quantisation("nvfp4", 4, 16, "fp8")),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Quantisation("fp8", 8, 0)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, Quantisation("bitsandbytes", 4, 64)),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, Quantisation("bitsandbytes", 8, 0)),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, Quantisation("auto_round", 4, 128)),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"},
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}},
         Quantisation("fp8", 8, 0, "fp8")),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}}},
         Quantisation("compressed-tensors", 4, 128)),
        ({"config_groups": {"g": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}},
         Quantisation("nvfp4", 4, 16)),
        ({"quant_method": "something-new"}, Quantisation("something-new", UNKNOWN, UNKNOWN)),
        ({}, None),
    ],
)  # fmt: skip
def test_quantisation(table: dict[str, Any], expected: Quantisation | None) -> None:
    assert quantisation(Fields({"quantization_config": table})) == expected


def test_experts() -> None:
    more = {"n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 32, "n_shared_experts": 2,
            "first_k_dense_replace": 1}  # fmt: skip
    assert read({**BASE, **more}).experts == Experts(64, 6, 32, 3, 64)
    assert read({**BASE, "num_experts": 1}).experts is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'{"a":' * 100_000, b" " * (LARGEST + 1), b"\xff\xfe{}"])
def test_what_is_no_configuration(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 50) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MORE = {"text_config", "layer_types", "rope_scaling", "n_head", "quantization_config", "sliding_window", "num_experts",
        "hybrid_override_pattern", "linear_attn_config"}  # fmt: skip
NAMES = sorted({name for log in LOGS for name in log.config} | MORE)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8), st.sampled_from([{}, BASE]))
def test_any_object_is_read(config: dict[str, Any], base: dict[str, Any]) -> None:
    found = parse(json.dumps({**base, **config}))
    assert isinstance(found, Architecture)
    assert all(layer.kv_heads >= 0 and layer.head_dim >= 0 for layer in found.layers)
