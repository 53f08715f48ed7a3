from __future__ import annotations

from appliance.gateway.metrics import Histogram, Metrics, histogram_family
from appliance.wire.promtext import samples
from tests.support.records import record


def test_metrics_count_each_call_once() -> None:
    metrics = Metrics()
    metrics.finish(record())
    metrics.finish(record(outcome="refused", status=429, code="queue_full", engine="", queue_ms=None,
                          first_token_ms=None, prompt_tokens=None, completion_tokens=None, events=0))  # fmt: skip
    found = {(s.name, *sorted(s.labels.items())): s.value for s in samples(metrics.exposition([]))}
    assert found["llm_appliance_requests_total", ("engine", "chat"), ("outcome", "ok"), ("status", "200")] == 1
    assert found["llm_appliance_admission_refused_total", ("reason", "queue_full")] == 1
    assert found["llm_appliance_tokens_total", ("engine", "chat"), ("kind", "completion")] == 3
    assert found["llm_appliance_request_ttft_seconds_count", ("engine", "chat")] == 1


def test_an_engine_may_be_called_none() -> None:
    """Two samples with the same labels, and Prometheus takes none at all."""
    metrics = Metrics()
    for engine in ("", "none"):
        metrics.finish(record(engine=engine))
    found = [(s.name, *sorted(s.labels.items())) for s in samples(metrics.exposition([]))]
    assert len(found) == len(set(found))
    assert metrics.given["none"] == 6


def test_a_histogram_adds_up() -> None:
    histogram = Histogram()
    for seconds in (0.001, 0.005, 0.3, 9999):
        histogram.observe(seconds)
    text = histogram_family("h", "x", "engine", {"a": histogram, "idle": Histogram()})
    assert "idle" not in text
    buckets = {s.labels["le"]: s.value for s in samples(text) if s.name == "h_bucket"}
    assert buckets["0.005"] == 2 and buckets["0.5"] == 3 and buckets["600"] == 3 and buckets["+Inf"] == 4
    assert list(buckets.values()) == sorted(buckets.values())
    assert histogram_family("h", "x", "engine", {"idle": Histogram()}) == ""
