from __future__ import annotations

import pytest

from appliance.quantity import UNKNOWN
from appliance.wire.vllmmetrics import evidence, read_metrics


def test_ranks_are_summed_and_the_fullest_counts() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{n}"}} {n + 1}\nvllm:kv_cache_usage_perc{{engine="{n}"}} 0.{n + 1}\n'
        for n in range(2)
    )
    metrics = read_metrics(text)
    assert metrics.running == 3 and metrics.kv_usage == 0.2


def test_what_is_not_there_is_unknown() -> None:
    metrics = read_metrics("python_info 1\nother:num_requests_running 5\n")
    for name in metrics.__slots__:
        assert getattr(metrics, name) is UNKNOWN


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e308"])
def test_what_cannot_be_counted_with_is_unknown(value: str) -> None:
    text = f'vllm:num_requests_running{{engine="0"}} {value}\nvllm:num_requests_running{{engine="1"}} {value}\n'
    assert read_metrics(text).running is UNKNOWN and evidence(text) == {}
    assert read_metrics(text + 'vllm:num_requests_running{engine="2"} 3\n').running == 3


def test_the_old_name_of_the_cache_is_known() -> None:
    assert read_metrics('vllm:gpu_cache_usage_perc{a="b"} 0.5\n').kv_usage == 0.5
    assert read_metrics("vllm:num_requests_running 0.0\n").running == 0


EXPOSITION = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 1.0
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0
vllm:request_success_total{engine="0",finished_reason="stop"} 10.0
vllm:request_success_total{engine="0",finished_reason="length"} 7.0
vllm:request_success_created{engine="0",finished_reason="length"} 1.7e+09
vllm:prompt_tokens_total{engine="0"} 3443.0
vllm:prompt_tokens_by_source_total{engine="0",source="x"} 99.0
vllm:iteration_tokens_total_bucket{le="1.0"} 5.0
vllm:iteration_tokens_total_count{engine="0"} 744.0
python_info 1
"""


def test_evidence_is_summed_and_unlike_figures_stay_apart() -> None:
    assert evidence(EXPOSITION) == {
        "vllm:num_requests_running": 3.0,
        "vllm:num_requests_waiting": 4.0,
        'vllm:num_requests_waiting_by_reason{reason="capacity"}': 3.0,
        'vllm:num_requests_waiting_by_reason{reason="deferred"}': 1.0,
        'vllm:engine_sleep_state{sleep_state="awake"}': 0.0,
        'vllm:engine_sleep_state{sleep_state="weights_offloaded"}': 1.0,
        "vllm:request_success_total": 17.0,
        "vllm:prompt_tokens_total": 3443.0,
        "vllm:iteration_tokens_total_count": 744.0,
    }
    assert evidence("") == {}
