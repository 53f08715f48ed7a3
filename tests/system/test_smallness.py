"""What the control plane costs an installed machine: its starts, its memory, its idle time.

Limits of processor time hold on a machine that is busy with something else; of wall time the best of a few tries
counts, since what else runs there can only lengthen one.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.machine import Appliance

pytestmark = pytest.mark.vllm

GATEWAY, SUPERVISOR, ENGINE = "llm-gateway.service", "llm-supervisor.service", "llm-engine@default.service"
GENERATOR = "/usr/lib/systemd/system-generators/llm-appliance-generator"
LAUNCHER = "llm-appliance"  # the name of its process, beside vLLM's in the engine's unit
CODE = ("/usr/lib/llm-appliance", "/usr/lib/python3.11")
TRIES = 4
IDLE_S = 20.0


def forget_files(appliance: Appliance) -> None:
    """The next start reads the code from the disk; what other processes have mapped stays."""
    for directory in CODE:
        for path in appliance.box.path(directory).rglob("*"):
            if path.is_file():
                drop(path)


def drop(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def costs(appliance: Appliance, command: str) -> tuple[float, float]:
    """Wall and processor seconds of a command in the box."""
    timed = f"TIMEFORMAT='%R %U %S'; time {{ {command}; }} >/dev/null 2>/dev/null"
    wall, user, system = appliance.box.sh(timed).out.split()[-3:]
    return float(wall), float(user) + float(system)


def test_the_gateway_is_ready_within_a_second(appliance: Appliance) -> None:
    """Also when its code has to be read from the disk: from `systemctl start` to an answer of /readyz."""
    walls = []
    for _ in range(TRIES):
        appliance.box.sh(f"systemctl stop {GATEWAY} 2>/dev/null")
        forget_files(appliance)
        wall, _ = costs(appliance, f"systemctl start {GATEWAY}; curl -s http://127.0.0.1:8080/readyz")
        walls.append(wall)
        used = int(appliance.show(GATEWAY, "CPUUsageNSec")["CPUUsageNSec"]) / 1e9
        assert used < 0.8, f"{used:.2f} s of processor time"
    print(f"gateway: {walls}")
    assert min(walls) < 1.0, walls


@pytest.mark.parametrize(
    ("command", "limit"), [(f"{GENERATOR} /tmp/g /tmp/g /tmp/g", 0.15), ("llm-appliance status", 0.3)]
)
def test_a_command_is_quick(appliance: Appliance, command: str, limit: float) -> None:
    clean = "rm -rf /tmp/g; mkdir /tmp/g; "
    measured = [costs(appliance, command) for _ in range(TRIES) if appliance.box.sh(clean)]
    print(f"{command}: {measured}")
    assert min(wall for wall, _ in measured) < limit, measured
    assert min(used for _, used in measured) < limit, measured


def test_the_control_plane_is_small_and_idles(appliance: Appliance) -> None:
    """Gateway, supervisor with its helpers, and the launcher of an engine that serves: under 120 MB together."""
    members = {unit: appliance.processes(unit) for unit in (GATEWAY, SUPERVISOR)}
    members[ENGINE] = {LAUNCHER: appliance.processes(ENGINE)[LAUNCHER]}
    pids = [pid for processes in members.values() for pid in processes.values()]
    assert len(pids) >= 4, members  # the supervisor's journalctl is one

    def summed(field: str) -> float:
        told = [appliance.box.read(f"/proc/{pid}/smaps_rollup") for pid in pids]
        return sum(float(text.partition(f"\n{field}:")[2].split()[0]) for text in told) / 1024

    def used() -> float:
        return sum(int(appliance.box.read(f"/proc/{pid}/schedstat").split()[0]) for pid in threads()) / 1e9

    def threads() -> list[str]:
        return [f"{pid}/task/{task.name}" for pid in pids for task in appliance.box.path(f"/proc/{pid}/task").iterdir()]

    print(f"control plane: PSS {summed('Pss'):.0f} MiB, RSS {summed('Rss'):.0f} MiB")
    assert summed("Pss") < 120
    before = used()
    time.sleep(IDLE_S)  # what is looked for is that nothing happens
    share = (used() - before) / IDLE_S
    print(f"control plane: {share:.2%} of one core")
    assert share < 0.01
