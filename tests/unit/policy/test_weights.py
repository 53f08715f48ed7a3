"""How tensors are sorted and spread over GPUs."""

from __future__ import annotations

import pytest

from appliance.architecture import Architecture, Experts, Keeps, Layer, Quantisation
from appliance.policy.weights import Weights, from_architecture, from_tensors, from_total, linear_bytes, per_gpu
from appliance.wire import modelconfig
from tests.support.publishedlogs import DEEPSEEK_V2_LITE, GPT_OSS_120B

FULL = Layer(Keeps.FULL, 4, 8, 8)
MODEL = Architecture(family="x", layers=(FULL, FULL), hidden=32, heads=8, kv_heads=4, head_dim=8, vocabulary=100)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("transformer.wte.weight", "embedding"),
        ("lm_head.weight", "head"),
        ("model.norm.weight", "whole"),
        ("model.layers.0.self_attn.q_proj.weight", "layers"),
        ("model.layers.0.self_attn.k_proj.weight", "keys"),
        ("model.layers.1.self_attn.v_proj.qweight", "keys"),
        ("model.layers.1.mlp.experts.3.down_proj.weight", "layers"),
        ("model.layers.1.mlp.gate.weight", "whole"),
        ("model.layers.1.mlp.gate_proj.weight", "layers"),
        ("model.layers.1.input_layernorm.weight", "whole"),
        ("model.layers.1.self_attn.kv_a_proj_with_mqa.weight", "whole"),
        ("model.layers.1.self_attn.kv_b_proj.weight", "layers"),
        ("model.language_model.layers.1.mlp.up_proj.weight", "layers"),
        ("visual.blocks.31.attn.qkv.weight", "beside"),
        ("vision_tower.encoder.layers.0.k_proj.weight", "beside"),
        ("model.layers.2.mlp.up_proj.weight", ""),  # a layer for drafting, past the last
        ("mtp.layers.0.mlp.up_proj.weight", ""),
    ],
)
def test_each_tensor_has_its_place(name: str, field: str) -> None:
    made = from_tensors([(name, "BF16", 64)], MODEL)
    assert made.total == (64 if field else 0)
    assert not field or getattr(made, field) == 64


def test_a_tied_head_is_not_loaded_twice() -> None:
    tied = Architecture(family="x", layers=(FULL,), tied=True)
    assert from_tensors([("lm_head.weight", "BF16", 64)], tied).total == 0


def test_single_precision_is_served_in_half() -> None:
    wide = Architecture(family="x", layers=(FULL,), dtype="float32")
    assert from_tensors([("model.layers.0.mlp.up_proj.weight", "F32", 64)], wide).layers == 32
    assert from_tensors([("model.layers.0.mlp.up_proj.weight", "F32", 64)], MODEL).layers == 64


WEIGHTS = Weights(layers=8000, keys=800, whole=80, embedding=4000, head=4000, beside=400)


@pytest.mark.parametrize(
    ("tp", "pp", "size"),
    [
        (1, 1, 8000 + 800 + 80 + 8000 + 400),
        (2, 1, 4000 + 400 + 80 + 4000 + 200),
        (8, 1, 1000 + 200 + 80 + 1000 + 50),  # four heads with keys: each is on two GPUs
        (1, 2, 4000 + 400 + 40 + 4400),
        (2, 2, 2000 + 200 + 40 + 2200),
    ],
)
def test_what_the_fullest_gpu_holds(tp: int, pp: int, size: int) -> None:
    assert per_gpu(WEIGHTS, MODEL, tp, pp) == size


def test_a_total_is_spread_by_the_architecture() -> None:
    made = from_total(100_000, MODEL, "the index")
    assert made.total == 100_000 and made.source == "the index" and not made.exact
    assert (made.embedding, made.head, made.keys) == (6400, 6400, 2 * 4 * 16 * 32 * 2)
    impossible = from_total(5000, MODEL, "the index")
    assert (impossible.layers, impossible.total) == (5000, 5000)


def test_parameters_are_not_counted_where_they_are_not_known() -> None:
    assert from_architecture(modelconfig.read(DEEPSEEK_V2_LITE)) is None
    assert from_architecture(Architecture(family="x")) is None
    counted = from_architecture(modelconfig.read(GPT_OSS_120B))
    assert counted is not None and abs(counted.total / 65.25e9 - 1) < 0.01  # the files' sum on the model's page


@pytest.mark.parametrize(
    ("quant", "size"),
    [
        (None, 2.0),
        (Quantisation("fp8", 8, 0), 1.0),
        (Quantisation("fp8", 8, 128 * 128), 1 + 4 / 16384),
        (Quantisation("awq", 4, 128), 0.5 + 2.5 / 128),
        (Quantisation("nvfp4", 4, 16), 0.5625),
        (Quantisation("mxfp4", 4, 32), 0.53125),
        (Quantisation("unnamed"), 2.0),
    ],
)
def test_bytes_of_a_weight(quant: Quantisation | None, size: float) -> None:
    assert linear_bytes(quant) == size


def test_experts_in_mxfp4_are_padded_for_their_kernel() -> None:
    model = Architecture(family="x", layers=(FULL,), hidden=2880, quantisation=Quantisation("mxfp4", 4, 32),
                         experts=Experts(128, 4, 2880, 1))  # fmt: skip
    assert per_gpu(Weights(layers=1_000_000), model) == int(1_000_000 * (2944 / 2880) * (3072 / 2880))
