"""vLLM's metric names, once; a name that an engine does not show reads UNKNOWN, never 0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from appliance.quantity import UNKNOWN, Maybe

from .promtext import Sample, samples

PREFIX = "vllm:"
MOST = 1e18
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second is the name before 0.10
GENERATED = "vllm:generation_tokens_total"
PROMPTED = "vllm:prompt_tokens_total"
PREEMPTIONS = "vllm:num_preemptions_total"
SUCCEEDED = "vllm:request_success_total"
SLEEP_STATE = "vllm:engine_sleep_state"
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
STEPS = "vllm:iteration_tokens_total_count"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
# What tells whether an engine works. Two of them are unlike figures under one name: a label stays with those.
_EVIDENCE = (RUNNING, WAITING, *KV_USAGE, GENERATED, PROMPTED, PREEMPTIONS, SUCCEEDED, STEPS)
_PARTED = {SLEEP_STATE: "sleep_state", WAITING_BY_REASON: "reason"}
_READ = (RUNNING, WAITING, *KV_USAGE, GENERATED, PROMPTED, PREEMPTIONS, PREFIX_QUERIES, PREFIX_HITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """One reading of an engine's /metrics. Counters and gauges are sums over its data-parallel ranks."""

    running: Maybe[float] = UNKNOWN
    waiting: Maybe[float] = UNKNOWN
    kv_usage: Maybe[float] = UNKNOWN  # 0 to 1; the fullest rank
    generated_tokens: Maybe[float] = UNKNOWN
    prompt_tokens: Maybe[float] = UNKNOWN
    preemptions: Maybe[float] = UNKNOWN
    prefix_queries: Maybe[float] = UNKNOWN
    prefix_hits: Maybe[float] = UNKNOWN


def evidence(text: str) -> dict[str, float]:
    """The figures that a silence is judged by, summed over ranks: vLLM's names, `NAME{LABEL="..."}` for the parted."""
    sums: dict[str, float] = {}
    for sample in _those(text, (*_EVIDENCE, *_PARTED)):
        label = _PARTED.get(sample.name)
        key = sample.name if label is None else f'{sample.name}{{{label}="{sample.labels.get(label, "")}"}}'
        if label is not None or sample.name in _EVIDENCE:
            sums[key] = sums.get(key, 0.0) + sample.value
    return sums


def read_metrics(text: str) -> EngineMetrics:
    """What an exposition of vLLM says."""
    sums: dict[str, float] = {}
    peaks: dict[str, float] = {}
    for sample in _those(text, _READ):
        sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        peaks[sample.name] = max(peaks.get(sample.name, sample.value), sample.value)
    kv_usage: Maybe[float] = next((peaks[name] for name in KV_USAGE if name in peaks), UNKNOWN)
    return EngineMetrics(
        running=sums.get(RUNNING, UNKNOWN),
        waiting=sums.get(WAITING, UNKNOWN),
        kv_usage=kv_usage,
        generated_tokens=sums.get(GENERATED, UNKNOWN),
        prompt_tokens=sums.get(PROMPTED, UNKNOWN),
        preemptions=sums.get(PREEMPTIONS, UNKNOWN),
        prefix_queries=sums.get(PREFIX_QUERIES, UNKNOWN),
        prefix_hits=sums.get(PREFIX_HITS, UNKNOWN),
    )


def _those(text: str, beginnings: tuple[str, ...]) -> Iterator[Sample]:
    """Samples whose line begins so: an exposition has a thousand lines of histograms, which are passed over unread.

    What cannot be counted with is no reading: NaN, and numbers of which a sum may be infinite.
    """
    found = samples("\n".join(line for line in text.split("\n") if line.startswith(beginnings)))
    return (sample for sample in found if abs(sample.value) < MOST)
