"""What holds of every timeline, whatever is random or missing in it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.cli.replay import replayed
from appliance.config.model import Supervisor
from appliance.policy.judge import Judge
from appliance.policy.judgement import Judgement
from appliance.samples import Ledger, Metrics, Nvml, Proc, Sample
from appliance.wire import timeline
from appliance.wire.findings import Reader
from tests.support.hangstories import BLIND, HANGS, judged, told
from tests.support.timelines import JIT, SHM_WAIT, Scene
from tests.support.trapstories import TRAPS

LIMITS = Supervisor()


def replay(lines: list[bytes]) -> list[Judgement]:
    recording = timeline.read(lines, "story")
    return list(replayed(recording.samples, recording.setting, LIMITS))


def hung_at(found: Iterable[Judgement]) -> float | None:
    return next((judgement.t for judgement in found if judgement.verdict == "hung"), None)


def at_random(chance: random.Random, scene: Scene) -> None:
    """The cards, the processes and the log show anything, or nothing."""
    for card in scene.cards:
        card["util"] = chance.choice([None, 0.0, 1.0, 50.0, 100.0])
        card["power_w"] = chance.choice([None, 20.0, 55.0, 95.0, 300.0, 350.0])
        card["mem_util"] = chance.choice([None, 0.0, 1.0, 45.0])
        card["pids"] = chance.choice([None, [], [scene.core], [scene.core, 7], [7]])
    for pid in (scene.core, *scene.workers):
        scene.process(pid, state=chance.choice("RSDTZ"), cpu_pct=chance.choice([None, 0.0, 50.0, 100.0]))
    if chance.random() < 0.1:
        scene.say(chance.choice([JIT, SHM_WAIT, "INFO 11-29 11:50:00 [x.py:1] something", "\x00\xff", ""]))
    scene.scrape = chance.choice([{"http": 200}] * 5 + [{"error": "timeout"}, {"http": 500}])
    scene.ledger_more = chance.choice(
        [{}, {"structured": 1}, {"largest_prompt_tokens": 50_000}, {"oldest_silent_s": 900.0}, {"error": "gone"}]
    )


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 4]), st.sampled_from([6.0, 10.0, 20.0]), st.booleans())
def test_an_engine_that_moves_every_twenty_seconds_is_never_hung(
    seed: int, tp: int, every_s: float, gateway: bool
) -> None:
    chance, scene = random.Random(seed), Scene(tp, gateway=gateway)
    scene.inflight, scene.silent_since = 3, scene.t
    scene.values["vllm:num_requests_running"] = 3.0
    moved = scene.t
    for _ in range(200):
        at_random(chance, scene)
        if scene.t - moved >= every_s:
            moved = scene.t
            name = chance.choice(["vllm:generation_tokens_total", "vllm:kv_cache_usage_perc"])
            scene.values[name] += chance.choice([0.001, 1.0, 64.0])
            scene.scrape = {"http": 200}
        scene.sample()
        scene.skip(scene.interval)
    found = replay(scene.text(leave_out=chance.sample(("nvml", "proc", "journal", "cgroup"), chance.randrange(3))))
    assert hung_at(found) is None


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 4]), st.booleans())
def test_a_hang_with_demand_is_found_by_the_blind_limit(seed: int, tp: int, gateway: bool) -> None:
    """Unless something excuses it: here the cards never show the power of work, and nothing is compiled."""
    chance, scene = random.Random(seed), Scene(tp, gateway=gateway)
    scene.serve(60)
    scene.freeze(running=2.0)
    begin = scene.t
    for _ in range(130):
        for card in scene.cards:
            card.update(util=chance.choice([None, 0.0, 50.0, 100.0]), power_w=chance.choice([None, 55.0, 150.0]),
                        mem_util=chance.choice([None, 0.0, 5.0]))  # fmt: skip
        for pid in (scene.core, *scene.workers):
            scene.process(pid, state=chance.choice("RSD"), cpu_pct=chance.choice([None, 0.0, 50.0, 100.0]))
        scene.sample()
        scene.skip(scene.interval)
    drop = [source for source in ("nvml", "proc", "metrics" if gateway else "cgroup") if chance.random() < 0.3]
    at = hung_at(replay(scene.text(leave_out=drop)))
    assert at is not None
    assert at - begin <= BLIND + 2 * scene.interval


# Without the ledger nobody knows of a grammar that is being compiled, or that clients give up in between.
ONLY_THE_LEDGER_KNOWS = ("endless grammar", "clients give up")
ONLY_METRICS_KNOW = ("beside a stopped client", "baseline learnt, and a sleep")  # what the engine says of itself
SERVING_HANGS = [name for name, hang in HANGS.items() if "start" not in name and hang.after_s < BLIND]


@pytest.mark.parametrize("source", [Metrics, Ledger, Nvml, Proc])
@pytest.mark.parametrize("name", SERVING_HANGS)
def test_no_source_is_missed_by_an_earlier_verdict(name: str, source: type) -> None:
    """Without a source a hang is found at the same time, later, or not at all."""
    if name in {Ledger: ONLY_THE_LEDGER_KNOWS, Metrics: ONLY_METRICS_KNOW}.get(source, ()):
        return
    with_all, without = hung_at(judged(name)), hung_at(judged(name, source))
    assert with_all is not None
    assert without is None or without >= with_all - 2.0


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_stays_one_without_the_gpus(name: str) -> None:
    assert hung_at(judged(name, Nvml)) is None


@pytest.mark.parametrize("shift", [-1000.0, 1.7e9])
@pytest.mark.parametrize("name", ["collective", "livelock", "notices and a worker that waits", "ranks never meet"])
def test_a_shift_of_time_changes_nothing(name: str, shift: float) -> None:
    _, setting, samples = told(name)
    moved = [replace(each, sample=replace(each.sample, t=each.sample.t + shift)) for each in samples]
    before, after = list(judged(name)), list(replayed(moved, setting, LIMITS))
    assert [replace(judgement, t=0.0) for judgement in before] == [replace(judgement, t=0.0) for judgement in after]
    assert [round(judgement.t + shift, 3) for judgement in before] == [round(judgement.t, 3) for judgement in after]


@pytest.mark.parametrize("name", [*SERVING_HANGS, "JIT while serving", "chunked prefill"])
def test_it_does_not_matter_how_often_somebody_asks(name: str) -> None:
    _, setting, recorded = told(name)
    samples = [each.sample for each in recorded]
    asked, never, reader = Judge(setting, LIMITS), Judge(setting, LIMITS), Reader()
    for index, sample in enumerate(samples):
        each: tuple[Sample, ...] = (sample, *reader.read(sample))
        for one in each:
            asked.feed(one)
            never.feed(one)
        if index + 1 == len(samples) or samples[index + 1].t > sample.t:
            asked.judged(sample.t)
    last = samples[-1].t
    assert asked.judged(last) == never.judged(last)
