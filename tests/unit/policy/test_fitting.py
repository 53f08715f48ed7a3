"""The judgement: which GPUs, which settings, and what is refused with which alternatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.architecture import Architecture, Quantisation
from appliance.policy import weights
from appliance.policy.cards import CARDS, GIB, Card, find, parse
from appliance.policy.fitting import Plan, plan, widths
from appliance.policy.sizing import Options
from appliance.policy.weights import Weights
from appliance.quantity import UNKNOWN
from appliance.wire import modelconfig
from tests.support.publishedlogs import DEEPSEEK_V2_LITE, GPT_OSS_120B, LLAMA_8B, LOGS, QWEN3_14B, QWEN36_27B, Log

LLAMA, QWEN, GPT = (modelconfig.read(one) for one in (LLAMA_8B, QWEN3_14B, GPT_OSS_120B))


def judged(gpus: str, model: Architecture = QWEN, **options: Any) -> Plan:
    return plan(model, size(model), parse(gpus), Options(**options), (8192,))


def size(model: Architecture) -> Weights:
    made = weights.from_architecture(model)
    assert made is not None
    return made


def settings(made: Plan) -> dict[str, object]:
    assert all(line.reason for line in made.lines)
    return {line.key: line.value for line in made.lines}


def alternatives(made: Plan) -> list[str]:
    return [way for one in made.refusals for way in one.alternatives]


# --- what is chosen ---------------------------------------------------------------------------------------------------


def test_the_fewest_gpus_that_hold_the_model_and_a_conversation() -> None:
    made = judged("4x RTX 4090")
    assert (made.verdict, settings(made)) == ("fits", {"tensor_parallel_size": 2})
    assert made.sizing is not None and made.sizing.at_once[8192] > 6
    assert settings(judged("4x RTX 4090", tp=4)) == {"tensor_parallel_size": 4}
    assert settings(judged("1x H100")) == {}


def test_a_cache_in_fp8_before_a_shorter_context() -> None:
    made = judged("1x L4", LLAMA)
    assert made.verdict == "fits" and made.sizing is not None and made.sizing.longest is not UNKNOWN
    assert settings(made) == {"kv_cache_dtype": "fp8", "max_model_len": made.sizing.longest // 256 * 256}
    assert made.sizing.longest >= 32768


def test_bfloat16_becomes_half_on_old_cards() -> None:
    assert settings(judged("4x T4"))["dtype"] == "half"
    assert "dtype" not in settings(judged("4x T4", dtype="half"))


def test_the_sampler_yields_before_the_cache_is_lost() -> None:
    made = judged("1x H100", GPT, utilization=0.95)
    assert (made.verdict, settings(made)["max_num_seqs"]) == ("fits", 256)


def test_few_requests_before_a_context_that_is_too_short() -> None:
    made = judged("1x L4", LLAMA, utilization=0.85)
    assert settings(made)["max_num_seqs"] == 64 and settings(made)["kv_cache_dtype"] == "fp8"
    assert "max_num_seqs" not in settings(judged("1x L4", LLAMA))


def test_no_more_at_once_than_a_step_may_hold() -> None:
    made = plan(LLAMA, size(LLAMA), parse("B200"), Options(), (16, 131072))
    assert made.sizing is not None and made.sizing.at_once[16] == 1024
    assert 1 < made.sizing.at_once[131072] < 16


def test_a_hybrid_runs_no_more_requests_than_it_has_states() -> None:
    model = modelconfig.read(QWEN36_27B)
    checkpoint = weights.from_total(56 << 30, model, "x")
    made = plan(model, checkpoint, parse("1x RTX PRO 6000"), Options(), ())
    assert made.verdict == "fits" and made.sizing is not None and made.sizing.cache is not None
    assert made.sizing.batch.requests <= made.sizing.cache.blocks(made.sizing.kv)
    asked = plan(model, checkpoint, parse("1x RTX PRO 6000"), Options(max_num_seqs=600, utilization=0.75), ())
    assert "blocks" in asked.refusals[0].reason and alternatives(asked)[0].startswith("max_num_seqs = ")


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "options", "reason", "way"),
    [
        (
            "4x RTX 4090",
            {"tp": 3},
            "40 attention heads (8 with keys) cannot be split over 3",
            "tensor_parallel_size = 2",
        ),
        ("2x RTX 4090", {"tp": 4}, "4 GPUs are asked for, 2 there are", "tensor_parallel_size = 2"),
        ("1x RTX 4090", {}, "weights and working memory take", "tensor_parallel_size = 2, on 2 such cards"),
        ("1x RTX 4090", {}, "weights and working memory take", "a 4-bit (AWQ, GPTQ or NVFP4) checkpoint"),
        ("1x V100", {}, "too old", "Turing"),
        ("1x L40S", {"max_model_len": 50000}, "more than the model's 40960", "max_model_len = 40960"),
        ("1x H100", {"max_model_len": 40960, "utilization": 0.4}, "of KV cache", "max_model_len = "),
        ("4x T4", {"kv_cache_dtype": "fp8"}, "no fp8 KV cache", 'kv_cache_dtype = "auto"'),
    ],
)
def test_refusals_name_what_would_work(gpus: str, options: dict[str, Any], reason: str, way: str) -> None:
    made = judged(gpus, **options)
    assert made.verdict == "does not fit"
    assert reason in made.refusals[0].reason
    assert any(way in one for one in alternatives(made)), alternatives(made)


@pytest.mark.parametrize(
    ("method", "card", "refused"),
    [("awq", "T4", False), ("mxfp4", "T4", True), ("fp8", "RTX 3090", False), ("nvfp4", "RTX 3090", False),
     ("fp_quant", "H100", True), ("fbgemm_fp8", "T4", True)],
)  # fmt: skip
def test_quantisation_needs_a_card_that_knows_it(method: str, card: str, refused: bool) -> None:
    model = replace(LLAMA, quantisation=Quantisation(method, 4, 128))
    made = plan(model, Weights(layers=4 * GIB), parse(f"2x {card}"), Options(), ())
    assert any(method in one.reason for one in made.refusals) == refused


def test_what_is_not_known_is_said_and_not_judged() -> None:
    strange = modelconfig.read({**LLAMA_8B, "compress_ratios": [4, 128]})
    made = plan(strange, Weights(layers=GIB), parse("1x H100"), Options(), ())
    assert made.verdict == "unknown" and any("compress_ratios" in note for note in made.notes)
    unweighed = plan(modelconfig.read(DEEPSEEK_V2_LITE), None, parse("1x H100"), Options(), ())
    assert unweighed.verdict == "unknown" and any("weights" in note for note in unweighed.notes)


def test_a_form_of_the_cache_that_is_not_counted() -> None:
    made = judged("1x H100", kv_cache_dtype="nvfp4")
    assert made.verdict == "unknown" and any("nvfp4" in note for note in made.notes)


def test_quantised_on_loading_and_partly_in_the_hosts_memory() -> None:
    assert judged("1x RTX 4090").verdict == "does not fit"
    assert judged("1x RTX 4090", quantization="fp8").verdict == "fits"
    assert judged("1x RTX 4090", offload=14 * GIB).verdict == "fits"
    already = replace(QWEN, quantisation=Quantisation("awq", 4, 128))
    plain, again = judged("1x L4", already), judged("1x L4", already, quantization="fp8")
    assert plain.sizing is not None and again.sizing is not None
    assert plain.sizing.weights == again.sizing.weights  # the checkpoint's own form stands


def test_notes_on_cards() -> None:
    assert any("differ" in note for note in judged("1x H100, 1x L4").notes)
    assert any("shares its memory" in note for note in judged("1x GB10").notes)


def test_widths_divide_heads() -> None:
    assert widths(QWEN, 16) == (1, 2, 4, 8)
    assert widths(modelconfig.read(DEEPSEEK_V2_LITE), 8) == (1, 2, 4, 8)
    assert widths(Architecture(family="x"), 8) == (1,)


@given(
    log=st.sampled_from([one for one in LOGS if weights.from_architecture(modelconfig.read(one.config))]),
    card=st.sampled_from(CARDS),
    count=st.integers(1, 8),
    tp=st.none() | st.integers(1, 9),
    length=st.none() | st.integers(1, 1 << 20),
)
def test_a_plan_that_fits_has_room_for_what_it_promises(
    log: Log, card: Card, count: int, tp: int | None, length: int | None
) -> None:
    model = modelconfig.read(log.config)
    made = plan(model, size(model), (card,) * count, Options(tp=tp, max_model_len=length), (4096,))
    assert (made.verdict == "fits") == (not made.refusals)
    assert all(one.reason and one.alternatives for one in made.refusals)
    if made.verdict != "fits":
        return
    found = made.sizing
    assert found is not None and found.cache is not None and found.longest is not UNKNOWN
    assert found.gpus <= count and found.weights + found.overhead.total + found.kv <= found.share
    promised = settings(made).get("max_model_len", found.context)
    assert isinstance(promised, int) and found.cache.request_bytes(promised) <= found.kv


def test_every_card_is_judged() -> None:
    assert find("H100") is not None
    assert {plan(LLAMA, size(LLAMA), (card,), Options(), ()).verdict for card in CARDS} == {"fits", "does not fit"}
