"""install.sh's decisions: where to, what is in the way, what it says that it would do."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import wheels
from box.hostside import busy_ports, missing_packages, systemd_runs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_taken_port_is_named_with_its_owner(taken: int) -> None:
    ((port, owner),) = busy_ports([taken])
    assert port == taken
    assert f"(pid {os.getpid()})" in owner


def test_a_free_port_is_not_named(taken: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert busy_ports([free]) == []


def test_systemd_as_pid_1_is_told_by_its_directory(tmp_path: Path) -> None:
    assert not systemd_runs(str(tmp_path))
    (tmp_path / "systemd/system").mkdir(parents=True)
    assert systemd_runs(str(tmp_path))


def test_missing_packages() -> None:
    assert missing_packages(["dpkg", "no-such-package-anywhere"]) == ["no-such-package-anywhere"]


@pytest.mark.skipif(systemd_runs(), reason="the words for a host with systemd differ")
def test_dry_run_names_the_steps_and_does_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "LLM_APPLIANCE_CACHE": str(tmp_path)}
    done = subprocess.run(
        [ROOT / "install.sh", "--dry-run"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "into a box" in done.stdout
    assert "apt install ./llm-appliance.deb" in done.stdout
    assert not list(tmp_path.glob("*/*"))


def test_an_unknown_option_is_refused() -> None:
    done = subprocess.run([ROOT / "install.sh", "--frobnicate"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 2


def test_only_wheels_that_the_locks_name_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, version = sorted(wheels.pinned())[0]
    for wheel in (f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "other-1-py3-none-any.whl"):
        (tmp_path / wheel).write_text("")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("LLM_APPLIANCE_CACHE", str(tmp_path / "cache"))
    offered = [wheel.name for wheel in wheels.present() if wheel.parent == tmp_path]
    assert offered == [f"{name.replace('-', '_')}-{version}-py3-none-any.whl"]
