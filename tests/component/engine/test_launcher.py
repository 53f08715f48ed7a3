"""The launcher as a process, above a fake vLLM that starts, logs and dies like the real one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator

import pytest

from appliance.policy import compilecaches
from tests.support.enginestage import LIMIT, Stage, alive, staged
from tests.support.publishedlogs import LOGS
from tests.support.waiting import wait_until


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as made:
        yield made


def serving(stage: Stage, script: str = "", **limits: float) -> dict[str, int]:
    stage.configure(script)
    stage.start(**limits)
    stage.until("serving")
    return stage.pids()


def stop(stage: Stage) -> None:
    assert stage.process is not None
    stage.process.terminate()
    assert stage.ended() == 0


def nothing_left(stage: Stage, pids: dict[str, int]) -> None:
    assert {name: pid for name, pid in pids.items() if alive(pid)} == {}
    assert not (stage.directory / "vllm.sock").exists()


def test_a_start_is_told_step_by_step_and_ends_with_real_work(stage: Stage) -> None:
    stage.configure("gap=0.01")
    stage.start()
    state = stage.until("serving")
    assert state | {"start": "", "digest": "", "since": 0, "pid": 0} == {
        "v": 1, "engine": "chat", "start": "", "unit": "", "again": 0, "awaits": None, "pid": 0, "phase": "serving",
        "message": "serving smollm2-135m", "since": 0, "started": state["started"], "ready": state["ready"],
        "digest": "", "model": "builtin:smollm2-135m", "served": ["smollm2-135m"], "runtime": "runtime", "gpus": [],
        "cuda": False,
        "flags": {"enforce_eager": True, "gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 512 << 20,
                  "max_model_len": 4096},
        "changed": "",
        "planned": None,
        "measured": {"kv_gib": 0.5, "kv_tokens": 23296.0, "context": 4096.0, "at_once": 5.69},
        "phases": state["phases"],
        "notices": {"line": state["notices"]["line"]},
    }  # fmt: skip
    assert set(state["phases"]) == {"starting", "loading", "compiling", "warming"}
    assert sum(state["phases"].values()) == pytest.approx(state["ready"] - state["started"], abs=0.2)
    assert state["notices"]["line"]["count"] > 1
    assert state["started"] <= state["notices"]["line"]["at"] <= state["ready"]
    assert state["started"] < state["ready"]
    assert state["pid"] == stage.pids()["api"]
    wait_until(lambda: any("READY" in message for message in stage.manager.messages), LIMIT, "READY=1", pause=0.02)
    messages = stage.manager.messages
    said = [message["STATUS"] for message in messages if "STATUS" in message]
    order = ["starting: starting the engine's processes", "loading: loading weights 1 of 1 shards",
             "compiling: KV cache of 23,296 tokens", "warming: waiting for the first real answer",
             "serving smollm2-135m"]  # fmt: skip
    assert [text for text in said if text in order] == order
    assert [message.get("READY") for message in messages][-1] == "1"
    assert sum("READY" in message for message in messages) == 1
    assert any("EXTEND_TIMEOUT_USEC" in message for message in messages)


def test_a_start_on_gpus_is_planned_beside_what_vllm_says(stage: Stage) -> None:
    (stage.home / "runtime/.complete").write_text('{"v": 1, "version": "0.32.0", "device": "cuda"}')
    model, log = stage.home / "model", LOGS[0]
    model.mkdir()
    (model / "config.json").write_text(json.dumps(log.config))
    index = {"metadata": {"total_size": log.checkpoint}, "weight_map": {"x": "model-1.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    gpu = {"uuid": "GPU-11111111-2222-3333-4444-555555555555", "name": "NVIDIA GeForce RTX 3090", "pci": "0000:65:00"}
    (stage.home / "run/supervisor").mkdir(parents=True)
    (stage.home / "run/supervisor/gpus.json").write_text(json.dumps({"v": 1, "gpus": [gpu]}))
    stage.configure(
        keys=f'model = "{model}"\ngpus = ["{gpu["uuid"]}"]\nserved_names = ["smollm2-135m"]',
        vllm="max_model_len = 20000\nmax_num_batched_tokens = 20000\nmax_num_seqs = 4\ngpu_memory_utilization = 0.9",
    )
    stage.start()
    state = stage.until("serving")
    assert (state["planned"]["gpu"], state["planned"]["tp"], state["cuda"]) == ("RTX 3090", 1, True)
    assert state["planned"]["weights_gib"] == pytest.approx(log.weights, abs=0.05)
    assert state["planned"]["kv_gib"] == pytest.approx(log.kv, abs=0.7)
    assert state["measured"]["kv_gib"] == 0.5  # of the log that is replayed
    stop(stage)


@pytest.mark.slow
def test_a_rung_changes_the_start_that_it_was_made_for(stage: Stage) -> None:
    stage.configure(vllm="max_num_seqs = 64")
    stage.start()
    state = stage.until("serving")
    stop(stage)
    rung = {"v": 1, "digest": state["digest"], "runtime": "runtime", "gpus": [], "flags": {"max_num_seqs": 32},
            "env": {"NCCL_DEBUG": "INFO"}, "caches": "", "told": "max_num_seqs 64 -> 32"}  # fmt: skip
    for digest, sequences, told in ((state["digest"], "32", rung["told"]), ("another", "64", "")):
        (stage.directory / "rung.json").write_text(json.dumps(rung | {"digest": digest}))
        stage.start()
        state = stage.until("serving")
        argv = stage.read_list("argv")
        assert argv[argv.index("--max-num-seqs") + 1] == sequences
        assert (state["changed"], state["flags"]["max_num_seqs"]) == (told, int(sequences))
        stop(stage)


@pytest.mark.slow
def test_what_is_compiled_is_the_runtime_s_own_and_moved_away_where_a_rung_says_so(stage: Stage) -> None:
    runtime, compiled = stage.home / "runtime", stage.home / "cache/chat/compiled"
    old, new = (compilecaches.key(name, (), "builtin:smollm2-135m") for name in ("0.32.0-cpu", "0.33.0-cpu"))
    (compiled / new / "triton").mkdir(parents=True)
    shutil.copytree(runtime, stage.home / "0.33.0-cpu")
    runtime.rename(stage.home / "0.32.0-cpu")
    runtime.symlink_to("0.32.0-cpu")
    serving(stage)
    assert stage.read("environment")["TRITON_CACHE_DIR"] == f"{compiled}/{old}/triton"
    stop(stage)
    rung = {"v": 1, "digest": stage.read("state.json")["digest"], "runtime": "0.33.0-cpu", "gpus": [], "flags": {},
            "env": {}, "caches": "1.000"}  # fmt: skip
    (stage.directory / "rung.json").write_text(json.dumps(rung))
    runtime.unlink()
    runtime.symlink_to("0.33.0-cpu")
    serving(stage)
    assert stage.read("environment")["TRITON_CACHE_DIR"] == f"{compiled}/{new}/triton"
    assert {path.name for path in compiled.iterdir()} == {old, new, f"{new}.broken-1"}
    assert (compiled / f"{new}.broken-1/triton").exists() and not (compiled / new / "triton").exists()
    stop(stage)


def test_what_vllm_says_of_a_silence_is_noted(stage: Stage) -> None:
    stage.configure("log=worker-stopped,exit=0")
    stage.start()
    stage.ended()
    notices = stage.read("state.json")["notices"]
    assert notices["shm-wait"]["count"] == sum("shared memory broadcast" in line for line in stage.output.splitlines())


def test_vllm_gets_its_arguments_and_no_business_of_ours(stage: Stage) -> None:
    stage.configure(vllm="max_num_seqs = 7")
    stage.start()
    stage.until("serving")
    argv = stage.read_list("argv")
    assert argv[argv.index("--max-num-seqs") + 1] == "7"
    assert argv[argv.index("--uds") + 1] == str(stage.directory / "vllm.sock")
    environment = stage.read("environment")
    assert "NOTIFY_SOCKET" not in environment
    assert environment["HOME"] == str(stage.home / "cache/chat")
    assert (stage.directory / "vllm.sock").stat().st_mode & 0o777 == 0o770


def test_lines_go_to_the_journal_with_their_priority(stage: Stage) -> None:
    serving(stage)
    lines = stage.output.splitlines()
    assert "<6>INFO:     Application startup complete." in lines
    assert any(line.startswith("<4>(APIServer pid=") and " WARNING " in line for line in lines)


def test_asked_to_stop(stage: Stage) -> None:
    pids = serving(stage)
    assert stage.process is not None
    stage.process.send_signal(signal.SIGTERM)
    assert stage.ended() == 0
    verdict = stage.read("verdict.json")
    assert (verdict["requested"], verdict["cause"], verdict["phase"]) == (True, None, "serving")
    assert stage.read("state.json")["phase"] == "exited"
    assert any(message.get("STOPPING") == "1" for message in stage.manager.messages)
    nothing_left(stage, pids)


def test_asked_to_stop_while_it_starts(stage: Stage) -> None:
    stage.configure("deaf")
    stage.start()
    stage.until("compiling")
    pids = stage.pids()
    assert stage.process is not None
    stage.process.send_signal(signal.SIGTERM)
    assert stage.ended() == 0
    nothing_left(stage, pids)


@pytest.mark.parametrize("script", ["stubborn", "closing"])
def test_a_stop_has_an_end(stage: Stage, script: str) -> None:
    pids = serving(stage, script, stop=1.0 if script == "stubborn" else LIMIT)
    assert stage.process is not None
    stage.process.send_signal(signal.SIGTERM)
    assert stage.ended() == 0
    nothing_left(stage, pids)


def test_exit_status_0_that_nobody_asked_for_is_a_death(stage: Stage) -> None:
    pids = serving(stage)
    os.kill(pids["api"], signal.SIGUSR1)
    assert stage.ended() == 71
    verdict = stage.read("verdict.json")
    assert (verdict["cause"], verdict["exit_status"], verdict["signal"]) == ("engine-died", 0, None)
    assert verdict["start"] == stage.read("state.json")["start"]
    assert "engine core exited unexpectedly" in "\n".join(verdict["lines"])
    nothing_left(stage, pids)


@pytest.mark.parametrize(("script", "death"), [("", LIMIT), ("stubborn", 0.5)], ids=["when told", "when killed"])
def test_a_dead_engine_whose_main_process_stays_is_ended(stage: Stage, script: str, death: float) -> None:
    pids = serving(stage, script, death=death)
    os.kill(pids["api"], signal.SIGUSR2)
    assert stage.ended() == 71
    assert stage.read("verdict.json")["cause"] == "engine-died"
    nothing_left(stage, pids)


@pytest.mark.parametrize("script", ["", "stubborn"])
def test_orphans_of_a_killed_main_process_go_too(stage: Stage, script: str) -> None:
    pids = serving(stage, script)
    os.kill(pids["api"], signal.SIGKILL)
    assert stage.ended() == 71
    verdict = stage.read("verdict.json")
    assert (verdict["cause"], verdict["exit_status"], verdict["signal"]) == ("engine-died", None, 9)
    nothing_left(stage, pids)


def test_stopped_orphans_are_killed_at_once(stage: Stage) -> None:
    pids = serving(stage, orphan=LIMIT)
    os.kill(pids["core"], signal.SIGSTOP)
    os.kill(pids["worker"], signal.SIGSTOP)
    os.kill(pids["api"], signal.SIGKILL)
    assert stage.ended() == 71
    nothing_left(stage, pids)


@pytest.mark.parametrize(
    ("log", "vllm_exit", "status", "cause"),
    [
        ("unknown-argument", 2, 78, "config-error"),
        ("no-such-model", 1, 78, "model-not-found"),
        ("broken-weights", 1, 78, "model-unreadable"),
        ("kv-too-small", 1, 78, "kv-too-small"),
        ("worker-killed-at-start", 1, 72, "worker-died"),
        ("healthy", 0, 72, "start-failed"),
    ],
)
def test_a_start_that_fails(stage: Stage, log: str, vllm_exit: int, status: int, cause: str) -> None:
    stage.configure(f"log={log},exit={vllm_exit}")
    stage.start()
    assert stage.ended() == status
    verdict = stage.read("verdict.json")
    assert (verdict["cause"], verdict["exit_status"], verdict["requested"]) == (cause, vllm_exit, False)
    assert stage.read("state.json")["message"] == verdict["message"]
    assert not any("READY" in message for message in stage.manager.messages)


def test_a_start_without_end_is_given_up(stage: Stage) -> None:
    stage.configure("deaf")
    stage.start(start=1.5)
    assert stage.ended() == 72
    assert stage.read("verdict.json")["cause"] == "start-timeout"
    nothing_left(stage, stage.pids())


def test_health_is_not_readiness(stage: Stage) -> None:
    stage.configure("status=500")
    stage.start(start=3.0)
    assert stage.ended() == 72
    assert not any("READY" in message for message in stage.manager.messages)


def test_a_model_that_is_not_there_is_told_before_vllm_starts(stage: Stage) -> None:
    stage.configure(keys=f'model = "{stage.home}/nowhere"')
    stage.start()
    assert stage.ended() == 78
    verdict = stage.read("verdict.json")
    assert (verdict["cause"], verdict["exit_status"]) == ("model-not-found", None)
    assert f"{stage.home}/nowhere" in verdict["message"]
    assert not (stage.directory / "argv").exists()


def test_a_runtime_that_is_not_there(stage: Stage) -> None:
    stage.configure()
    (stage.home / "runtime/bin/vllm").unlink()
    stage.start()
    assert stage.ended() == 72
    assert stage.read("verdict.json")["cause"] == "start-failed"


def test_a_broken_configuration_is_not_tried_again(stage: Stage) -> None:
    (stage.home / "config.toml").write_text("[[engine]]\nmodle = 1\n")
    stage.start()
    assert stage.ended() == 78
    assert "modle" in stage.output


def test_an_instance_that_the_configuration_does_not_name(stage: Stage) -> None:
    (stage.home / "config.toml").write_text('[[engine]]\nname = "other"\n')
    stage.start()
    assert stage.ended() == 78
    assert "no engine chat" in stage.output


@pytest.mark.slow
def test_left_overs_of_a_killed_launcher_do_not_hinder_the_next(stage: Stage) -> None:
    pids = serving(stage)
    assert stage.process is not None
    stage.process.kill()
    stage.ended()
    for pid in filter(alive, pids.values()):
        os.kill(pid, signal.SIGKILL)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(stage.directory / "rpc/stale"))
    first = stage.read("state.json")["start"]
    stage.start()
    wait_until(lambda: stage.read("state.json").get("start") != first, LIMIT, "the second start's state", pause=0.02)
    stage.until("serving")
    assert not (stage.directory / "rpc/stale").exists()
