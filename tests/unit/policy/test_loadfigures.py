"""The figures of a load are those of `vllm bench serve`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.loadfigures import Request, Target, figures, percentile, spread


def request(ttft: float, gap: float, tokens: int, **more: object) -> Request:
    gaps = [gap] * (tokens - 1)
    return Request(ttft=ttft, e2el=ttft + sum(gaps), gaps=gaps, input_tokens=10, output_tokens=tokens, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "percent", "is_"),
    [([1, 2, 3, 4], 50, 2.5), ([1, 2, 3, 4], 99, 3.97), ([1, 2, 3, 4], 25, 1.75), ([7], 99, 7), ([0, 10], 90, 9)],
)
def test_percentiles_are_numpys(values: list[float], percent: float, is_: float) -> None:
    assert percentile(values, percent) == pytest.approx(is_)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_spread_is_in_order(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    assert min(values) <= found.p50 <= found.p90 <= found.p95 <= found.p99 <= found.max == max(values)
    assert min(values) - 1e-6 <= found.mean <= max(values) + 1e-6


def test_nothing_has_no_spread() -> None:
    step = figures([], 4, 10.0, Target())
    assert (spread([]), step.ttft, step.itl, step.requests_per_s, step.kept) == (None, None, None, 0.0, 0.0)


def test_tpot_is_of_a_request_and_itl_of_all_gaps() -> None:
    """A request of two slow tokens weighs as much as a long one in TPOT, and one gap among eleven in ITL."""
    step = figures([request(0.1, 0.01, 11), request(0.1, 0.21, 2)], 2, 1.0, Target())
    assert step.tpot is not None and step.itl is not None
    assert step.tpot.mean == pytest.approx((0.01 + 0.21) / 2)
    assert step.itl.mean == pytest.approx((10 * 0.01 + 0.21) / 11)


def test_a_tpot_goes_by_the_engines_count_of_tokens() -> None:
    """Several tokens in one event: two gaps, and nine tokens after the first."""
    packed = Request(ttft=0.1, e2el=1.0, gaps=[0.45, 0.45], output_tokens=10)
    assert packed.tpot == pytest.approx(0.1)


def test_an_answer_of_one_token_has_no_tpot_and_keeps_its_target() -> None:
    step = figures([request(0.1, 0, 1)], 1, 1.0, Target(itl=0.001))
    assert (step.tpot, step.itl, step.good) == (None, None, 1)


def test_failures_are_counted_by_kind_and_are_in_no_figure() -> None:
    failed = [*[Request(failure="429 queue_full")] * 3, Request(failure="timeout")]
    step = figures([request(0.1, 0.02, 3), *failed], 4, 2.0, Target(ttft=0.2))
    assert step.failures == {"429 queue_full": 3, "timeout": 1}
    assert (step.completed, step.failed, step.output_tokens, step.kept) == (1, 4, 3, 0.2)
    assert step.ttft is not None and step.ttft.max == pytest.approx(0.1)
    assert (step.requests_per_s, step.tokens_per_s, step.goodput) == (0.5, 1.5, 0.5)


@pytest.mark.parametrize(
    ("target", "good"),
    [(Target(ttft=0.15), 2), (Target(itl=0.02), 2), (Target(ttft=0.15, itl=0.02), 1), (Target(), None)],
)
def test_goodput_counts_what_keeps_every_target(target: Target, good: int | None) -> None:
    requests = [request(0.1, 0.01, 5), request(0.1, 0.05, 5), request(0.3, 0.01, 5)]
    step = figures(requests, 3, 2.0, target)
    assert step.good == good
    assert step.goodput == (None if good is None else good / 2)
