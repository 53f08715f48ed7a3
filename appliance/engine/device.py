"""What an engine runs on: CUDA or CPU, which build of vLLM, and which GPUs are its own.

GPUs are named by their UUIDs in PCI order, as the driver's own files list them: no library that can hang in a sick
driver is loaded here. A number in `gpus` counts in that order, which is NVML's and, with CUDA_DEVICE_ORDER=PCI_BUS_ID,
CUDA's too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from appliance import names
from appliance.host import files
from appliance.host.device import Device, resolve

DRIVER_GPUS = "/proc/driver/nvidia/gpus"


def device_of(runtime: str, configured: Literal["auto", "cuda", "cpu"]) -> Device:
    """The device to start for: the one that the runtime was built for, else what `[runtime] device` means here.

    The runtime's own record comes first: a build for a CPU cannot use a GPU, whatever the file asks for.
    """
    built_for = (files.read_json(f"{runtime}/{names.RUNTIME_COMPLETE}") or {}).get("device")
    if built_for == "cuda":
        return "cuda"
    return "cpu" if built_for == "cpu" else resolve(configured)


def build_of(runtime: str) -> str:
    """What a runtime was built of: one that was removed leaves its name to another. Empty where nobody recorded it."""
    record = files.read_json(f"{runtime}/{names.RUNTIME_COMPLETE}") or {}
    return " ".join(str(record[what]) for what in ("python", "lock") if what in record)


def present_gpus(directory: str = DRIVER_GPUS) -> tuple[str, ...]:
    """UUIDs of the machine's GPUs in PCI order; their numbers where the driver has not read the UUIDs yet."""
    try:
        addresses = sorted(entry.name for entry in Path(directory).iterdir())
    except OSError:
        return ()
    found: list[str] = []
    for number, address in enumerate(addresses):
        uuid = _uuid(Path(directory, address, "information"))
        found.append(uuid or str(number))
    return tuple(found)


def models_of(gpus: Sequence[str], directory: str = DRIVER_GPUS) -> tuple[str, ...]:
    """What the driver calls these GPUs, named as by `present_gpus`, each once; what it does not know is left out."""
    try:
        addresses = sorted(entry.name for entry in Path(directory).iterdir())
    except OSError:
        return ()
    told = [Path(directory, address, "information") for address in addresses]
    found = [_told(path, "Model") for number, path in enumerate(told) if (_uuid(path) or str(number)) in gpus]
    return tuple(dict.fromkeys(name for name in found if name))


def _uuid(path: Path) -> str | None:
    value = _told(path, "GPU UUID")
    return None if value is None or "?" in value else value


def _told(path: Path, wanted: str) -> str | None:
    """A value in the driver's own description of a GPU."""
    for line in files.read_text(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == wanted:
            return value.strip() or None
    return None
