"""NVIDIA's driver: its files and devices, and what `nvidia-smi` says, in a process that may be left behind.

Where `nvidia-smi` is not installed, the supervisor's last reading of NVML stands in for it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from appliance import clock, names
from appliance.gpufacts import Driver, GpuProcess, Smi, SmiGpu, Topology
from appliance.host import files
from appliance.host.access import READ, account, allowed, user_name
from appliance.host.command import Silent, output_of
from appliance.quantity import UNKNOWN, Maybe
from appliance.wire import gpustate, nvidiasmi, nvidiatopo, procsys

PROC, DEV = "/proc", "/dev"
WRITE = stat.S_IWOTH
PROGRAM = "nvidia-smi"
SMI_S, TOPO_S, MODINFO_S = 6.5, 4.0, 3.0  # within what all looks have together
MOST_BYTES = 8 << 20
FRESH_S = 30.0  # of the supervisor's reading
MODINFO, MODPROBE = "/usr/sbin/modinfo", "/usr/bin/nvidia-modprobe"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
_DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/current", "/lib/x86_64-linux-gnu", "/usr/lib64",
    "/usr/lib", "/usr/local/nvidia/lib64",
)  # fmt: skip
_MODULES = frozenset({"nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nouveau", "nova_core"})
_RECOVERY = {1: "GPU reset", 2: "node reboot", 3: "drain peer-to-peer traffic", 4: "drain and reset",
             6: "bus reset", 7: "system reboot"}  # fmt: skip
# Bits of NVML's clocks event reasons that hardware or heat sets.
_SLOWED = {0x8: "hardware slowdown", 0x40: "heat", 0x80: "the power supply's brake", 0x20: "heat (by the driver)"}


async def driver(proc: str = PROC, dev: str = DEV, directories: tuple[str, ...] = _DIRECTORIES) -> Driver:
    """What is loaded, what lies on the disk for this kernel, and the devices."""
    nodes = sorted(name for name in os.listdir(dev) if name.startswith("nvidia"))
    return Driver(
        kernel=os.uname().release,
        loaded=procsys.driver_version(files.read_text(f"{proc}/driver/nvidia/version")),
        modules=procsys.module_names(files.read_text(f"{proc}/modules")) & _MODULES,
        on_disk=await _on_disk(),
        libraries={name: found for name in LIBRARIES if (found := _library(name, directories))},
        nodes=frozenset(nodes),
        unreadable=tuple(name for name in nodes if not _opens(f"{dev}/{name}")),
        modprobe=os.path.exists(MODPROBE),
    )


async def _on_disk() -> Maybe[str]:
    """The version of the module that this kernel would load; empty where there is none for it."""
    if shutil.which(MODINFO) is None:
        return UNKNOWN
    try:
        return (
            (await output_of((MODINFO, "-F", "version", "nvidia"), MODINFO_S, 4096)).decode("ascii", "replace").strip()
        )
    except Silent:
        return ""


def _library(name: str, directories: tuple[str, ...]) -> str:
    """The version that a library's real name ends with; empty where it is not there."""
    for directory in directories:
        real = os.path.realpath(f"{directory}/{name}")
        match = re.search(r"\.so\.(\d+\.[\d.]+)$", real)
        if match and os.path.exists(real):
            return match[1]
    return ""


def _opens(path: str) -> bool:
    """Whether the engines' user may open a device; directories of devices are not looked into."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    if not stat.S_ISCHR(status.st_mode):
        return True
    who = account(names.ENGINE_USER)
    if who is None:
        return os.access(path, os.R_OK | os.W_OK)
    return allowed(status, who, READ) and allowed(status, who, WRITE)


async def smi(board: str, proc: str = PROC, deadline_s: float = SMI_S) -> Smi:
    """All GPUs; `board` is the supervisor's file. Raises Silent, Late."""
    try:
        raw = await output_of((PROGRAM, "-q", "-x"), deadline_s, MOST_BYTES)
    except Silent:
        if shutil.which(PROGRAM) is not None:
            raise
        return _from_board(files.read_json(board) or {})
    found = nvidiasmi.parse(raw.decode("utf-8", "replace"))
    return replace(found, gpus=tuple(_known(gpu, proc) for gpu in found.gpus))


async def topology() -> Topology:
    """Links and permissions between GPUs. Raises Silent, Late."""
    links = await output_of((PROGRAM, "topo", "-m"), TOPO_S, MOST_BYTES)
    try:
        peers = await output_of((PROGRAM, "topo", "-p2p", "r"), TOPO_S, MOST_BYTES)
    except Silent:
        peers = b""  # older drivers have no such matrix
    return nvidiatopo.parse(links.decode("utf-8", "replace"), peers.decode("utf-8", "replace"))


def _known(gpu: SmiGpu, proc: str) -> SmiGpu:
    """The GPU with the users and units of its processes."""
    if gpu.processes is UNKNOWN:
        return gpu
    return replace(gpu, processes=tuple(_who(process, proc) for process in gpu.processes))


def _who(process: GpuProcess, proc: str) -> GpuProcess:
    """comm instead of what nvidia-smi calls it, which may hold arguments, and so somebody's secrets."""
    root = f"{proc}/{process.pid}"
    try:
        uid = os.stat(root).st_uid
    except OSError:
        return replace(process, name=os.path.basename(process.name.split(" ")[0]))
    group = files.read_text(f"{root}/cgroup").strip().rpartition("\n")[2]
    units = [part for part in group.split("/") if part.endswith((".service", ".scope"))]
    return replace(
        process, name=files.read_text(f"{root}/comm").strip(), user=user_name(uid), unit=units[-1] if units else ""
    )


def _from_board(value: Mapping[str, object]) -> Smi:
    """The supervisor's last reading. Raises Silent where there is none that is fresh."""
    told = gpustate.driver(value)
    at = told.get("at") if told else None
    if told is None or not isinstance(at, (int, float)) or clock.wall() - at > FRESH_S:
        raise Silent("nvidia-smi is not installed, and the supervisor has no reading of the GPUs")
    code = told.get("code")
    return Smi(
        source="the supervisor",
        driver=str(told.get("version") or ""),
        error=str(told.get("error") or ""),
        code=int(code) if isinstance(code, (int, float)) else UNKNOWN,
        gpus=tuple(_of_board(gpu) for gpu in gpustate.gpus(value)),
    )


def _of_board(gpu: dict[str, Any]) -> SmiGpu:
    def figure(name: str) -> Maybe[float]:
        return UNKNOWN if gpu.get(name) is None else float(gpu[name])

    rows, errors, action = gpu.get("remapped_rows"), figure("ecc_uncorrected"), figure("recovery_action")
    bits = figure("throttle")
    return SmiGpu(
        pci=gpu.get("pci") or "",
        uuid=gpu.get("uuid") or "",
        name=gpu.get("name") or "",
        uncorrected=UNKNOWN if errors is UNKNOWN else int(errors),
        remapped=(rows[0], rows[1], bool(rows[2]), bool(rows[3])) if rows and len(rows) == 4 else UNKNOWN,
        recovery="" if action is UNKNOWN else _RECOVERY.get(int(action), ""),
        slowed=() if bits is UNKNOWN else tuple(words for bit, words in _SLOWED.items() if int(bits) & bit),
        busy=figure("util"),
        temperature=figure("temp_c"),
        used_mib=figure("mem_used_mib"),
        error=gpu.get("error") or "",
    )
