"""NVIDIA's devices as the kernel's bus tells of them: they are seen here without any driver, also a sick one."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.gpufacts import Bridge, Bus, Infiniband, PciGpu
from appliance.host.files import read_text
from appliance.quantity import UNKNOWN, Maybe
from appliance.wire import pciconfig

SYS = "/sys"
NVIDIA = "0x10de"
_DISPLAY, _BRIDGE = "0x03", "0x0680"  # classes: VGA and 3D controllers; NVSwitch is a bridge of no other kind


def bus(sys: str = SYS) -> Bus:
    """GPUs in the order of their addresses, and how many NVSwitches there are."""
    gpus, switches = [], 0
    for path in sorted(Path(sys, "bus/pci/devices").glob("*")):
        if _text(path / "vendor") != NVIDIA:
            continue
        kind = _text(path / "class")
        if kind.startswith(_BRIDGE):
            switches += 1
        elif kind.startswith(_DISPLAY):
            gpus.append(_gpu(path))
    return Bus(gpus=tuple(gpus), switches=switches)


def _gpu(path: Path) -> PciGpu:
    node = _text(path / "numa_node")
    return PciGpu(
        address=path.name,
        bound=_link(path / "driver"),
        speed=pciconfig.speed(_text(path / "current_link_speed")),
        speed_max=pciconfig.speed(_text(path / "max_link_speed")),
        width=pciconfig.width(_text(path / "current_link_width")),
        width_max=pciconfig.width(_text(path / "max_link_width")),
        numa=int(node) if node.isdigit() else UNKNOWN,  # -1: the firmware does not say
        iommu=_text(path / "iommu_group/type"),
        bridges=_bridges(path),
    )


def _bridges(path: Path) -> tuple[Bridge, ...]:
    """From the root down; the path of a device in sysfs goes through all of them."""
    real = Path(os.path.realpath(path))
    above = [parent for parent in real.parents if (parent / "vendor").exists() and (parent / "config").exists()]
    return tuple(Bridge(address=parent.name, acs=_acs(parent / "config")) for parent in reversed(above))


def _acs(path: Path) -> Maybe[int]:
    try:
        return pciconfig.acs_control(path.read_bytes())
    except OSError:
        return UNKNOWN


def infiniband(sys: str = SYS) -> Infiniband:
    """Adapters' ports with their state, `4: ACTIVE` in sysfs."""
    found = {}
    for path in sorted(Path(sys, "class/infiniband").glob("*/ports/*/state")):
        if _text(path.parent / "link_layer") != "Ethernet":
            found[f"{path.parts[-4]} port {path.parts[-2]}"] = _text(path).partition(": ")[2]
    return Infiniband(ports=found)


def _text(path: Path) -> str:
    return read_text(path).strip()


def _link(path: Path) -> str:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""
