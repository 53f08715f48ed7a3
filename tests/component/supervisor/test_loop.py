"""The supervisor as a process: engines come back, and what an operator ordered stands."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.host import files
from appliance.policy.ladder import Ladder, Place, Rung
from appliance.policy.restart import Record
from appliance.supervisor import ledger
from tests.support.stage import CHAT, EMBED, SETTINGS, Stage, staged, unit
from tests.support.waiting import wait_until


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as made:
        yield made


def test_an_engine_is_started_dies_and_comes_back(stage: Stage) -> None:
    stage.start()
    stage.serving()
    assert stage.fleet()["load_s"] == pytest.approx(26.0, abs=0.2)
    stage.die(cause="worker-died", message="worker 1 was killed by SIGKILL")
    stage.wait_started(2)
    assert stage.systemd.calls[-1] == ["restart", unit()]  # systemd waits for its own restart: `start` would not do
    seen = stage.wait_state("starting")
    assert seen["restarts"] == 1
    stage.serving()
    told = [line for line in stage.journal.splitlines() if "worker-died" in line]
    assert "worker 1 was killed by SIGKILL" in told[0]
    assert stage.starts() == 2


def test_what_a_start_taught_about_its_plan_is_kept(stage: Stage) -> None:
    stage.start()
    stage.serving()
    planned = {"model": "org/x", "gpu": "L4", "tp": 1, "pp": 1, "kv_gib": 10.0}
    stage.started_with(runtime="0.32.0-cuda", planned=planned, measured={"kv_gib": 9.25})
    path = stage.state / "supervisor/planerrors.json"
    (error,) = stage.wait(lambda: (files.read_json(path) or {}).get("errors"), "it is on disk")
    assert error == {"model": "org/x", "gpu": "L4", "runtime": "0.32.0-cuda", "tp": 1, "pp": 1, "kv_gib": -0.75}


def test_what_will_not_get_better_is_held_at_once_with_its_remedy(stage: Stage) -> None:
    stage.start()
    stage.wait_started(1)
    stage.die(status=78, cause="config-error", message="unknown flag max_num_sequences")
    held = stage.wait_state("held")
    assert (held["cause"], held["reason"]) == ("config-error", "unknown flag max_num_sequences")
    assert "resume" in held["next"]
    wait_until((stage.state / "supervisor/holds/chat").exists, 10, "the hold on disk", 0.02)
    assert stage.starts() == 1
    assert "llm-appliance apply" in stage.journal


@pytest.mark.slow
def test_a_start_that_a_change_can_help_gets_it_and_keeps_it(stage: Stage) -> None:
    rung = stage.state / "supervisor/rungs/chat.json"
    stage.start()
    stage.wait_started(1)
    stage.started_with(runtime="0.32.0-cuda", gpus=["GPU-1"], cuda=True, flags={"gpu_memory_utilization": 0.9})
    stage.die(status=78, cause="kv-none", message="no room for a KV cache")
    stage.wait_started(2)
    assert stage.systemd.calls[-1] == ["start", unit()]
    told = json.loads(rung.read_text())
    assert (told["flags"], told["digest"]) == ({"gpu_memory_utilization": 0.93}, stage.digest())
    stage.serving()  # its launcher is an older one, which does not say with what
    changed = "gpu_memory_utilization 0.9 -> 0.93 (kv-none)"
    assert stage.fleet()["changed"] == changed
    assert "it starts with a change: gpu_memory_utilization 0.9 -> 0.93" in stage.journal
    stage.kill()
    rung.unlink()  # a crash before it was written
    stage.start()
    wait_until(rung.exists, 10, "the rung on disk", 0.02)
    assert stage.fleet()["changed"] == changed
    stage.started_with(runtime="0.32.0-cuda", gpus=["GPU-1"], cuda=True)
    stage.die(status=78, cause="kv-none", message="still no room")
    assert stage.wait_state("held")["reason"].startswith("still no room")
    assert stage.starts() == 2


@pytest.mark.slow
def test_a_context_is_lowered_where_the_operator_allows_it(stage: Stage) -> None:
    stage.write(CHAT + "min_model_len = 4096\n")
    stage.start()
    stage.wait_started(1)
    stage.started_with(runtime="0.32.0-cuda", gpus=["GPU-1"], cuda=True, flags={"max_model_len": 8192})
    stage.die(status=78, cause="kv-too-small", message="no room for 8192 tokens", hint="max-model-len=6000")
    stage.wait_started(2)
    told = json.loads((stage.state / "supervisor/rungs/chat.json").read_text())
    assert told["flags"] == {"max_model_len": 5888}
    assert stage.wait_state("starting")["changed"] == "max_model_len 8192 -> 5888 (kv-too-small)"


@pytest.mark.parametrize(
    ("runtime", "told"),
    [("0.32.0-cuda", "its next start does without max_num_seqs 64 -> 32"), ("0.33.0-cuda", "is forgotten")],
    ids=["after two quiet days", "for another runtime"],
)
def test_the_way_up_is_told_and_restarts_nothing(stage: Stage, runtime: str, told: str) -> None:
    past = time.time() - 2 * 86400.0
    place = Place(stage.digest(), "0.32.0-cuda", ("GPU-1",))
    rung = Rung("cuda-oom-warmup", "max_num_seqs 64 -> 32", past, {"max_num_seqs": 32})
    record = Record(ladder=Ladder(place, (rung,)))
    ledger.write(str(stage.state / "supervisor/ledger.json"), ledger.Ledger({"chat": record}))
    file = stage.state / "supervisor/rungs/chat.json"
    file.parent.mkdir()
    file.write_text('{"v": 1, "flags": {"max_num_seqs": 32}}')
    stage.serve()
    stage.started_with(runtime=runtime, gpus=["GPU-1"], cuda=True, phase="serving", ready=past)
    stage.start()
    wait_until(lambda: told in stage.journal, 10, "the line about the ladder", 0.02)
    stage.wait(lambda: stage.fleet().get("changed") == "", "nothing is changed any more")
    assert json.loads(file.read_text())["flags"] == {}
    assert stage.starts() == 0


@pytest.mark.slow
def test_the_budget_ends_in_a_hold_and_resume_begins_anew(stage: Stage) -> None:
    stage.start()
    for number in range(1, 5):
        stage.wait_started(number)
        stage.die(status=72, cause="start-failed", message="no luck")
    held = stage.wait_state("held")
    assert "budget" in held["reason"]
    assert stage.starts() == 4
    assert stage.ask("restart", engine="chat")[-1]["ok"] is False
    assert stage.ask("resume", engine="chat")[-1]["ok"] is True
    stage.wait_started(5)
    assert stage.ledger()["deaths"] == []
    stage.serving()


@pytest.mark.slow
def test_an_operators_hold_outlives_the_supervisor(stage: Stage) -> None:
    stage.start()
    stage.serving()
    answer = stage.ask("hold", engine="chat", reason="new fans")
    assert answer[-1] == {"done": True, "ok": True, "message": "chat: stopped"}
    assert stage.systemd.get(unit())["ActiveState"] == "inactive"
    assert stage.wait_state("held")["reason"] == "new fans"
    stage.kill()
    stage.start()
    assert stage.fleet()["state"] == "held"
    stage.systemd.start(unit())  # somebody's `systemctl start`: the unit's condition refuses it
    assert stage.systemd.get(unit())["ActiveState"] == "inactive"
    assert stage.ask("resume", engine="chat")[-1]["ok"] is True
    stage.serving()


@pytest.mark.slow
@pytest.mark.parametrize("set_by", [8 * 3600.0, -8 * 3600.0, 0.0])
def test_a_clock_that_is_set_during_a_start_is_no_part_of_it(stage: Stage, set_by: float) -> None:
    """As at a boot, when the network's time comes while the model loads."""
    stage.start()
    stage.wait_started(1)
    stage.serve(set_by=set_by)
    stage.wait_state("serving")
    assert stage.fleet()["load_s"] == 26.0


