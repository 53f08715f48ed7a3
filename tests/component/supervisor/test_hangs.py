"""Every way in which an engine hangs, from the GPUs that NVML shows to the kill and the next start.

All engines hang at once, under one supervisor, beside two that do not: a row is one engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from appliance.host import proc
from appliance.quantity import parse_duration
from tests.support.gpustage import REST, SPIN, GpuStage, Rig, gpus
from tests.support.stage import unit

pytestmark = pytest.mark.slow
CONFIRM, IDLE_GPU, INIT = 1.5, 3.0, 3.0  # as gpustage.SETTINGS has them; a start that joins has twice `confirm`


class Row(NamedTuple):
    """What an engine shows, what it is to be called, by which witness and after how long."""

    cause: str
    witness: str
    after_s: float
    cards: int
    hang: Callable[[GpuStage, str], None]


def collective(stage: GpuStage, name: str) -> None:
    stage.show(name, SPIN)
    stage[name].stands_still(running=2)


def rank_absent(stage: GpuStage, name: str) -> None:
    stage[name].shows(SPIN, only=0)
    stage.show(name, REST, only=1)
    stage[name].stands_still(running=2)


def scheduler(stage: GpuStage, name: str) -> None:
    stage[name].stands_still(running=0, waiting=5)


def livelock(stage: GpuStage, name: str) -> None:
    core = stage[name].processes[1].pid

    def used() -> float:
        seen = proc.read_process(core)
        return seen.cpu_s if seen is not None else 0.0

    before = used()
    stage.turn(name)
    stage.wait(lambda: used() > before + 0.1, "it turns")
    stage[name].stands_still(running=1)


def init(stage: GpuStage, name: str) -> None:
    stage.show(name, SPIN)


def first_step(stage: GpuStage, name: str) -> None:
    stage.show(name, SPIN)
    stage[name].stands_still(running=0, waiting=0, calls=3)


SPINS = "all GPUs at full utilisation with idle power or unused memory"
ROWS = {
    "collective": Row("hang-collective", SPINS, CONFIRM, 2, collective),
    "rank-absent": Row("hang-rank-absent", "one GPU idle, another at full utilisation", CONFIRM, 2, rank_absent),
    "scheduler": Row("hang-scheduler", "no GPU does anything", IDLE_GPU, 1, scheduler),
    "livelock": Row("hang-livelock", "the engine core uses a whole core of the CPU", IDLE_GPU, 1, livelock),
    "init": Row("hang-init", "utilisation 100%, power 95 W", INIT, 2, init),
    "first-step": Row("hang-collective", "utilisation 100%, power 95 W", CONFIRM, 2, first_step),
    "kernel": Row("hang-kernel", SPINS, CONFIRM, 1, collective),
}


@pytest.fixture(scope="module")
def stage() -> Iterator[GpuStage]:
    """All of it has happened: each was taken down once, and has begun anew."""
    rigs = [Rig(name, row.cards, joins=name == "init") for name, row in ROWS.items()]
    with gpus(*rigs, Rig("works", 2), Rig("idles")) as made:
        made["init"].shows(SPIN)
        made["works"].works()
        made.begin()
        for name, row in ROWS.items():
            row.hang(made, name)
        for name in ROWS:
            made.wait(lambda name=name: made.incidents(name), f"{name} is judged")  # type: ignore[misc]
            made.wait_started(1, name)
        yield made


@pytest.mark.parametrize("name", ROWS)
def test_it_is_named_by_its_witness_and_taken_down(stage: GpuStage, name: str) -> None:
    row = ROWS[name]
    first = stage.incidents(name)[0]
    assert (first.kind, first.verdict, first.cause, first.action) == ("kill", "hung", row.cause, "restart")
    assert any(row.witness in fact for fact in first.evidence), first.evidence
    assert ["kill", unit(name), "SIGKILL"] in stage.systemd.calls
    assert stage.starts(name) >= 1
    silent = re.search(r"(?:no progress|starting) for ([\d.a-z ]+?) with", first.reason)
    assert silent is not None, first.reason
    assert row.after_s - 0.5 <= parse_duration(silent[1])  # it is told in whole seconds


def test_what_works_and_what_rests_is_left_alone(stage: GpuStage) -> None:
    assert stage.untouched("works") and stage.untouched("idles")
    assert stage.incidents("works") == stage.incidents("idles") == []
    assert {stage.fleet(name)["state"] for name in ("works", "idles")} == {"serving"}


def test_a_start_that_hangs_again_is_a_gpus_fault_and_held(stage: GpuStage) -> None:
    stage.wait_state("held", "init")
    held = stage.fleet("init")
    assert held["cause"] == "hang-init" and "reset the GPUs or reboot" in held["reason"]
    assert stage.starts("init") == 1


def test_another_run_begins_with_a_clean_record(stage: GpuStage) -> None:
    for name in ("collective", "kernel"):
        stage.wait_state("serving", name)
        assert stage.fleet(name)["restarts"] == 1
