"""A crash whose next run begins in the same unit: real launchers, and a supervisor that decides as for any restart."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.livestage import LiveStage, live
from tests.support.stage import SETTINGS, unit

LONG = 30.0


@pytest.fixture
def stage() -> Iterator[LiveStage]:
    with live("", standby=LONG) as made:
        yield made


def state(stage: LiveStage) -> dict[str, Any]:
    return stage.state_of_engine


def serving(stage: LiveStage, settings: str = SETTINGS) -> None:
    stage.write(stage.text_of_config, settings)
    stage.start()
    stage.served(1)


def crash(stage: LiveStage) -> None:
    os.kill(stage.pids()["api"], signal.SIGUSR1)


def again(stage: LiveStage, count: int) -> None:
    """Until the run that so many others of its unit came before is seen to serve."""
    stage.wait(lambda: (state(stage).get("again"), state(stage).get("phase")) == (count, "serving"), f"run {count}")
    stage.wait(lambda: not stage.ledger().get("wanted"), "the supervisor has seen it")
    stage.wait_state("serving")


@pytest.mark.slow
def test_a_crash_is_judged_as_ever_and_mended_in_place(stage: LiveStage) -> None:
    serving(stage)
    first, run = state(stage), stage.systemd.get(unit())["InvocationID"]
    crash(stage)
    again(stage, 1)
    second = state(stage)
    crash(stage)
    again(stage, 2)
    assert stage.systemd.calls == [["start", unit()]]
    assert stage.systemd.get(unit())["InvocationID"] == run
    deaths = stage.ledger()["deaths"]
    assert [(death["key"], death["start"], death["cause"]) for death in deaths] == [
        (run, first["start"], "engine-died"), (f"{run}.1", second["start"], "engine-died"),
    ]  # fmt: skip
    fleet = stage.fleet()
    assert (fleet["restarts"], fleet["death"]["start"]) == (2, second["start"])
    told = stage.journal
    assert told.count("chat: engine-died") == 2
    assert told.index("chat: engine-died") < told.index("chat: restarting") < told.rindex("chat: starting")
    assert told.rindex("chat: starting") < told.rindex("chat: serving after")
    assert stage.ledger()["wanted"] == ""
    (bundle,) = stage.bundles
    assert len(bundle.incident.again) == 1
    assert "engine core exited" in stage.text("lines.log")


@pytest.mark.slow
def test_a_supervisor_that_is_away_leaves_it_to_the_net() -> None:
    with live("", standby=0.4) as stage:
        serving(stage)
        stage.kill()
        crash(stage)
        stage.wait(lambda: stage.systemd.get(unit())["SubState"] == "auto-restart", "the launcher ended")
        assert stage.systemd.get(unit())["ExecMainStatus"] == 71
        stage.start()
        stage.served(2)
        assert stage.systemd.calls == [["start", unit()], ["restart", unit()]]
        assert stage.fleet()["restarts"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the word", "after the word"])
def test_a_supervisor_that_is_killed_on_the_way_starts_nothing_twice(stage: LiveStage, when: str) -> None:
    serving(stage, SETTINGS.replace("50ms", "1s"))
    crash(stage)
    if when == "before the word":
        stage.wait(lambda: stage.ledger().get("wanted"), "the death is on record")
    else:
        stage.wait(lambda: state(stage).get("again") == 1, "the next run has begun")
    stage.kill()
    stage.start()
    again(stage, 1)
    assert stage.systemd.calls == [["start", unit()]]
    assert (stage.fleet()["restarts"], len(stage.ledger()["deaths"])) == (1, 1)


@pytest.mark.slow
def test_what_the_launcher_refuses_is_a_restart_of_the_unit(stage: LiveStage) -> None:
    serving(stage, SETTINGS.replace("50ms", "500ms"))
    crash(stage)
    stage.write(stage.text_of_config + "[engine.vllm]\nmax_num_seqs = 4\n")  # a start reads what is there
    stage.served(2)
    assert stage.systemd.calls == [["start", unit()], ["restart", unit()]]
    assert "its unit is restarted: its configuration, its runtime or its GPUs have changed" in stage.journal
    assert (stage.fleet()["restarts"], state(stage)["again"]) == (1, 0)


@pytest.mark.slow
def test_orders_and_limits_hold_while_a_launcher_waits(stage: LiveStage) -> None:
    serving(stage, SETTINGS.replace("50ms", "20s"))
    crash(stage)
    stage.wait_state("restarting")
    assert stage.ask("restart", engine="chat", wait=True)[-1]["ok"]  # an operator's is the unit's
    assert stage.systemd.calls == [["start", unit()], ["restart", unit()]]
    stage.served(2)
    crash(stage)
    stage.wait_state("restarting")
    assert stage.ask("hold", engine="chat", reason="enough")[-1]["ok"]
    stage.wait(lambda: stage.systemd.get(unit())["ActiveState"] == "inactive", "it is stopped")
    assert stage.wait_state("held")["reason"] == "enough"


@pytest.mark.slow
def test_a_launcher_that_waits_is_ended_when_the_budget_is_spent(stage: LiveStage) -> None:
    serving(stage, SETTINGS.replace("budget = 3", "budget = 1"))
    crash(stage)
    again(stage, 1)
    crash(stage)
    assert "budget" in stage.wait_state("held")["reason"]
    stage.wait(lambda: stage.systemd.get(unit())["ActiveState"] == "inactive", "it is stopped")
