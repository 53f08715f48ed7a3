"""A launcher that may go on after a crash: it tells the end, waits for the word, and starts vLLM again or ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.enginestage import LIMIT, Stage, alive, ask, staged
from tests.support.waiting import wait_until


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as made:
        yield made


def crashed(stage: Stage, word: float = LIMIT) -> dict[str, Any]:
    """The state after the engine core was killed: the launcher waits."""
    stage.configure()
    stage.start(standby=True, unit="u1", word=word)
    stage.until("serving")
    return crash(stage)


def crash(stage: Stage) -> dict[str, Any]:
    os.kill(stage.pids()["api"], signal.SIGUSR1)
    return stage.until("exited")


def say(stage: Stage, start: object) -> dict[str, Any]:
    return ask(stage, {"verb": "again", "start": start})[1]


def standby(stage: Stage) -> int:
    return int((stage.home / "standby").read_text())


def test_the_next_run_begins_in_the_same_unit(stage: Stage) -> None:
    before = crashed(stage)
    pids, verdict = stage.pids(), stage.read("verdict.json")
    assert (verdict["cause"], verdict["start"], verdict["requested"]) == ("engine-died", before["start"], False)
    assert (before["unit"], before["again"]) == ("u1", 0)
    assert before["awaits"] > before["since"]
    assert {name: pid for name, pid in pids.items() if alive(pid)} == {}
    assert alive(standby(stage))  # what vLLM is forked from is nothing that it left behind
    assert say(stage, before["start"]) == {"done": True, "ok": True, "message": ""}
    after = stage.until("serving")
    assert after["start"] != before["start"]
    assert (after["unit"], after["again"], after["awaits"], after["pid"]) == ("u1", 1, None, stage.pids()["api"])
    assert after["started"] > before["since"]
    assert "vLLM starts again in the same unit" in stage.output
    told = stage.manager.messages
    wait_until(lambda: sum("READY" in message for message in told) == 2, LIMIT, "each is told to be ready", pause=0.01)
    again = crash(stage)
    assert stage.read("verdict.json")["start"] == again["start"] == after["start"]
    assert say(stage, again["start"])["ok"]
    assert stage.until("serving")["again"] == 2
    assert stage.process is not None
    stage.process.terminate()
    assert stage.ended() == 0
    assert not alive(standby(stage))
    assert stage.read("verdict.json")["requested"] is True


def test_without_the_word_it_ends_as_ever(stage: Stage) -> None:
    crashed(stage, word=0.5)
    assert stage.ended() == 71
    assert not (stage.directory / "launcher/evidence.sock").exists()


def test_a_stop_while_it_waits_is_a_stop(stage: Stage) -> None:
    crashed(stage)
    assert stage.process is not None
    stage.process.terminate()
    assert stage.ended() == 0
    assert stage.read("verdict.json")["cause"] == "engine-died"  # what the run ended of stays told


def test_the_word_is_about_one_run(stage: Stage) -> None:
    before = crashed(stage)
    assert say(stage, "another") == {"done": True, "ok": False, "message": f"the run that ended is {before['start']}"}
    assert say(stage, before["start"])["ok"]
    stage.until("serving")
    assert "no run has ended" in say(stage, before["start"])["message"]  # said twice, it starts nothing twice
    assert stage.read("state.json")["again"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("what", ["configuration", "invalid", "rung"])
def test_what_needs_another_unit_is_not_started_in_this_one(stage: Stage, what: str) -> None:
    before = crashed(stage, word=1.0)
    if what == "rung":
        place = {key: before[key] for key in ("digest", "runtime", "gpus")}
        rung = {"v": 1, **place, "flags": {}, "env": {}, "caches": "1.0", "told": "caches moved"}
        (stage.home / "run/engines/chat/rung.json").write_text(str(rung).replace("'", '"'))
    else:
        stage.configure(keys="priority = 3\nshm_size = '1GiB'" if what == "configuration" else "no_key = 3")
    told = say(stage, before["start"])
    wanted = {"configuration": "configuration, its runtime or its GPUs", "invalid": "not valid", "rung": "its starts"}
    assert not told["ok"] and wanted[what] in told["message"]
    assert stage.ended() == 71


@pytest.mark.slow
def test_it_does_not_wait_for_what_cannot_come(stage: Stage) -> None:
    """Nothing to go on with; an end that was ordered; a start that failed."""
    stage.configure()
    stage.start(standby=True)
    stage.until("serving")
    os.kill(standby(stage), signal.SIGKILL)
    wait_until(lambda: not alive(standby(stage)), LIMIT, "it is gone", 0.01)
    assert crash(stage)["awaits"] is None
    assert stage.ended() == 71
    stage.start(standby=True)
    stage.until("serving")
    ask(stage, {"verb": "abort", "cause": "hang-collective", "reason": "it stands"})
    assert (stage.ended(), stage.read("state.json")["awaits"]) == (71, None)
    stage.configure("log=kv-too-small,exit=1")
    stage.start(standby=True)
    assert (stage.ended(), stage.read("state.json")["awaits"]) == (78, None)


def test_what_stood_by_ends_while_it_waits(stage: Stage) -> None:
    crashed(stage)
    os.kill(standby(stage), signal.SIGKILL)
    assert stage.ended() == 71


def test_a_run_is_told_before_its_files_are_looked_at(stage: Stage) -> None:
    """A disk may take long: a launcher that began already is not one that waits, and is not told twice."""
    before = crashed(stage)
    weights = stage.home / "models/builtin/smollm2-135m/model.safetensors"
    os.mkfifo(weights)
    assert say(stage, before["start"])["ok"]
    after = stage.until("starting")
    assert (after["again"], after["awaits"], after["pid"]) == (1, None, None)
    weights.write_bytes(b"")
    assert stage.ended() == 78


def test_each_run_looks_for_its_model(stage: Stage) -> None:
    before = crashed(stage)
    (stage.home / "models/builtin/smollm2-135m/config.json").unlink()
    (stage.home / "models/builtin/smollm2-135m").rmdir()
    assert say(stage, before["start"])["ok"]
    assert stage.ended() == 78
    verdict = stage.read("verdict.json")
    assert (verdict["cause"], verdict["start"] != before["start"]) == ("model-not-found", True)
