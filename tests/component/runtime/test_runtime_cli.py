"""`llm-appliance runtime` and `models` as processes, with a systemctl that is not systemd's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.fakesystemctl import FakeSystemd
from tests.support.waiting import wait_until

UNIT = "llm-runtime.service"
LIMIT = 30.0


class Machine:
    """State and configuration of one machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "state/runtimes").mkdir(parents=True)
        (root / "run/runtime").mkdir(parents=True)
        self.systemd = FakeSystemd(root, root / "holds")
        (root / "config.toml").write_text('[[engine]]\nname = "chat"\nmodel = "org/x"\n')

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "appliance", *words, "--config", str(self.root / "config.toml")]
        env = {"PATH": os.environ["PATH"], **self.systemd.environment}
        env |= {"LLM_APPLIANCE_STATE": f"{self.root}/state", "LLM_APPLIANCE_RUN": f"{self.root}/run"}
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err

    def runtime(self, name: str, **changes: object) -> None:
        path = self.root / "state/runtimes" / name
        (path / "bin").mkdir(parents=True)
        (path / "bin/python").symlink_to("/bin/sh")
        version, _, device = name.partition("-")
        record = {
            "v": 1,
            "version": version,
            "device": device[:3],
            "python": "3.11",
            "lock": "l",
            "size": 4096,
            **changes,
        }
        (path / ".complete").write_text(json.dumps(record))

    def tell(self, **state: object) -> None:
        (self.root / "run/runtime/state.json").write_text(json.dumps({"v": 1, "models": {}, **state}))

    def model(self, name: str) -> None:
        path = self.root / "state/models" / name
        path.mkdir(parents=True)
        (path / ".complete").write_text("{}")
        (path / "model.safetensors").write_bytes(b"x" * 5000)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def current(machine: Machine) -> str:
    return os.readlink(machine.root / "state/runtimes/current")


@pytest.mark.slow
def test_use_rollback_and_prune(machine: Machine) -> None:
    assert machine.run("runtime", "list")[:2] == (0, "")
    for name in ("0.30.0-cpu", "0.31.0-cpu", "0.32.0-cpu"):
        machine.runtime(name)
        assert machine.run("runtime", "use", name)[0] == 0
    assert current(machine) == "0.32.0-cpu"
    assert machine.run("runtime", "rollback")[0] == 0
    assert current(machine) == "0.31.0-cpu"
    status, out, _ = machine.run("runtime", "list", "--json")
    listed = {one["name"]: one for one in json.loads(out)}
    assert status == 0
    assert [name for name, one in listed.items() if one["current"]] == ["0.31.0-cpu"]
    assert [name for name, one in listed.items() if one["previous"]] == ["0.32.0-cpu"]
    assert [name for name, one in listed.items() if one["chosen"]] == ["0.31.0-cpu"]
    assert machine.run("runtime", "prune")[0] == 0
    assert sorted(path.name for path in (machine.root / "state/runtimes").glob("0.*")) == ["0.31.0-cpu", "0.32.0-cpu"]
    assert machine.run("runtime", "prune", "--all")[0] == 0
    assert [path.name for path in (machine.root / "state/runtimes").glob("0.*")] == ["0.31.0-cpu"]


def test_what_cannot_be_used_is_refused(machine: Machine) -> None:
    machine.runtime("0.32.0-cpu")
    (machine.root / "state/runtimes/0.32.0-cpu/bin/python").unlink()
    status, _, err = machine.run("runtime", "use", "0.32.0-cpu")
    assert (status, "its Python is gone" in err) == (1, True)
    status, _, err = machine.run("runtime", "use", "0.99.0-cpu")
    assert (status, "installed: 0.32.0-cpu" in err) == (2, True)
    assert machine.run("runtime", "rollback")[0] == 1


def follow(machine: Machine, words: Sequence[str]) -> subprocess.Popen[str]:
    """A verb that waits for the unit, once the unit was asked to start."""
    process = machine.start(*words)
    wait_until(lambda: ["start", UNIT] in machine.systemd.calls, LIMIT, "the unit's start", 0.02)
    return process


@pytest.mark.parametrize("words", [("runtime", "install"), ("models", "pull"), ("models", "pull", "org/x")])
def test_the_unit_does_the_work_and_its_words_are_passed_on(machine: Machine, words: tuple[str, ...]) -> None:
    process = follow(machine, words)
    machine.tell(phase="downloading", message="downloading: 47 % (63 of 133 MiB), 2m left")
    assert process.stderr is not None
    assert process.stderr.readline() == "downloading: 47 % (63 of 133 MiB), 2m left\n"
    machine.tell(phase="complete", message="all is in place")
    machine.systemd.set(UNIT, ActiveState="inactive", SubState="dead")
    _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (0, "all is in place\n")
    assert (machine.root / "state/runtimes/install.json").exists() == (words == ("runtime", "install"))


