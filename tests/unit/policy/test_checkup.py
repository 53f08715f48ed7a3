"""Each check by what it is told: a table of facts and verdicts, with what must be said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.config.model import Config, Engine, Gateway, Runtime, Stream, Timeouts
from appliance.gpufacts import Bridge, Bus, GpuProcess, Infiniband, PciGpu, SmiGpu, Topology
from appliance.hostfacts import (
    HostFacts,
    NotKnown,
    Packages,
    Placed,
    Toolchain,
)
from appliance.hostfacts import Runtime as RuntimeFact
from appliance.policy.checkup.table import CHECKS
from appliance.policy.finding import Verdict
from appliance.quantity import UNKNOWN
from tests.support.checkups import (
    BOX,
    BY_NAME,
    DARK,
    DRIVER,
    FAIL,
    OK,
    ON_ONE,
    SKIPPED,
    SMI,
    WARN,
    card,
    expect,
    findings,
    told,
)

LATE = NotKnown("nvidia-smi did not end within 6 s", late=True, state="D")
GPU_CHECKS = [check.name for check in CHECKS if check.group == "GPUs"]


def test_a_box_as_it_should_be_finds_nothing() -> None:
    for name in GPU_CHECKS:
        assert {one.verdict for one in findings(name, BOX)} <= {OK, SKIPPED}, name


def test_without_a_gpu_one_line_says_so() -> None:
    none = replace(BOX, bus=Bus(), driver=replace(DRIVER, loaded=""), smi=NotKnown("x"), placed=(),
                   runtime=RuntimeFact(name="0.32.0-cpu", device="cpu", complete=True, usable=True))  # fmt: skip
    every = [one for name in GPU_CHECKS for one in findings(name, none)]
    assert [(one.name, one.verdict) for one in every] == [("gpu", SKIPPED)]
    assert "no NVIDIA device on the PCI bus" in every[0].evidence
    expect("gpu", none, FAIL, "CUDA", config=Config(runtime=Runtime(device="cuda")))
    expect("placement", none, FAIL, "name GPUs", config=Config(engines=(Engine(gpus=(0,)),)))


def test_what_nobody_could_look_at_is_unknown_and_never_good() -> None:
    """Every check, told nothing at all."""
    for name, check in BY_NAME.items():
        said = list(check.findings(HostFacts(systemd=True, installed=True), Config()))
        assert name in ("timeouts", "nccl") or OK not in {one.verdict for one in said}, (name, said)


def driver(**changes: object) -> HostFacts:
    return replace(BOX, driver=replace(DRIVER, **changes))


def smi(*gpus: SmiGpu, **changes: object) -> HostFacts:
    return replace(BOX, smi=replace(SMI, gpus=gpus or SMI.gpus, **changes))


def bus(*gpus: PciGpu, switches: int = 0, **changes: object) -> HostFacts:
    return replace(BOX, bus=Bus(gpus=gpus or (card(0), card(1)), switches=switches), **changes)


ACS_ON, DMA = (Bridge(address="0000:00:03.1", acs=0x1D),), "DMA-FQ"
FOREIGN = GpuProcess(pid=9, name="python3", user="eve", mib=20480.0)
OURS = GpuProcess(pid=8, name="VLLM::EngineCor", user="llm-engine", unit="llm-engine@chat-2.service")


@pytest.mark.parametrize(
    ("name", "facts", "verdict", "words"),
    [
        ("gpu", replace(BOX, smi=replace(SMI, gpus=(told(0),))), FAIL, ("missing: 0000:02:00.0", "Xid")),
        ("gpu", bus(card(0, bound="nouveau"), card(1, bound="nouveau"), smi=NotKnown("x"), driver=NotKnown("y")), None,
         ("nouveau",)),
        ("driver", driver(loaded="", on_disk=""), FAIL, ("no NVIDIA module for the running kernel 6.1", "dkms")),
        ("driver", driver(loaded=""), FAIL, ("580.95.05 is not loaded", "modprobe nvidia")),
        ("driver", driver(loaded="", modules=frozenset({"nouveau"})), FAIL, ("nouveau",)),
        ("driver", driver(libraries={"libcuda.so.1": "590.44.01"}), FAIL, ("libcuda.so.1 590.44.01", "reboot")),
        ("driver", smi(error="Failed to initialize NVML: Driver/library version mismatch", code=18), FAIL, ("reboot",)),
        ("driver", driver(on_disk="590.44.01"), WARN, ("590.44.01 lies on the disk", "reboot")),
        ("driver", driver(on_disk=""), WARN, ("no module lies on the disk",)),
        ("driver", driver(libraries={}), FAIL, ("libcuda.so.1 is not installed",)),
        ("driver", replace(BOX, smi=LATE), FAIL, ("cannot be killed", "reboot")),
        ("driver", replace(BOX, smi=replace(LATE, state="R")), WARN, ("persistence",)),
        ("driver", smi(error="GPU is lost", code=15), FAIL, ("GPU is lost",)),
        ("driver", smi(cuda="12.4"), FAIL, ("runs CUDA 12.4", "needs CUDA 13.0")),
        ("driver", smi(cuda="13.1"), OK, ()),
        ("driver", replace(BOX, smi=NotKnown("nvidia-smi is not installed")), OK, ("580.95.05",)),
        ("device-nodes", driver(unreadable=("nvidia0",)), FAIL, ("/dev/nvidia0",)),
        ("device-nodes", driver(nodes=frozenset()), OK, ("nvidia-modprobe at an engine's start",)),
        ("device-nodes", driver(nodes=frozenset(), modprobe=False), FAIL, ("apt install nvidia-modprobe",)),
        ("uvm", driver(modules=frozenset({"nvidia"}), modprobe=False), FAIL, ("CUDA cannot start",)),
        ("uvm", driver(modules=frozenset({"nvidia"})), OK, ("at an engine's start",)),
        ("persistence", smi(told(0), told(1, persistence=False)), WARN, ("0000:02:00", "nvidia-persistenced")),
        ("persistence", smi(told(0, persistence=UNKNOWN)), DARK, ()),
        ("fabric", BOX, SKIPPED, ("no NVSwitch",)),
        ("fabric", bus(switches=4), FAIL, ("802",)),
        ("fabric", smi(told(0, fabric="In Progress")), FAIL, ("In Progress",)),
        ("fabric", smi(told(0, fabric="Completed")), OK, ()),
        ("fabric", bus(switches=4, packages=Packages(driver={"nvidia-fabricmanager-570": "570.1-1"})), FAIL,
         ("570.1-1", "exact version")),
        ("ecc", smi(told(0, remapped=(0, 1, False, True))), FAIL, ("replaced",)),
        ("ecc", smi(told(0, remapped=(0, 1, True, False))), WARN, ("next reset",)),
        ("ecc", smi(told(0, uncorrected=2)), WARN, ("2 uncorrectable",)),
        ("ecc", smi(told(0, recovery="Node Reboot")), FAIL, ("reboot the machine",)),
        ("ecc", smi(told(0, recovery="GPU Reset")), FAIL, ("--gpu-reset -i 0000:01:00",)),
        ("ecc", smi(told(0, error="GPU is lost")), FAIL, ("GPU is lost",)),
        ("ecc", smi(told(0, uncorrected=UNKNOWN, remapped=UNKNOWN)), SKIPPED, ("count no memory errors",)),
        ("gpu-clocks", smi(told(0, slowed=("heat",), temperature=95.0)), WARN, ("95 C", "heat")),
        ("gpu-clocks", smi(told(0, temperature=93.0)), WARN, ("fans",)),
        ("gpu-users", smi(told(0, processes=(FOREIGN,))), WARN, ("python3 (pid 9, user eve), 20.0 GiB",)),
        ("gpu-users", smi(told(0, processes=(replace(FOREIGN, user="llm-engine"),))), FAIL, ("kill -9 9",)),
        ("gpu-users", smi(told(0, processes=(OURS,), used_mib=70000.0)), OK, ()),
        ("gpu-users", smi(told(0, used_mib=70000.0)), WARN, ("no process has them",)),
        ("gpu-users", smi(told(0, processes=UNKNOWN)), DARK, ("does not list",)),
        ("gpu-users", smi(told(0, compute_mode="Prohibited")), FAIL, ("-c 0",)),
        ("placement", replace(BOX, placed=(Placed(instance="chat", missing=("5",)),)), FAIL, ("GPU 5",)),
        ("topology", replace(BOX, topology=Topology(links={(0, 1): "SYS"}, peer={(0, 1): "CNS"})), WARN,
         ("default spans 0-1", "between processors", "without P2P: 0-1", "replicas")),
        ("topology", replace(BOX, topology=Topology(links={(0, 1): "SYS"}), placed=ON_ONE), OK, ("all pairs SYS",)),
        ("topology", replace(BOX, topology=NotKnown("late")), DARK, ("late",)),
        ("topology", bus(card(0)), SKIPPED, ("one GPU",)),
        ("acs", bus(card(0, bridges=ACS_ON), card(1, bridges=ACS_ON)), WARN,
         ("0000:00:03.1", "setpci -s 0000:00:03.1 ECAP_ACS+6.w=0000", "--deep")),
        ("acs", bus(card(0, iommu=DMA), card(1, iommu=DMA)), WARN, ("iommu=pt",)),
        ("acs", bus(card(0, iommu="identity"), card(1, iommu="identity")), OK, ()),
        ("acs", bus(card(0, bridges=ACS_ON), card(1), topology=Topology(links={(0, 1): "NV12"})), OK, ("NVLink",)),
        ("acs", bus(card(0, bridges=ACS_ON), card(1), placed=ON_ONE), SKIPPED, ("no engine spans",)),
        ("acs", bus(*(card(n, bridges=(Bridge(address="b"),)) for n in (0, 1))), DARK, ("sudo",)),
        ("acs", bus(card(0, bridges=()), card(1, bridges=())), DARK, ("virtual machine",)),
        ("pcie", bus(card(0), card(1, width=4)), WARN, ("0000:02:00.0 runs on 4 PCIe lanes of its 16",)),
        ("pcie", bus(card(0, speed=2.5), card(1, speed=2.5)), OK, ("shows under load",)),
        ("pcie", bus(card(0, speed=8.0), smi=replace(SMI, gpus=(told(0, busy=97.0),))), WARN, ("8 GT/s of its 16",)),
        ("pcie", bus(card(0, width=UNKNOWN)), DARK, ()),
        ("nccl", replace(BOX, infiniband=Infiniband(ports={"mlx5_0 port 1": "DOWN"})), WARN, ("NCCL_IB_DISABLE",)),
        ("nccl", replace(BOX, infiniband=Infiniband(ports={"mlx5_0 port 1": "ACTIVE"})), OK, ()),
        ("upgrades", replace(BOX, packages=Packages(driver={"nvidia-driver": "5"}, unattended=True)), WARN,
         ("apt-mark hold nvidia-driver",)),
        ("upgrades", replace(BOX, packages=Packages(driver={"nvidia-driver": "5"}, unattended=True,
                                                    held=frozenset({"nvidia-driver"}))), OK, ()),
        ("upgrades", replace(BOX, packages=Packages(driver={"nvidia-driver": "5"}, unattended=True,
                                                    spared=("(", "nvidia-"))), OK, ()),
        ("upgrades", replace(BOX, packages=Packages(driver={"nvidia-driver": "5"})), DARK, ()),
        ("toolchain", replace(BOX, toolchain=Toolchain(c="/usr/bin/gcc", python="3.11", header=False)), FAIL,
         ("g++, Python.h of Python 3.11", "python3.11-dev")),
    ],
)  # fmt: skip
def test_gpus(name: str, facts: HostFacts, verdict: Verdict | None, words: tuple[str, ...]) -> None:
    if verdict is None:  # among others
        assert any(one.verdict is FAIL and words[0] in one.evidence for one in findings(name, facts))
    else:
        expect(name, facts, verdict, *words)


@pytest.mark.parametrize(
    ("env", "words"),
    [({"VLLM_WORKER_MULTIPROC_METHOD": "fork"}, "spawn"), ({"NCCL_P2P_DISABLE": "0"}, "forces P2P")],
)
def test_an_environment_that_hangs(env: dict[str, str], words: str) -> None:
    expect("nccl", BOX, WARN, words, config=Config(engines=(Engine(env=env),)))


def test_limits_of_the_gateway_against_long_prompts() -> None:
    short = Config(gateway=Gateway(timeouts=Timeouts(first_token=30.0), stream=Stream(keepalive=90.0)))
    expect("timeouts", BOX, WARN, "first_token is 30s", "keepalive is 90s", config=short)
    expect("timeouts", BOX, OK)
