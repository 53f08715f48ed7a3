"""`llm-appliance apply` as a process, against a supervisor on a stage."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from appliance import names
from tests.support.command import Calling, call
from tests.support.stage import CHAT, EMBED, Stage, unit
from tests.support.webserver import free_ports

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="apply is for root")
LARGER = CHAT + 'memory_max = "8GiB"\n' + EMBED


def elsewhere(port: int, admin: int) -> str:
    """The settings of a gateway on other ports."""
    return f'[gateway]\nlisten = ["127.0.0.1:{port}"]\nadmin_listen = "127.0.0.1:{admin}"\n'


@needs_root
def test_apply_takes_effect_and_is_remembered(stage: Stage) -> None:
    first = call(stage, "apply")
    assert first.returncode == 0, first.stderr
    kept = stage.config.parent / "last-good.toml"
    assert "chat" in kept.read_text()
    stage.write(CHAT + 'memory_max = "8GiB"\n[engine.env]\nHF_TOKEN = "hf_secret"\n' + EMBED)
    before = stage.systemd.calls
    planned = call(stage, "apply", "--dry-run")
    assert planned.returncode == 0
    assert "engine.memory_max of chat: (not set) -> " in planned.stdout
    assert "engine.env.HF_TOKEN of chat: new" in planned.stdout
    assert "engine chat is restarted; its last start took 26s" in planned.stdout
    assert "embed" not in planned.stdout
    assert stage.systemd.calls == before
    applying = Calling(stage, "apply")
    stage.wait_started(2, "chat")
    stage.serve("chat")
    done = applying.result()
    assert done.returncode == 0, done.stderr
    assert "chat: serving" in done.stdout
    assert "hf_secret" not in planned.stdout + done.stdout + stage.journal
    assert stage.starts("embed") == 1
    _, reload, check, engine = (words[1:2] for words in stage.systemd.calls[len(before) :])
    assert [*reload, *check, *engine] == ["llm-gateway.service", "llm-config-check.service", unit()]
    assert "hf_secret" in kept.read_text()


@pytest.mark.slow
@needs_root
def test_a_broken_edit_changes_nothing_and_is_explained(stage: Stage) -> None:
    before = stage.systemd.calls
    stage.config.write_text('[gateway]\nlissen = []\nqueue = 3\n[[engine]]\nname = "Chat"\n')
    done = call(stage, "apply")
    assert done.returncode == 2
    for words in (f"{stage.config}:2", "lissen", "listen", f"{stage.config}:3", f"{stage.config}:5"):
        assert words in done.stderr
    assert stage.systemd.calls == before
    assert not (stage.config.parent / "last-good.toml").exists()


@pytest.mark.slow
@needs_root
def test_apply_tells_of_an_engine_that_does_not_come_back(stage: Stage) -> None:
    stage.write(CHAT + 'memory_max = "8GiB"\n' + EMBED)
    applying = Calling(stage, "apply")
    stage.wait_started(2, "chat")
    stage.die("chat", 78, "config-error", "no such flag")
    done = applying.result()
    assert done.returncode == 1
    assert "no such flag" in done.stderr


@needs_root
@pytest.mark.slow
def test_a_changed_address_restarts_sockets_and_gateway_and_says_so(stage: Stage) -> None:
    assert call(stage, "apply").returncode == 0
    stage.write(elsewhere(*free_ports(2)) + CHAT + EMBED)
    done = call(stage, "apply")
    assert done.returncode == 0, done.stderr
    assert "open connections drop" in done.stdout
    gateway = ["llm-gateway.socket", "llm-gateway-admin.socket", "llm-gateway.service"]
    assert [verb for verb, *units in stage.systemd.calls if units == gateway] == ["stop", "start"]


@pytest.mark.slow
@needs_root
def test_an_address_of_another_program_is_refused_before_anything_is_stopped(stage: Stage) -> None:
    assert call(stage, "apply").returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        stage.write(elsewhere(port, free_ports(1)[0]) + CHAT + EMBED)
        before = stage.systemd.calls
        for words in (["apply", "--dry-run"], ["apply", "--dry-run", "--json"], ["apply"]):
            done = call(stage, *words)
            assert done.returncode == 1
            assert f"127.0.0.1:{port} is taken by" in done.stderr and f"(pid {os.getpid()})" in done.stderr
            assert "change [gateway] listen" in done.stderr
        assert stage.systemd.calls == before
        # What the gateway itself has, it gives up in the same apply.
        stage.systemd.set(names.GATEWAY_UNIT, MainPID=os.getpid())
        assert call(stage, "apply", "--dry-run").returncode == 0


@pytest.mark.slow
@needs_root
def test_a_missing_model_is_fetched_first(still: Stage) -> None:
    """A run that began before the edit is waited for, then there is another one."""
    still.write('[[engine]]\nname = "chat"\nmodel = "builtin:smollm2-135m"\ngpus = []\n')
    still.systemd.set("llm-runtime.service", ActiveState="activating", SubState="start")
    still.start()
    applying = Calling(still, "apply")
    still.runtime(phase="downloading", message="building (40 %)")
    still.wait(
        lambda: "model builtin:smollm2-135m" in still.fleet().get("reason", ""), "the engine waits for its model"
    )
    still.wait(lambda: still.systemd.was_shown("llm-runtime.service"), "apply looks at the runtime")
    assert ["daemon-reload"] not in still.systemd.calls
    still.systemd.set("llm-runtime.service", ActiveState="inactive", SubState="dead")
    still.wait(lambda: ["start", "llm-runtime.service"] in still.systemd.calls, "the runtime is asked for")
    model = still.state / "models/builtin/smollm2-135m"
    model.mkdir(parents=True)
    (model / ".complete").write_text("")
    still.systemd.ready("llm-runtime.service")
    still.systemd.set("llm-runtime.service", ActiveState="inactive", SubState="dead")
    still.wait_started(1, "chat")
    still.serve("chat")
    done = applying.result()
    assert done.returncode == 0, done.stderr
    assert "model builtin:smollm2-135m: not fetched yet" in done.stdout
    assert "building (40 %)" in done.stdout
    assert ["daemon-reload"] in still.systemd.calls


@needs_root
def test_a_model_that_cannot_be_fetched_ends_it_with_nothing_applied(still: Stage) -> None:
    still.write('[[engine]]\nname = "chat"\nmodel = "builtin:smollm2-135m"\ngpus = []\n')
    applying = Calling(still, "apply")
    still.wait(lambda: ["start", "llm-runtime.service"] in still.systemd.calls, "the runtime is asked for")
    still.runtime(phase="failed", message="the index does not answer")
    still.systemd.die("llm-runtime.service", 1)
    done = applying.result()
    assert done.returncode == 1
    assert "the index does not answer" in done.stderr
    assert not (still.config.parent / "last-good.toml").exists()
    assert ["daemon-reload"] not in still.systemd.calls


def test_without_systemd(still: Stage) -> None:
    done = call(still, "apply", LLM_APPLIANCE_SYSTEMCTL="")
    if not Path("/run/systemd/system").is_dir():
        assert done.returncode == 3
        assert "systemd is not running here" in done.stderr
    assert call(still, "apply", "--dry-run", LLM_APPLIANCE_SYSTEMCTL="").returncode == 0


# --- rollback ---------------------------------------------------------------------------------------------------------


def rejected(stage: Stage) -> Path:
    return stage.config.parent / "rejected.json"


@needs_root
@pytest.mark.slow
def test_settings_that_an_engine_does_not_start_with_are_rolled_back(stage: Stage) -> None:
    assert call(stage, "apply").returncode == 0
    good, kept = stage.digest("chat"), stage.config.parent / "last-good.toml"
    before = kept.read_text()
    stage.write(LARGER)
    applying = Calling(stage, "apply")
    stage.wait_started(2, "chat")
    stage.die("chat", 78, "config-error", "no such flag")
    stage.wait_started(3, "chat")
    assert stage.digest("chat") == good
    stage.serve("chat")
    done = applying.result()
    assert done.returncode == 1
    assert "no such flag" in done.stderr
    assert "rolling back to the last good configuration" in done.stdout
    assert "is as you left it and not in force" in done.stdout
    assert stage.fleet("chat")["state"] == "serving"
    assert "8GiB" in stage.config.read_text()
    assert kept.read_text() == before
    shown = call(stage, "config", "show", "--effective")
    assert "8GiB" not in shown.stdout
    checked = call(stage, "check")
    assert checked.returncode == 0
    assert "was rolled back: chat: config-error: no such flag" in checked.stdout
    # Another edit counts again, and so do the same settings when somebody applies them.
    again = Calling(stage, "apply")
    stage.wait_started(4, "chat")
    stage.serve("chat")
    assert again.result().returncode == 0
    assert not rejected(stage).exists()
    assert "8GiB" in kept.read_text()


@needs_root
@pytest.mark.slow
def test_addresses_that_the_gateway_does_not_start_with_are_rolled_back(stage: Stage) -> None:
    """A port that another program took meanwhile: the old addresses come back, and no engine was touched."""
    assert call(stage, "apply").returncode == 0
    kept = stage.config.parent / "last-good.toml"
    before = kept.read_text()
    stage.write(elsewhere(*free_ports(2)) + LARGER)
    stage.systemd.refuse("start", "Job failed.")
    done = call(stage, "apply")
    stage.systemd.refuse("start", "")
    assert done.returncode == 1
    assert "the gateway did not take the configuration over" in done.stderr
    assert "journalctl -n 20 -u llm-gateway.service" in done.stderr
    assert "rolling back to the last good configuration" in done.stdout
    assert rejected(stage).exists()
    assert kept.read_text() == before
    assert stage.starts("chat") == 1


@needs_root
@pytest.mark.slow
def test_a_gateway_that_does_not_come_is_no_success(stage: Stage) -> None:
    stage.systemd.refuse("reload-or-restart", "Job failed.")
    done = call(stage, "apply")
    assert done.returncode == 1
    assert "the gateway did not take the configuration over" in done.stderr


@pytest.mark.slow
@needs_root
def test_the_gateway_reads_the_file_also_where_no_setting_differs(stage: Stage) -> None:
    """It may run with the last good configuration, and say so, since a boot with a broken file or a rollback."""
    for _ in range(2):
        before = len(stage.systemd.calls)
        assert call(stage, "apply").returncode == 0
        assert ["reload-or-restart", "llm-gateway.service"] in stage.systemd.calls[before:]


@needs_root
@pytest.mark.slow
def test_a_new_engine_that_does_not_start_goes_again(stage: Stage) -> None:
    stage.write(CHAT)
    assert call(stage, "apply").returncode == 0
    stage.write(CHAT + EMBED)
    applying = Calling(stage, "apply")
    stage.wait_started(2, "embed")
    stage.die("embed", 78, "model-unreadable", "no such file")
    done = applying.result()
    assert done.returncode == 1
    assert "rolling back" in done.stdout
    assert stage.starts("chat") == 1
    assert rejected(stage).exists()


@needs_root
@pytest.mark.slow
def test_an_engine_that_was_drained_for_it_is_rolled_back_too(stage: Stage) -> None:
    """It served, and gets no calls for the time of the change."""
    assert call(stage, "apply").returncode == 0
    assert call(stage, "drain", "chat").returncode == 0
    stage.write(LARGER)
    applying = Calling(stage, "apply")
    stage.wait_started(2, "chat")
    stage.die("chat", 78, "config-error", "no such flag")
    stage.wait_started(3, "chat")
    stage.serve("chat")
    done = applying.result()
    assert (done.returncode, "rolling back" in done.stdout) == (1, True)
    assert stage.fleet("chat")["state"] == "draining"
    assert "8GiB" not in (stage.config.parent / "last-good.toml").read_text()


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("how", ["asked", "nothing better"])
def test_a_rollback_that_is_not_wanted_or_does_not_help_is_none(stage: Stage, how: str) -> None:
    assert call(stage, "apply").returncode == 0
    options = []
    if how == "asked":
        options = ["--no-rollback"]
    else:
        stage.die("chat", 78, "config-error", "no such flag")
        stage.wait_state("held")
    stage.write(LARGER)
    starts = stage.starts("chat")
    applying = Calling(stage, "apply", *options)
    stage.wait_started(starts + 1, "chat")
    stage.die("chat", 78, "config-error", "no such flag either")
    done = applying.result()
    assert (done.returncode, "rolling back" in done.stdout) == (1, False)
    assert not rejected(stage).exists()
    assert "8GiB" in (stage.config.parent / "last-good.toml").read_text()


@needs_root
def test_an_edit_while_a_model_is_fetched_is_not_applied_unseen(still: Stage) -> None:
    still.write('[[engine]]\nname = "chat"\nmodel = "builtin:smollm2-135m"\ngpus = []\n')
    applying = Calling(still, "apply")
    still.wait(lambda: ["start", "llm-runtime.service"] in still.systemd.calls, "the runtime is asked for")
    still.write('[[engine]]\nname = "chat"\nmodel = "builtin:smollm2-135m"\ngpus = []\nreplicas = 2\n')
    still.systemd.ready("llm-runtime.service")
    still.runtime(phase="complete", message="done")
    still.systemd.set("llm-runtime.service", ActiveState="inactive", SubState="dead")
    done = applying.result()
    assert done.returncode == 1
    assert "edited meanwhile" in done.stderr
    assert ["daemon-reload"] not in still.systemd.calls


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_root
def test_a_plan_for_programs_and_the_text_of_units(stage: Stage) -> None:
    assert call(stage, "apply").returncode == 0
    stage.write(CHAT + 'memory_max = "8GiB"\n[engine.env]\nHF_TOKEN = "hf_secret"\n' + EMBED)
    before = stage.systemd.calls
    done = call(stage, "apply", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [change["key"] for change in plan["changes"]] == ["engine.memory_max", "engine.env.HF_TOKEN"]
    assert {change["effect"] for change in plan["changes"]} == {"restart"}
    assert list(plan["engines"]) == ["chat"]
    shown = call(stage, "apply", "--dry-run", "--units")
    assert "+MemoryMax=8589934592" in shown.stdout
    assert "hf_secret" not in done.stdout + shown.stdout
    assert call(stage, "apply", "--json").returncode == 2
    assert stage.systemd.calls == before
