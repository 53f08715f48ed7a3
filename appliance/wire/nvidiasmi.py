"""`nvidia-smi -q -x`: the driver's own words on each GPU, schemas 11 to 13.

Elements come and go with drivers and with GPUs, and what a GPU does not support reads `N/A`: both are UNKNOWN. So is
"Requested functionality has been deprecated", which newer drivers write instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from appliance.gpufacts import GpuProcess, Smi, SmiGpu
from appliance.quantity import UNKNOWN, Maybe

from .pciid import pci_id

SOURCE = "nvidia-smi"
# What the clocks are held down for by hardware or heat; a power cap that software set is everyday.
_SLOWED = {
    "hw_slowdown": "hardware slowdown",
    "hw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "the power supply's brake",
    "sw_thermal_slowdown": "heat (by the driver)",
}
# What it prints instead of XML, and NVML's number for it.
_REFUSALS = (
    ("version mismatch", 18),
    ("couldn't communicate with the NVIDIA driver", 9),
    ("Driver Not Loaded", 9),
    ("GPU is lost", 15),
    ("No devices were found", 6),
    ("Insufficient Permissions", 4),
)
_NOTHING = ("", "N/A", "None", "Requested functionality has been deprecated")


def parse(text: str) -> Smi:
    """All GPUs; a text that is no XML is the program's own complaint, which `error` and `code` then hold."""
    start = text.find("<nvidia_smi_log")
    if start < 0:
        return _refused(text)
    try:
        root = ElementTree.fromstring(text[start:])
    except ElementTree.ParseError as error:
        return Smi(source=SOURCE, error=f"nvidia-smi's answer is torn: {error}")
    gpus = tuple(_gpu(each) for each in root.findall("gpu"))
    return Smi(source=SOURCE, driver=_word(root, "driver_version"), cuda=_word(root, "cuda_version"), gpus=gpus)


def _refused(text: str) -> Smi:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "nvidia-smi printed nothing")
    code: Maybe[int] = next((number for words, number in _REFUSALS if words.lower() in text.lower()), UNKNOWN)
    return Smi(source=SOURCE, error=line[:200], code=code)


def _gpu(gpu: ElementTree.Element) -> SmiGpu:
    volatile = "ecc_errors/volatile"
    uncorrected = [
        figure
        for name in ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded",
                     "dram_uncorrectable", "double_bit/total")
        if (figure := _number(gpu, f"{volatile}/{name}")) is not UNKNOWN
    ]  # fmt: skip
    recovery = _word(gpu, "gpu_recovery_action")
    if not recovery and _word(gpu, "gpu_reset_status/reset_required") == "Yes":
        recovery = "GPU reset"
    return SmiGpu(
        pci=pci_id(_word(gpu, "pci/pci_bus_id") or gpu.get("id", "")),
        uuid=_word(gpu, "uuid"),
        name=_word(gpu, "product_name"),
        persistence=_switch(gpu, "persistence_mode"),
        ecc=_switch(gpu, "ecc_mode/current_ecc"),
        uncorrected=int(sum(uncorrected)) if uncorrected else UNKNOWN,
        remapped=_remapped(gpu),
        recovery=recovery,
        slowed=tuple(_slowed(gpu)),
        busy=_number(gpu, "utilization/gpu_util"),
        temperature=_number(gpu, "temperature/gpu_temp"),
        used_mib=_number(gpu, "fb_memory_usage/used"),
        fabric=_word(gpu, "fabric/state"),
        compute_mode=_word(gpu, "compute_mode"),
        processes=_processes(gpu),
    )


def _slowed(gpu: ElementTree.Element) -> Iterator[str]:
    for parent, prefix in (
        ("clocks_event_reasons", "clocks_event_reason_"),
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),  # before driver 535
    ):
        for name, words in _SLOWED.items():
            if _word(gpu, f"{parent}/{prefix}{name}") == "Active":
                yield words


def _remapped(gpu: ElementTree.Element) -> Maybe[tuple[int, int, bool, bool]]:
    at = "remapped_rows/remapped_row_"
    correctable, uncorrectable = _number(gpu, at + "corr"), _number(gpu, at + "unc")
    if correctable is UNKNOWN or uncorrectable is UNKNOWN:
        return UNKNOWN
    pending, failed = (_word(gpu, at + name) == "Yes" for name in ("pending", "failure"))
    return int(correctable), int(uncorrectable), pending, failed


def _processes(gpu: ElementTree.Element) -> Maybe[tuple[GpuProcess, ...]]:
    """Those that compute (C), not a desktop's (G)."""
    listed = gpu.find("processes")
    if listed is None or (listed.text or "").strip() == "N/A":
        return UNKNOWN
    found = []
    for each in listed.findall("process_info"):
        pid = _number(each, "pid")
        if pid is not UNKNOWN and "C" in _word(each, "type"):
            found.append(GpuProcess(pid=int(pid), name=_word(each, "process_name"), mib=_number(each, "used_memory")))
    return tuple(found)


def _word(parent: ElementTree.Element, path: str) -> str:
    """Text of an element; empty where it says nothing."""
    text = (parent.findtext(path) or "").strip()
    return "" if text in _NOTHING or text.startswith("[") else text


def _switch(parent: ElementTree.Element, path: str) -> Maybe[bool]:
    word = _word(parent, path)
    return word in ("Enabled", "Yes") if word in ("Enabled", "Disabled", "Yes", "No") else UNKNOWN


def _number(parent: ElementTree.Element, path: str) -> Maybe[float]:
    """The figure before a unit: `97 %`, `81920 MiB`."""
    match = re.match(r"-?\d+(\.\d+)?", _word(parent, path))
    return UNKNOWN if match is None else float(match[0])
