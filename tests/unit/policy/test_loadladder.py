"""A ladder ends where more requests at once buy nothing, and its best step is the cheapest of the good ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from appliance.policy.loadfigures import Request, Step, Target, figures
from appliance.policy.loadladder import HIGHEST, best, following

TOKENS = 100


def step(concurrency: int, tokens_per_s: float, *, ttft: float = 0.1, failed: int = 0, target: Target | None = None,
         late: int = 0) -> Step:  # fmt: skip
    """A step of a hundred requests; `late` of them miss any target."""
    whole = [Request(ttft=ttft if n >= late else 99.0, e2el=100.0, output_tokens=TOKENS) for n in range(100 - failed)]
    lost = [Request(failure="broken off")] * failed
    return figures([*whole, *lost], concurrency, len(whole) * TOKENS / tokens_per_s if whole else 1.0,
                   target or Target())  # fmt: skip


def climb(engine: Callable[[int], Step], limit: int = HIGHEST) -> tuple[list[Step], str]:
    steps: list[Step] = []
    while True:
        concurrency, reason = following(steps, limit)
        if concurrency is None:
            return steps, reason
        steps.append(engine(concurrency))


def saturating(most: float, half: float) -> Callable[[int], Step]:
    return lambda n: step(n, most * n / (n + half), ttft=0.1 + max(0.0, n - half) * 0.05)


def test_it_doubles_and_ends_where_tokens_grow_no_more() -> None:
    steps, reason = climb(lambda n: step(n, min(n, 16) * 50.0))
    assert [one.concurrency for one in steps] == [1, 2, 4, 8, 16, 32, 64]
    assert reason == "tokens/s grows no more beyond 16 at once"


def test_one_flat_step_is_no_end() -> None:
    """A step may be noise; two are none."""
    rates = {1: 50.0, 2: 100.0, 4: 101.0, 8: 200.0, 16: 201.0, 32: 202.0}
    assert [one.concurrency for one in climb(lambda n: step(n, rates[n]))[0]] == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize(
    ("engine", "last", "why"),
    [
        (lambda n: step(n, 50.0 * n if n < 16 else 300.0), 16, "tokens/s fell with 16 at once"),
        (lambda n: step(n, 50.0 * n, failed=20 if n == 4 else 0), 4, "20 of 100 requests failed with 4 at once"),
        (lambda n: step(n, 50.0, failed=100), 1, "no request was answered with 1 at once"),
        (lambda n: step(n, 50.0 * n, target=Target(ttft=0.5), late=100 if n == 8 else 0), 8,
         "no request kept the target with 8 at once"),
        (lambda n: step(n, 50.0 * n, target=Target(ttft=0.5), late=60 if n == 8 else 0), 8,
         "goodput fell with 8 at once"),
    ],
)  # fmt: skip
def test_it_ends_at_the_first_bad_step(engine: Callable[[int], Step], last: int, why: str) -> None:
    steps, reason = climb(engine)
    assert (steps[-1].concurrency, reason) == (last, why)


@pytest.mark.parametrize(("limit", "steps"), [(1, [1]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_it_ends_at_the_engines_limit(limit: int, steps: list[int]) -> None:
    climbed, reason = climb(lambda n: step(n, 50.0 * n), limit)
    assert ([one.concurrency for one in climbed], reason) == (steps, f"{limit} at once is the limit")


def test_the_best_step_is_the_least_crowded_of_the_good_ones() -> None:
    found = best(climb(saturating(2000.0, 4.0))[0])
    assert found is not None
    top = max(one.tokens_per_s for one in climb(saturating(2000.0, 4.0))[0])
    assert found.step.tokens_per_s >= 0.95 * top
    assert not found.open_ended
    assert "first tokens after" in found.reason


def test_a_step_that_misses_the_target_too_often_is_no_place_to_work_at() -> None:
    """It has more goodput, and a tenth of its users wait too long."""
    target = Target(ttft=0.5)
    steps = [step(8, 400.0, target=target), step(16, 800.0, target=target, late=10)]
    found = best(steps)
    assert found is not None and found.step.concurrency == 8
    assert "only 90% of the requests within the target" in found.reason
    assert best(steps[1:]) is None


def test_a_ladder_that_still_grew_is_open_ended() -> None:
    found = best([step(1, 50.0), step(2, 100.0), step(4, 200.0)])
    assert found is not None and found.open_ended and found.step.concurrency == 4


def test_nothing_is_best_of_nothing() -> None:
    assert best([]) is None
