"""A machine as it should be, to be spoilt by tests; and what a check must say of it."""

from __future__ import annotations

from appliance.config.model import Config
from appliance.gpufacts import Bridge, Bus, Driver, Infiniband, PciGpu, Smi, SmiGpu, Topology
from appliance.hostfacts import HostFacts, Packages, Placed, Toolchain
from appliance.hostfacts import Runtime as RuntimeFact
from appliance.policy.checkup.table import CHECKS
from appliance.policy.finding import Finding, Verdict

OK, WARN, FAIL, DARK, SKIPPED = Verdict.OK, Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN, Verdict.SKIPPED
BY_NAME = {check.name: check for check in CHECKS}


def card(number: int, **changes: object) -> PciGpu:
    given: dict[str, object] = {
        "address": f"0000:{number + 1:02x}:00.0", "bound": "nvidia", "speed": 16.0, "speed_max": 16.0, "width": 16,
        "width_max": 16, "numa": 0, "iommu": "", "bridges": (Bridge(address=f"0000:00:0{number}.0", acs=0),),
    }  # fmt: skip
    return PciGpu(**{**given, **changes})  # type: ignore[arg-type]


def told(number: int, **changes: object) -> SmiGpu:
    given: dict[str, object] = {
        "pci": f"0000:{number + 1:02x}:00", "uuid": f"GPU-{number}", "name": "NVIDIA Test", "persistence": True,
        "ecc": True, "uncorrected": 0, "remapped": (0, 0, False, False), "busy": 0.0, "temperature": 40.0,
        "used_mib": 10.0, "processes": (),
    }  # fmt: skip
    return SmiGpu(**{**given, **changes})  # type: ignore[arg-type]


DRIVER = Driver(
    kernel="6.1.0-18-amd64", loaded="580.95.05", modules=frozenset({"nvidia", "nvidia_uvm"}), on_disk="580.95.05",
    libraries={"libcuda.so.1": "580.95.05", "libnvidia-ml.so.1": "580.95.05"},
    nodes=frozenset({"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"}), modprobe=True,
)  # fmt: skip
SMI = Smi(source="nvidia-smi", driver="580.95.05", cuda="13.0", gpus=(told(0), told(1)))
BOX = HostFacts(
    root=True, systemd=True, installed=True,
    bus=Bus(gpus=(card(0), card(1))), driver=DRIVER, smi=SMI,
    topology=Topology(links={(0, 1): "PHB"}, peer={(0, 1): "OK"}), infiniband=Infiniband(),
    runtime=RuntimeFact(name="0.32.0-cuda", device="cuda", complete=True, usable=True, cuda="13.0"),
    placed=(Placed(instance="default", gpus=(0, 1)),), packages=Packages(),
    toolchain=Toolchain(c="/usr/bin/gcc", cxx="/usr/bin/g++", python="3.11", header=True), units=(),
)  # fmt: skip
ON_ONE = (Placed(instance="default", gpus=(0,)),)


def findings(name: str, facts: HostFacts, config: Config | None = None) -> list[Finding]:
    return list(BY_NAME[name].findings(facts, config or Config()))


def expect(name: str, facts: HostFacts, verdict: Verdict, *words: str, config: Config | None = None) -> None:
    found = findings(name, facts, config)
    assert found and {one.verdict for one in found} == {verdict}, found
    text = " ".join(f"{one.evidence} {one.remedy}" for one in found)
    for word in words:
        assert word in text, text
    for one in found:
        assert bool(one.remedy) >= (verdict in (WARN, FAIL)), one  # whoever finds fault says what to do