@pytest.mark.slow
@pytest.mark.parametrize("hint", ["killed", ""])
def test_a_death_by_a_kill_is_told_as_one(stage: Stage, hint: str) -> None:
    """The gateway counts it against no request."""
    stage.start()
    stage.serving()
    stage.die(cause="worker-died", message="a worker died (SIGKILL)", hint=hint)
    death = stage.wait(lambda: stage.fleet()["death"], "the death is told")
    assert (death["cause"], death["killed"]) == ("worker-died", hint == "killed")
    assert [death["killed"] for death in stage.ledger()["deaths"]] == [hint == "killed"]


@pytest.mark.slow
def test_one_start_at_a_time(tmp_path: Path) -> None:
    with staged(tmp_path, CHAT + EMBED) as stage:
        stage.start()
        stage.wait_started(1, "chat")
        assert "chat is starting" in stage.wait_state("waiting", "embed")["reason"]
        assert stage.starts("embed") == 0
        stage.serving("chat")
        stage.serving("embed")


@pytest.mark.slow
def test_engines_wait_for_the_runtime_and_start_by_themselves(stage: Stage) -> None:
    stage.complete(False)
    stage.start()
    assert "the vLLM runtime" in stage.wait_state("waiting")["reason"]
    stage.wait(lambda: ["start", "llm-runtime.service"] in stage.systemd.calls, "the runtime is asked for")
    assert stage.starts() == 0
    stage.complete(True)
    stage.serving()


