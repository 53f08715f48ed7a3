"""What is forked from a standby is what a spawned process is: parents, statuses, environment, descriptors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance import names
from tests.support.standbystage import ROOT, made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made(tmp_path)
    return tmp_path


def played(home: Path, scenario: str, modules: str = "heavy,fakefamily,not.there", *words: str) -> dict[str, Any]:
    """What a launcher saw in a scenario."""
    argv = [sys.executable, "-m", "tests.support.standbystage", scenario, str(home), modules, *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    output = home / "output"
    assert done.returncode == 0, done.stderr + (output.read_text() if output.exists() else "")
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def test_three_generations_are_forked_and_are_real_children(home: Path) -> None:
    seen = played(home, "family")
    told = seen["told"]
    main, core, worker = told["main"], told["core"], told["worker 3"]
    assert (seen["imports at start"], seen["imports"]) == (1, 1)
    assert (main["pid"], main["parent"], core["parent"], worker["parent"]) == (
        seen["pid"], seen["launcher"], main["pid"], core["pid"])  # fmt: skip
    assert (seen["ended"], told["status"], told["status 3"], told["status wait"]) == (5, 7, 3, -9)
    assert told["zombies"] == 0
    # As `vllm` started as a program.
    assert main["session"] == main["pid"] == core["session"] == worker["session"]
    assert (main["comm"], main["main"], main["argv"]) == ("vllm", f"{home}/bin/vllm", [f"{home}/bin/vllm", "family"])
    assert main["path"] == worker["path"] == f"{home}/bin"
    assert (core["name"], worker["name"], worker["threads"]) == ("Core", "Worker", 1)


def test_a_child_gets_environment_and_limits_of_the_moment_and_no_descriptor(home: Path) -> None:
    told = played(home, "family")["told"]
    main, core, worker = told["main"], told["core"], told["worker 3"]
    assert core["env"] | {"OMP_NUM_THREADS": "1", "GOMP_CPU_AFFINITY": worker["env"]["GOMP_CPU_AFFINITY"]} == (
        worker["env"])  # fmt: skip
    assert core["env"]["SAID"] == worker["env"]["SAID"] == "at the moment"
    assert (worker["cores"], core["cores"]) == ([min(core["cores"])], main["cores"])
    assert main["files"] == core["files"] == worker["files"]
    assert main["umask"] == worker["umask"]
    assert main["marked"] == 1 and core["marked"] == worker["marked"] == 0
    assert core["sockets"] == worker["sockets"] == 1  # to its own twin


@pytest.mark.parametrize(("name", "value"), [("MALLOC_ARENA_MAX", "2"), ("GOMP_CPU_AFFINITY", "0 1")])
def test_what_a_fork_cannot_honour_is_spawned(home: Path, name: str, value: str) -> None:
    seen = played(home, "family", "heavy,fakefamily", f"{name}={value}")
    assert seen["told"]["core"]["env"][name] == value
    assert (seen["ended"], seen["told"]["status"], seen["told"]["status 3"]) == (5, 7, 3)
    assert seen["imports"] == 4  # the standby, and of the three children each for itself
    assert f"Core imports its modules itself: {name} was set" in (home / "output").read_text()


def test_one_place_for_all_threads_is_honoured(home: Path) -> None:
    seen = played(home, "family", "heavy,fakefamily", "OMP_PLACES={0}", "OMP_PROC_BIND=true")
    assert (seen["imports"], seen["told"]["core"]["cores"]) == (1, [0])


def test_a_killed_main_process_leaves_nothing_and_another_is_forked(home: Path) -> None:
    assert played(home, "killed") == {
        "status": -9, "worker": True, "left": [], "alive": True, "other": True, "imports": 1,
    }  # fmt: skip


def test_vllm_goes_on_without_its_standby(home: Path) -> None:
    assert played(home, "orphaned") == {"another": True, "pid": 0, "imports": 1, "fault": "it died"}


def test_it_ends_when_it_is_closed_and_with_its_launcher(home: Path) -> None:
    seen = played(home, "closed")
    assert (seen["gone"], seen["main"]) == (True, True)
    assert seen["left"].count(names.STANDBY_PROCESS) == 2  # the twins of the main process and of its worker


@pytest.mark.parametrize(
    ("module", "fault"),
    [
        ("threaded", "modules started threads: MainThread, mine"),
        ("natively", "modules started 1 threads that do not end before a fork"),
        ("torch", "modules initialised CUDA"),
        ("tracked", "modules started multiprocessing's resource tracker"),
        ("leaves", "SystemExit: 0"),
        ("killed", "it died before it was ready"),
        ("late", "it was not ready within 1 s"),
    ],
)
def test_what_is_not_fit_says_why(home: Path, module: str, fault: str) -> None:
    seen = played(home, "fit", f"heavy,{module}")
    assert (seen["fault"], seen["pid"]) == (fault, 0)
    assert seen["took"] < 10


def test_the_first_module_must_be_there_and_others_may_fail(home: Path) -> None:
    assert played(home, "fit", "broken")["fault"] == "ImportError: no such thing"
    assert played(home, "fit", "heavy,fakefamily,broken")["fault"] == ""
