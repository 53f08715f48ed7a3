"""The command line as a process, against a supervisor on a stage and a gateway that only tells its status."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Calling, call
from tests.support.stage import CHAT, EMBED, LIMIT, ROOT, Stage, unit
from tests.support.toldstatus import Gateway, replica, told

# --- orders -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_hold_resume_restart(stage: Stage) -> None:
    held = call(stage, "hold", "chat", "--reason", "new fans")
    assert (held.returncode, held.stdout.splitlines()[-1]) == (0, "chat: stopped")
    refused = call(stage, "restart", "chat")
    assert refused.returncode == 1 and "new fans" in refused.stderr
    assert "llm-appliance resume chat" in refused.stderr
    resumed = Calling(stage, "resume", "chat", "--wait")
    stage.wait_started(2, "chat")
    stage.serve("chat")
    assert resumed.result().returncode == 0
    assert "chat: serving" in resumed.result().stdout
    assert call(stage, "restart", "embed").returncode == 0
    stage.wait_started(2, "embed")
    unknown = call(stage, "restart", "chta")
    assert (unknown.returncode, "chat, embed" in unknown.stderr) == (2, True)


@pytest.mark.slow
def test_drain_and_undrain(stage: Stage) -> None:
    """No new calls for it, also for another run; it is not touched otherwise."""
    drained = call(stage, "drain", "chat", "--reason", "new fans")
    assert (drained.returncode, drained.stdout) == (0, "chat: gets no new calls\n")
    told = stage.wait_state("draining")
    assert (told["reason"], told["next"]) == ("new fans", "llm-appliance undrain chat")
    assert call(stage, "restart", "chat").returncode == 0
    stage.wait_started(2, "chat")
    stage.serve("chat")
    assert stage.wait_state("draining")["reason"] == "new fans"
    assert stage.starts("chat") == 2
    taken_back = call(stage, "undrain", "chat")
    assert (taken_back.returncode, taken_back.stdout) == (0, "chat: takes calls again\n")
    stage.wait_state("serving")
    assert call(stage, "drain", "chta").returncode == 2


@pytest.mark.parametrize(
    "words", [("hold", "chat"), ("drain", "chat"), ("resume", "chat"), ("restart", "chat", "--wait")]
)
def test_without_a_supervisor(still: Stage, words: tuple[str, ...]) -> None:
    done = call(still, *words)
    assert done.returncode == 3
    assert "the supervisor does not answer" in done.stderr
    assert "llm-supervisor" in done.stderr


# --- status -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "status", "words"),
    [
        (
            told(replica("chat", "serving")),
            0,
            ["vLLM 0.32.0 (cpu)", "3 running, 1 queued, 41 tok/s", "1/64", "smollm2"],
        ),
        (
            told(replica("chat", "starting", reason="loading weights", load_s=26.0)),
            0,
            ["chat: loading weights; the last start took 26s"],
        ),
        (
            told(replica("chat", "held", cause="config-error", reason="bad flag", next="llm-appliance resume chat")),
            1,
            ["chat: config-error: bad flag", "next: llm-appliance resume chat"],
        ),
        (told(replica("chat", "serving"), replica("embed", "failed")), 1, ["embed", "failed"]),
        (told(replica("chat", "restarting", cause="worker-died", reason="gone")), 0, ["worker-died: gone"]),
        (told(replica("chat", "waiting"), runtime={"phase": "failed", "message": "no network"}), 1, ["no network"]),
        (
            told(keys={"required": True, "count": 0, "hint": "sudo llm-appliance keys create NAME"}),
            0,
            ["sudo llm-appliance keys create NAME", "no engine is configured"],
        ),
        (
            told(config={"valid": False, "origin": "last-good", "problems": []}),
            0,
            ["the last good one is in force", "llm-appliance check"],
        ),
        (told(state="invalid"), 1, ["invalid"]),
    ],
)
def test_status(still: Stage, gateway: Gateway, value: dict[str, Any], status: int, words: list[str]) -> None:
    gateway.body = json.dumps(value).encode()
    done = call(still, "status")
    assert done.returncode == status, done.stderr
    for word in words:
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    as_json = call(still, "status", "--json")
    assert (as_json.returncode, json.loads(as_json.stdout)) == (status, value)


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b'{"engines": 3}', b"\xff"])
def test_another_program_on_the_gateways_port_is_named(still: Stage, gateway: Gateway, body: bytes) -> None:
    gateway.body = body
    done = call(still, "status")
    assert done.returncode == 3
    assert "another program listens there" in done.stderr


@pytest.mark.slow
def test_status_without_a_gateway_tells_what_the_files_say(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # a port that nobody answers at, whatever else runs here
        stage.write(f'[gateway]\nadmin_listen = "127.0.0.1:{taken.getsockname()[1]}"\n' + CHAT + EMBED)
    done = call(stage, "status")
    assert done.returncode == 3
    assert "unreachable" in done.stdout.splitlines()[0]
    assert [line.split()[:2] for line in done.stdout.splitlines() if line.startswith(("chat", "embed"))] == [
        ["chat", "serving"],
        ["embed", "serving"],
    ]
    assert "systemctl status llm-gateway" in done.stderr
    assert json.loads(call(stage, "status", "--json").stdout)["state"] == "unreachable"


@pytest.mark.slow
def test_an_edit_is_told_until_it_is_applied(stage: Stage) -> None:
    """By the supervisor, which knows what runs; `status` is shown it without a gateway, too."""

    def drift() -> list[dict[str, Any]]:
        told = json.loads((stage.run / "supervisor/fleet.json").read_text())["drift"]
        return [one for one in told if one["kind"] != "unit"]

    before = stage.config.read_text()
    assert drift() == []
    stage.config.write_text(before.replace("budget = 3", "budget = 4"))
    assert stage.wait(drift, "the edit is told")[0]["settings"] == ["supervisor.restart.budget"]
    assert "1 setting is edited and not applied: supervisor.restart.budget:" in call(stage, "status").stdout
    stage.config.write_text("[nonsense]\n")
    stage.wait(lambda: drift()[0]["kind"] == "invalid", "the file is invalid")
    stage.config.write_text(before)
    stage.wait(lambda: not drift(), "nothing differs")
    stage.serve("chat", digest="another")
    assert stage.wait(drift, "the engine is told")[0]["engine"] == "chat"


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_logs_become_journalctl(still: Stage, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/journalctl"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"

    def arguments(*words: str) -> list[str]:
        return call(still, "logs", *words, PATH=path).stdout.split()

    assert arguments() == ["--unit=llm-*", "--lines=200"]
    assert arguments("chat", "-f", "-n", "5") == [f"--unit={unit()}", "--follow", "--lines=5"]
    assert arguments("chat", "--", "--since", "today") == [f"--unit={unit()}", "--since", "today"]
    explained = ["--catalog", "--lines=200", "--output=cat"]
    assert arguments("chat", "-x", "--", "--output=cat") == [f"--unit={unit()}", *explained]
    assert arguments("--", "--since", "today") == ["--unit=llm-*", "--since", "today"]
    wrong = call(still, "logs", "chta", PATH=path)
    assert wrong.returncode == 2
    assert "the configuration has: chat" in wrong.stderr


@pytest.mark.parametrize(
    "words", [("check",), *(pytest.param(words, marks=pytest.mark.slow) for words in (("apply",), ("hold", "chat"))),
              ("status",), pytest.param(("logs", "chat"), marks=pytest.mark.slow)]
)  # fmt: skip
def test_garbage_in_the_file_is_no_traceback(still: Stage, words: tuple[str, ...]) -> None:
    for garbage in (b"\xff\xfe\x00\x01", b"[[[[", b"x" * 5000, b"[[engine]]\nname = 3\n"):
        still.config.write_bytes(garbage)
        done = call(still, *words, PATH="/nowhere")
        assert done.returncode in (1, 2, 3)
        assert done.stderr or done.stdout


def test_a_closed_pipe_is_no_error(still: Stage) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "appliance", "--help"],
        env=still.environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(LIMIT) == 0


@pytest.mark.parametrize("words", [("incidents",), ("incidents", "20261129"), ("report",)])
def test_incidents_are_for_root_and_the_group(still: Stage, tmp_path: Path, words: tuple[str, ...]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    closed = tmp_path / "state"
    (closed / "incidents").mkdir(parents=True)
    (closed / "incidents").chmod(0o750)
    for directory in (tmp_path, *tmp_path.parents[:3]):
        directory.chmod(0o755)
    program = (
        "import os, sys; from appliance.cli import incidents, main, report; os.setgroups([]); "  # while it may read
    )
    program += f"os.setresgid(9, 9, 9); os.setresuid(12345, 12345, 12345); sys.exit(main.main({list(words)!r}))"
    environment = {**still.environment, "LLM_APPLIANCE_STATE": str(closed)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT * 2
    )
    assert done.returncode == 3, done.stderr
    assert "only root and the group llm-appliance may read" in done.stderr and "sudo" in done.stderr


def test_no_incident_is_no_error_and_an_unknown_one_is(still: Stage) -> None:
    assert call(still, "incidents").stdout == "there is no incident\n"
    assert json.loads(call(still, "incidents", "--json").stdout) == {"incidents": []}
    unknown = call(still, "incidents", "20261129")
    assert unknown.returncode == 2 and "there is no incident '20261129'" in unknown.stderr
    assert call(still, "report", "--output", "/nowhere/x").returncode == 1


# --- plan -------------------------------------------------------------------------------------------------------------


def test_plan_for_cards_that_are_not_here(still: Stage, tmp_path: Path) -> None:
    model = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8,
             "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 2048, "intermediate_size": 128,
             "torch_dtype": "bfloat16"}  # fmt: skip
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(model))
    done = call(still, "plan", "--model", str(tmp_path / "model"), "--gpus", "2x L4")
    assert (done.returncode, done.stderr) == (0, "")
    assert "fits on 1x L4 of 2" in done.stdout and "a count of parameters" in done.stdout
    there = call(still, "plan", "--model", str(tmp_path / "none"), "--gpus", "L4")
    assert (there.returncode, "config.json" in there.stderr) == (3, True)
