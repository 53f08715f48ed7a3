from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.host.proc import Process, open_files_limit, parse_stat, read_process, unit_processes
from appliance.quantity import UNKNOWN

TICK = os.sysconf("SC_CLK_TCK")
GROUP = "/system.slice/system-llm\\x2dengine.slice/llm-engine@chat.service"


def stat(pid: int, comm: str, state: str = "S", user: int = 0, system: int = 0, parent: int = 1) -> str:
    return f"{pid} ({comm}) {state} {parent} 0 0 0 -1 4194560 0 0 0 0 {user} {system} 0 0 20 0 1 0 100\n"


@pytest.mark.parametrize(
    ("text", "process"),
    [
        (stat(7, "python3", "R", TICK, 2 * TICK), Process(7, 1, "python3", "R", 3.0)),
        (stat(8, "VLLM::EngineCor"), Process(8, 1, "VLLM::EngineCor", "S", 0.0)),
        (stat(9, "a) R (b) c", "Z", parent=4), Process(9, 4, "a) R (b) c", "Z", 0.0)),
        ("", None),
        ("7 (python3) S", None),
        ("x (python3) " + stat(1, "")[5:], None),
    ],
)
def test_stat(text: str, process: Process | None) -> None:
    assert parse_stat(text) == process


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    cgroups, proc = tmp_path / "cgroup", tmp_path / "proc"
    for pid, comm in ((10, "launcher"), (11, "vllm"), (12, "worker")):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "stat").write_text(stat(pid, comm))
    cgroups.mkdir()
    return cgroups, proc


@pytest.mark.parametrize("tree", ["", "unified", "systemd"])
def test_the_group_is_found_in_every_hierarchy(roots: tuple[Path, Path], tree: str) -> None:
    cgroups, proc = roots
    group = cgroups / tree / GROUP.lstrip("/")
    (group / "below").mkdir(parents=True)
    (group / "cgroup.procs").write_text("11\n10\n99\n")  # 99 ended meanwhile
    (group / "below/cgroup.procs").write_text("12\n")
    (group / "empty").mkdir()
    found = unit_processes(GROUP, cgroups=str(cgroups), proc=str(proc))
    assert found is not UNKNOWN
    assert [process.comm for process in found] == ["launcher", "vllm", "worker"]


def test_no_group_is_no_process_and_no_answer_is_unknown(roots: tuple[Path, Path]) -> None:
    cgroups, proc = roots
    assert unit_processes("", cgroups=str(cgroups), proc=str(proc)) == ()
    assert unit_processes(GROUP, cgroups=str(cgroups), proc=str(proc)) is UNKNOWN


def test_this_process_is_real() -> None:
    found = read_process(os.getpid())
    assert found is not None
    assert (found.pid, found.parent, found.state) == (os.getpid(), os.getppid(), "R")
    assert read_process(2**30) is None


@pytest.mark.parametrize(
    ("text", "limit"),
    [("Max open files            1024                 524288               files\n", 1024),
     ("Max open files            unlimited            unlimited            files\n", UNKNOWN), ("", UNKNOWN)],
)  # fmt: skip
def test_the_limit_of_open_files(tmp_path: Path, text: str, limit: object) -> None:
    assert open_files_limit(str(tmp_path)) is UNKNOWN
    (tmp_path / "self").mkdir()
    (tmp_path / "self/limits").write_text("Limit   Soft Limit   Hard Limit   Units\n" + text)
    assert open_files_limit(str(tmp_path)) == limit
