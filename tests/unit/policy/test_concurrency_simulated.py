"""The adaptive limit on a simulated engine, offered three times what it can take; every number has its seed.

"Best" is the best fixed limit, found by trying: the one with the highest goodput over all seeds together, since nobody
who sets a limit knows the seed. First-token time counts from when the gateway hands a call to the engine; a call's
tokens are goodput when its first token came within `first_token_target`. Asked are 0.95 of the best goodput and a 95th
percentile of first-token time of 1.00 of the target; after a change of the capacity both from 30 s behind it on.
The limits tried are those around the best of a wide search over 24 other seeds.

                                                goodput/best   p95/target
    KV cache is short                               1.01          0.19
    prefill is slow                                 0.99          0.61
    few sequences (the ceiling is what binds)       1.00          0.06
    tiny: 22 calls at once, 1.2 a second            0.98          0.49
    long answers, short prompts                     1.03          0.04
    one prompt in twenty has 32,000 tokens          0.99          0.73
    a small cache filled by answers: preempts       1.00          0.02
    KV short, speed halves                          1.06          0.30
    KV short, speed doubles                         1.01          0.12
    KV short, cache halves                          1.04          0.15
    KV short, cache doubles                         1.07          0.29
    prefill slow, speed halves                      0.99          0.69
    prefill slow, speed doubles                     0.98          0.50
    tiny, speed halves: 0.7 calls a second          1.03          0.97
    long prompts, speed halves                      1.03          0.88
    preempts, cache halves                          0.98          0.02

More than 1 is no error: a fixed limit must leave for all times what the cache lacks at some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from appliance.policy.concurrency import ConcurrencyLimit
from tests.support.simengine import Engine, Event, Model, Run, best_fixed, simulate

SEEDS = (1, 2, 3)
MANY = (1, 2, 3, 4, 5, 6)  # where calls are so few that chance decides over three seeds
KV_SHORT = Model()
PREFILL_SLOW = Model(kv_tokens=600_000, budget=512, prompt=(1500, 0.7, 8000), answer=(150, 0.5, 600))
FEW_SEQUENCES = Model(max_num_seqs=48)
TINY = Model(base=0.03, per_sequence=0.0005, per_prefill=0.0004, kv_tokens=30_000, budget=1024, max_num_seqs=64)
# Of other shapes; the constants were chosen with other seeds of all.
LONG_ANSWERS = Model(kv_tokens=200_000, prompt=(100, 0.5, 500), answer=(1200, 0.5, 4000))
LONG_PROMPTS = Model(
    per_prefill=0.00002, kv_tokens=600_000, budget=8192, prompt=(500, 0.8, 4000), long=(0.05, 32_000)
)  # fmt: skip
PREEMPTS = Model(kv_tokens=40_000, prompt=(150, 0.6, 1000), answer=(600, 0.8, 3000))
SLOW = pytest.mark.slow  # what needs many steps; the quick ones are of all kinds
CHANGE = 60.0  # seconds into a run at which the capacity changes
RECOVERED = CHANGE + 30.0


def speed(factor: float) -> Callable[[Engine], None]:
    def change(engine: Engine) -> None:
        engine.speed = factor

    return change


def cache(factor: float) -> Callable[[Engine], None]:
    def change(engine: Engine) -> None:
        engine.kv_share = factor

    return change


def compare(
    model: Model, limits: Sequence[int], *, rate: float, begin: float, end: float, seeds: Sequence[int],
    events: Sequence[Event] = (),
) -> tuple[float, float]:  # fmt: skip
    """Goodput as a share of the best fixed limit's, and the 95th percentile, over all seeds."""
    runs = [
        simulate(model, rate=rate, seconds=end, seed=seed, limit=ConcurrencyLimit(model.max_num_seqs), events=events)
        for seed in seeds
    ]
    limit, best = best_fixed(model, limits, rate=rate, seconds=end, seeds=seeds, begin=begin, events=events)
    together = Run(firsts=[first for run in runs for first in run.firsts])
    share, p95 = sum(run.goodput(begin, end) for run in runs) / best, together.p95(begin, end)
    print(f"goodput {share:.3f} of the best fixed limit, {limit}; p95 {p95:.2f} of the target")
    return share, p95


