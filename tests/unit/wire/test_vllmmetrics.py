from __future__ import annotations

from appliance.quantity import UNKNOWN
from appliance.wire.vllmmetrics import read_metrics


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


def test_the_old_name_of_the_cache_is_known() -> None:
    assert read_metrics('vllm:gpu_cache_usage_perc{a="b"} 0.5\n').kv_usage == 0.5
    assert read_metrics("vllm:num_requests_running 0.0\n").running == 0
