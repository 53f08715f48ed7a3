"""What guides and real failures ask a host to be looked at for, and the check that does it; a hole shows here.

`SEEN_ELSEWHERE` stands for what no look at a machine can tell, with who tells it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.policy.checkup.table import CHECKS

ROOT = Path(__file__).resolve().parents[3]
NAMES = {check.name for check in CHECKS} | {"config", "keys"}


@dataclass(frozen=True)
class Elsewhere:
    """Who tells it, and the module that does."""

    reason: str
    module: str


# Troubleshooting sections of guides on running vLLM, in the order in which they come up.
GUIDES: dict[str, tuple[str, ...] | Elsewhere] = {
    "out of memory at the start": ("gpu-users", "engines"),
    "out of memory under long prompts": Elsewhere("the ladder changes a setting after it", "policy/ladder.py"),
    "0.95 and more of the GPU's memory": ("config",),
    "/dev/shm of 64 MB": ("shm",),
    "fork and CUDA": ("nccl",),
    "NCCL waits for InfiniBand": ("nccl",),
    "P2P, topology, NUMA": ("topology", "acs"),
    "x16 and x4 slots": ("pcie",),
    "memory faults of CUDA graphs on consumer cards": Elsewhere("causes cuda-fault; the ladder", "policy/ladder.py"),
    "exit -9": ("memory", "memory-max"),
    "max_model_len larger than needed": Elsewhere("`plan` tells what each length costs", "policy/fitting.py"),
    "neighbours starved on a shared GPU": ("gpu-users", "config"),
    "an answer arrives in one lump": ("proxy",),
    "TIME_WAIT exhaustion": ("connections",),
    "a blocked event loop": ("gateway",),
    "log I/O stalls": ("disk-stalls",),
    "abandoned streams burn the GPU": Elsewhere("the gateway aborts them at once", "gateway/exchange.py"),
    "gateway timeouts shorter than prefill": ("timeouts",),
    "a client without keep-alive": ("connections",),
    "an engine's port exposed": ("exposure",),
}
# Failures that only a change of the host mends, by their number in the catalogue of failures.
HOST_FAILURES: dict[str, tuple[str, ...] | Elsewhere] = {
    "S12 compiler or Python.h missing": ("toolchain",),
    "S15 home and caches of a system user": ("users", "disk"),
    "S18 port already in use": ("ports",),
    "S20 disk full": ("disk",),
    "F20 slow decay by heat or power": ("gpu-clocks",),
    "G07 fallen off the bus": ("gpu", "ecc"),
    "G08 the driver's processor does not answer": ("driver",),
    "G09 memory errors": ("ecc",),
    "G12 driver and library differ": ("driver", "upgrades"),
    "G13 driver too old": ("driver",),
    "G14 fabric manager": ("fabric",),
    "G15 device nodes, nvidia-uvm": ("device-nodes", "uvm", "persistence"),
    "G16 NVML blocks": ("driver",),
    "G17 memory in use without a process": ("gpu-users",),
    "G18 unkillable process": ("stuck",),
    "G19 heat and power": ("gpu-clocks",),
    "H01 a unit's memory limit": ("memory-max",),
    "H02 the host's memory": ("memory", "swap"),
    "H04 /dev/shm too small": ("shm",),
    "H05 leftovers in /dev/shm": ("shm",),
    "H06 RemoveIPC": ("users",),
    "H11 hardened units": ("overrides",),
    "H12 file descriptors": ("limits",),
    "H13 KillMode": ("overrides",),
    "H14 lines that the journal drops": ("overrides", "journal"),
    "H15 DeviceAllow and daemon-reload": ("overrides",),
    "H16 stop time": ("overrides",),
    "H18 no module for the kernel": ("driver",),
    "S08 hub out of reach": ("hub",),
    "C16 GPUs that are not here": ("placement",),
}
ASKED = {**GUIDES, **HOST_FAILURES}


@pytest.mark.parametrize("what", ASKED)
def test_each_is_looked_for(what: str) -> None:
    answer = ASKED[what]
    if isinstance(answer, Elsewhere):
        assert answer.reason and (ROOT / "appliance" / answer.module).exists()
    else:
        assert answer and set(answer) <= NAMES, what


def test_no_name_twice() -> None:
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names)) and max(map(len, names)) <= 12  # the column of names