@pytest.mark.parametrize(
    ("model", "capacity", "limits", "seeds"),
    [
        pytest.param(KV_SHORT, 12.5, (120, 136, 152), SEEDS, id="kv-short", marks=SLOW),
        pytest.param(PREFILL_SLOW, 6.8, (40, 44, 48), SEEDS, id="prefill-slow", marks=SLOW),
        pytest.param(FEW_SEQUENCES, 8.4, (40, 48), SEEDS[:2], id="few-sequences"),
        pytest.param(TINY, 1.5, range(16, 26, 2), MANY, id="tiny"),
        pytest.param(LONG_ANSWERS, 5, (176, 188, 200), SEEDS, id="long-answers", marks=SLOW),
        pytest.param(LONG_PROMPTS, 10, (160, 176, 192), SEEDS, id="long-prompts", marks=SLOW),
        pytest.param(PREEMPTS, 4, (40, 44, 48), SEEDS, id="preempts", marks=SLOW),
    ],
)
def test_three_times_the_capacity(model: Model, capacity: float, limits: Sequence[int], seeds: Sequence[int]) -> None:
    share, p95 = compare(model, limits, rate=3 * capacity, begin=30, end=150, seeds=seeds)
    assert share >= 0.95
    assert p95 <= 1.0


@pytest.mark.parametrize(
    ("model", "capacity", "change", "limits", "seeds"),
    [
        pytest.param(KV_SHORT, 12.5, speed(0.5), (104, 120, 136), SEEDS, id="kv-short-speed-halves", marks=SLOW),
        pytest.param(KV_SHORT, 25, speed(2), (136, 148), SEEDS[:2], id="kv-short-speed-doubles", marks=SLOW),
        pytest.param(KV_SHORT, 12.5, cache(0.5), (64, 70), SEEDS, id="kv-short-cache-halves", marks=SLOW),
        pytest.param(KV_SHORT, 25, cache(2), (210, 225), SEEDS[:2], id="kv-short-cache-doubles", marks=SLOW),
        pytest.param(PREFILL_SLOW, 6.8, speed(0.5), (32, 34, 36, 38), MANY, id="prefill-slow-speed-halves", marks=SLOW),
        pytest.param(PREFILL_SLOW, 13.6, speed(2), (48, 52), SEEDS, id="prefill-slow-speed-doubles", marks=SLOW),
        pytest.param(TINY, 1.5, speed(0.5), range(16, 24, 2), MANY, id="tiny-speed-halves"),
        pytest.param(LONG_PROMPTS, 10, speed(0.5), (144, 160, 176), SEEDS, id="long-prompts-speed-halves", marks=SLOW),
        pytest.param(PREEMPTS, 4, cache(0.5), (20, 23, 26), SEEDS, id="preempts-cache-halves", marks=SLOW),
    ],
)
def test_recovers_within_thirty_seconds_of_a_change(
    model: Model, capacity: float, change: Callable[[Engine], None], limits: Sequence[int], seeds: Sequence[int]
) -> None:
    share, p95 = compare(
        model, limits, rate=3 * capacity, begin=RECOVERED, end=RECOVERED + 90, seeds=seeds, events=[(CHANGE, change)]
    )
    assert share >= 0.95
    assert p95 <= 1.0


def test_too_high_a_fixed_limit_is_worse_than_learning() -> None:
    """The simulation can tell good from bad: with vLLM's own 256 hardly a call is in time."""
    fixed = simulate(KV_SHORT, rate=37.5, seconds=120, seed=1, limit=256)
    learned = simulate(KV_SHORT, rate=37.5, seconds=120, seed=1, limit=ConcurrencyLimit(256))
    assert fixed.goodput(30, 120) < 0.1 * learned.goodput(30, 120)
    assert fixed.p95(30, 120) > 4


def test_long_answers_are_no_sign_of_load() -> None:
    """Answers ten times as long, and an engine that takes them: the limit goes to its ceiling."""
    limit = ConcurrencyLimit(64)
    simulate(Model(kv_tokens=2_000_000, answer=(2000, 0.3, 8000)), rate=5, seconds=120, seed=1, limit=limit)
    assert limit.limit == 64