def test_a_unit_that_fails_gives_its_reason(machine: Machine) -> None:
    process = follow(machine, ("models", "pull"))
    machine.tell(phase="failed", message="the index cannot be asked (check the network)")
    machine.systemd.die(UNIT, 1)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "llm-appliance: the index cannot be asked (check the network)" in err


@pytest.mark.parametrize("words", [("models", "pull"), ("runtime", "install")])
def test_a_start_that_systemd_refuses_is_3(machine: Machine, words: tuple[str, ...]) -> None:
    machine.systemd.refuse("start", "Interactive authentication required.")
    status, _, err = machine.run(*words)
    assert (status, "Interactive authentication required" in err, "sudo" in err) == (3, True, True)


def test_a_run_that_was_asked_for_before_is_waited_for(machine: Machine) -> None:
    """A start would join the run that is under way, which knows nothing of the new wish."""
    machine.systemd.set(UNIT, ActiveState="activating", SubState="start")
    process = machine.start("runtime", "install")
    assert process.stderr is not None
    assert "at work already" in process.stderr.readline()
    machine.systemd.set(UNIT, ActiveState="activating", SubState="auto-restart", Result="exit-code")
    wait_until(lambda: ["restart", UNIT] in machine.systemd.calls, LIMIT, "another run", 0.02)
    machine.tell(phase="complete", message="all is in place")
    machine.systemd.set(UNIT, ActiveState="inactive", SubState="dead", Result="success")
    _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (0, "all is in place\n")


def test_models_of_the_machine(machine: Machine) -> None:
    machine.model("huggingface/old/y")
    machine.tell(phase="failed", message="no", models={"org/x": "the hub cannot be reached"})
    status, out, _ = machine.run("models", "list", "--json")
    assert status == 1  # a configured model is not there
    rows = [(row["model"], row["state"], row["engines"]) for row in json.loads(out)]
    assert rows == [("org/x", "the hub cannot be reached", ["chat"]), ("old/y", "not used", [])]
    machine.model("huggingface/org/x")
    status, out, _ = machine.run("models", "list")
    assert (status, [line.split()[0] for line in out.splitlines()]) == (0, ["MODEL", "org/x", "old/y"])


@pytest.mark.slow
def test_a_model_in_use_stays_and_an_unused_one_goes(machine: Machine) -> None:
    machine.model("huggingface/old/y")
    machine.model("huggingface/org/x")
    status, _, err = machine.run("models", "rm", "org/x")
    assert (status, "org/x is used by chat" in err) == (1, True)
    assert machine.run("models", "rm", "../../runtimes")[0] == 1
    assert machine.run("models", "rm", str(machine.root))[0] == 1
    status, _, err = machine.run("models", "rm", "old/y")
    assert (status, "old/y is removed" in err) == (0, True)
    assert not (machine.root / "state/models/huggingface/old/y").exists()
    assert (machine.root / "state/models/huggingface/org/x/.complete").exists()
    assert machine.run("models", "pull", "org/none")[0] == 2


@pytest.mark.parametrize("linked", ["new", "new/y"])
def test_what_a_link_leads_to_is_not_removed(machine: Machine, linked: str) -> None:
    machine.model("huggingface/old/y")
    store = machine.root / "state/models/huggingface"
    (store / "old").rename(machine.root / "disk")
    (store / linked).parent.mkdir(exist_ok=True)
    (store / linked).symlink_to(machine.root / "disk" / linked.removeprefix("new").lstrip("/"))
    status, _, err = machine.run("models", "rm", "new/y")
    assert (status, f"leads by a link to {machine.root}/disk/y" in err) == (1, True)
    assert (machine.root / "disk/y/.complete").exists()


def test_a_model_whose_name_has_one_part_goes_as_a_whole(machine: Machine) -> None:
    machine.model("huggingface/gpt2")
    (machine.root / "state/models/huggingface/gpt2/inner").mkdir()
    _, out, _ = machine.run("models", "list", "--json")
    assert [row["model"] for row in json.loads(out)] == ["org/x", "gpt2"]
    assert machine.run("models", "rm", "gpt2/inner")[0] == 1
    assert machine.run("models", "rm", "gpt2")[0] == 0
    assert not (machine.root / "state/models/huggingface/gpt2").exists()