@pytest.mark.slow
def test_a_unit_stopped_by_hand_stays_down(stage: Stage) -> None:
    stage.start()
    stage.serving()
    stage.systemd.set(unit(), ActiveState="inactive", SubState="dead")
    assert "by hand" in stage.wait_state("stopped")["reason"]
    assert stage.starts() == 1
    assert stage.ask("restart", engine="chat")[-1]["ok"] is True
    stage.serving()


def _observed(stage: Stage) -> None:
    """An engine that serves and is only watched: somebody else has started it."""
    stage.write(CHAT, SETTINGS.replace("[supervisor]", '[supervisor]\nmode = "observe"'))
    stage.start()
    stage.wait(lambda: "observe" in stage.fleet().get("next", ""), "what would be done is told")
    stage.systemd.start(unit())
    stage.serve()
    stage.wait_state("serving")


def test_observe_touches_nothing(stage: Stage) -> None:
    _observed(stage)
    refused = stage.ask("restart", engine="chat", evidence=True)[-1]
    assert not refused["ok"] and "observe" in refused["message"]
    stage.die(status=78, cause="config-error", message="bad flag")
    assert stage.wait_state("failed")["cause"] == "config-error"
    assert stage.systemd.calls == []
    assert not (stage.state / "supervisor/holds/chat").exists()


@pytest.mark.slow
@pytest.mark.parametrize("then", ["an order", "a crash"])
def test_a_hold_that_was_not_carried_out_is_not_carried_out_later(stage: Stage, then: str) -> None:
    """An observer, or a supervisor that ended in between, leaves the engine to systemd's net or to an operator."""
    _observed(stage)
    stage.die(cause="config-error", message="bad flag")
    stage.wait_state("failed")
    stage.systemd.start(unit())
    stage.serve()
    stage.wait_state("serving")
    stage.stop()
    stage.write(CHAT)
    stage.start()
    stage.wait_state("serving")
    if then == "an order":
        assert stage.ask("restart", engine="chat")[-1]["ok"]
    else:
        stage.die(cause="cuda-fault", message="illegal access")
    stage.wait(lambda: stage.systemd.calls, "something is done")
    stage.wait_state("starting")
    assert stage.systemd.calls == [["restart", unit()]]
    stage.serving()
    assert not (stage.state / "supervisor/holds/chat").exists()


