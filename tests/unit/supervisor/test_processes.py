from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance import names
from appliance.quantity import UNKNOWN
from appliance.samples import Proc
from appliance.supervisor.processes import Processes

TICK = os.sysconf("SC_CLK_TCK")
GROUP = "/system.slice/llm-engine@chat.service"


class World:
    """A control group and a /proc of files."""

    def __init__(self, directory: Path) -> None:
        self.cgroups, self.proc = directory / "cgroup", directory / "proc"
        self.group = self.cgroups / GROUP.lstrip("/")
        self.group.mkdir(parents=True)
        self.processes = Processes(cgroups=str(self.cgroups), proc=str(self.proc))
        self.has()

    def has(self, **processes: tuple[int, str, float, int]) -> None:
        """name -> pid, state, CPU seconds, ticks of its start."""
        (self.group / "cgroup.procs").write_text("".join(f"{pid}\n" for pid, *_ in processes.values()))
        for name, (pid, state, cpu_s, started) in processes.items():
            (self.proc / str(pid)).mkdir(parents=True, exist_ok=True)
            ticks = int(cpu_s * TICK)
            text = f"{pid} ({name}) {state} 1 0 0 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {started}\n"
            (self.proc / str(pid) / "stat").write_text(text)
            (self.proc / str(pid) / "wchan").write_text("uvm_spin_loop")

    def look(self, t: float) -> list[Proc]:
        return self.processes.look(GROUP, t)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_share_of_a_core_takes_two_looks(world: World) -> None:
    world.has(core=(10, "R", 5.0, 1))
    assert world.look(100.0) == [Proc(t=100.0, pid=10, ppid=1, name="core", state="R", cgroup=GROUP)]
    world.has(core=(10, "R", 7.0, 1), nvcc=(11, "R", 1.0, 2))
    first, second = world.look(102.0)
    assert (first.cpu_pct, second.name, second.cpu_pct) == (100.0, "nvcc", UNKNOWN)


def test_one_that_waits_in_the_kernel_says_where(world: World) -> None:
    world.has(core=(10, "D", 5.0, 1), worker=(11, "S", 5.0, 1))
    assert [each.wchan for each in world.look(1.0)] == ["uvm_spin_loop", ""]


def test_an_end_is_seen_once(world: World) -> None:
    world.has(core=(10, "S", 5.0, 1), worker=(11, "S", 5.0, 1))
    world.look(1.0)
    world.has(core=(10, "S", 5.0, 1))
    kept, gone = world.look(3.0)
    assert (kept.pid, kept.event) == (10, "")
    assert gone == Proc(t=3.0, pid=11, ppid=1, name="worker", cgroup=GROUP, event="exit")
    assert [each.event for each in world.look(5.0)] == [""]


def test_a_pid_that_is_given_again_is_another_process(world: World) -> None:
    world.has(core=(10, "R", 50.0, 1))
    world.look(1.0)
    world.has(other=(10, "R", 1.0, 900))
    new, gone = world.look(3.0)
    assert (new.name, new.cpu_pct, gone.name, gone.event) == ("other", UNKNOWN, "core", "exit")


def test_a_unit_that_stops_ends_all(world: World) -> None:
    world.has(core=(10, "S", 5.0, 1), worker=(11, "S", 5.0, 1))
    world.look(1.0)
    assert [(each.pid, each.event) for each in world.processes.look("", 3.0)] == [(10, "exit"), (11, "exit")]


def test_a_group_that_cannot_be_read_ends_nobody(world: World) -> None:
    world.has(core=(10, "S", 5.0, 1))
    world.look(1.0)
    assert world.processes.look("/system.slice/other.service", 3.0) == []
    assert [(each.pid, each.event) for each in world.look(5.0)] == [(10, "")]


def test_what_only_stands_by_is_none_of_its_processes(world: World) -> None:
    world.has(core=(10, "S", 5.0, 1), **{names.STANDBY_PROCESS: (11, "S", 5.0, 1)})
    assert [each.pid for each in world.look(1.0)] == [10]
    world.has(core=(10, "S", 5.0, 1))
    assert [each.event for each in world.look(2.0)] == [""]