@pytest.mark.slow
def test_systemd_refuses_and_then_does_not(stage: Stage) -> None:
    stage.systemd.refuse("show", "Connection timed out")
    stage.start()
    stage.wait(lambda: "Connection timed out" in stage.journal, "the refusal is told")
    assert stage.ask("restart", engine="chat")[-1]["ok"] is False
    assert stage.systemd.calls == []
    stage.systemd.refuse("show", "")
    stage.serving()
    assert stage.journal.count("Connection timed out") == 1


def test_an_invalid_file_keeps_the_configuration_in_force(stage: Stage) -> None:
    stage.start()
    stage.serving()
    digest = stage.digest()
    stage.config.write_text("[[engine]\n")
    assert stage.process is not None
    stage.process.send_signal(signal.SIGHUP)
    stage.wait(lambda: "is not TOML" in stage.journal, "the problem is told")
    answer = stage.ask("apply")
    assert answer[-1]["ok"] is False
    stage.die()
    stage.wait_started(2)
    stage.serve(digest=digest)
    stage.wait(lambda: stage.fleet()["state"] == "serving" and not stage.ledger().get("wanted"), "it serves again")


@pytest.mark.slow
def test_no_configuration_at_all_is_waited_out(stage: Stage) -> None:
    stage.config.write_text("nonsense = 1\n")
    stage.start()
    stage.wait(lambda: "nonsense" in stage.journal, "the problem is told")
    assert stage.systemd.calls == []
    stage.write(CHAT)
    assert stage.process is not None
    stage.process.send_signal(signal.SIGHUP)
    stage.serving()


@pytest.mark.slow
def test_there_is_one_supervisor(stage: Stage) -> None:
    stage.start()
    first = stage.process
    with pytest.raises(AssertionError, match="process has ended"):
        _second(stage)
    assert first is not None and first.poll() is None
    assert "another supervisor runs already" in stage.journal
    stage.process = first


def _second(stage: Stage) -> None:
    import subprocess
    import sys

    with open(stage.errors, "ab") as errors:
        ended = subprocess.run(
            [sys.executable, "-m", "appliance", "supervisor", "--config", str(stage.config)],
            env=stage.environment,
            stderr=errors,
            timeout=20,
            check=False,
        )
    assert ended.returncode == 0, f"process has ended with {ended.returncode}"


def test_it_stops_when_asked_and_leaves_the_engines(stage: Stage) -> None:
    stage.start()
    stage.serving()
    calls = stage.systemd.calls
    assert stage.stop() == 0
    assert stage.systemd.calls == calls
    assert not (stage.run / "supervisor/control.sock").exists()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="asks systemctl itself as root alone")
def test_as_root_it_needs_no_helper(stage: Stage) -> None:
    stage.start(helper=False)
    stage.serving()


@pytest.mark.slow
def test_a_recovery_of_an_earlier_run_touches_nothing_of_the_present_one(stage: Stage) -> None:
    stage.start()
    stage.serving()
    stage.kill()
    (stage.state / "supervisor/recoveries").mkdir()
    case: dict[str, object] = {"run": "an earlier one", "kind": "kill", "cause": "hang-kernel", "reason": "no token",
                               "at": 1.0, "incident": "20261129T173000Z-chat-hang-kernel"}  # fmt: skip
    files.replace_json(stage.state / "supervisor/recoveries/chat", case)
    stage.start()
    stage.wait(lambda: not (stage.state / "supervisor/recoveries/chat").exists(), "the case is closed")
    # The run that was judged, and that somebody else ended, counts.
    stage.wait(lambda: (stage.fleet().get("state"), stage.fleet().get("restarts")) == ("serving", 1), "it serves")
    assert stage.starts() == 1
    assert [call for call in stage.systemd.calls if call[0] == "kill"] == []
    assert stage.ask("restart", engine="chat", evidence=True)[-1]["ok"]
    stage.wait_started(2)


def test_no_evidence_of_what_does_not_run(stage: Stage) -> None:
    stage.complete(False)
    stage.start()
    stage.wait_state("waiting")
    refused = stage.ask("restart", engine="chat", evidence=True)[-1]
    assert not refused["ok"] and "does not run" in refused["message"]
