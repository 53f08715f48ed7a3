"""The GPUs of this machine as others have already seen them: nothing here asks the driver, which may be sick.

The supervisor's file tells names, order and memory; where it is not there, the driver's files below /proc tell names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from appliance.quantity import UNKNOWN, Maybe

from . import files

_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)
_UUID = re.compile(r"^GPU UUID:\s*(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Found:
    """One GPU. `memory` is NVML's total in bytes, a little more than what CUDA gives."""

    name: str
    uuid: str = ""
    memory: Maybe[int] = UNKNOWN


def found(state: str, proc: str = "/proc") -> tuple[Found, ...]:
    """The GPUs in the order of PCI; empty when nobody has seen one. Never raises."""
    return _told(state) or _drivers(proc)


def _told(state: str) -> tuple[Found, ...]:
    """From the supervisor's file."""
    value = files.read_json(state) or {}
    listed = value.get("gpus")
    gpus = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    made = []
    for one in sorted(gpus, key=lambda one: str(one.get("pci") or "")):
        name, uuid, mib = one.get("name"), one.get("uuid"), one.get("mem_total_mib")
        if isinstance(name, str) and name:
            memory: Maybe[int] = UNKNOWN
            if isinstance(mib, (int, float)) and not isinstance(mib, bool):
                memory = int(mib * (1 << 20))
            made.append(Found(name, uuid if isinstance(uuid, str) else "", memory))
    return tuple(made)


def _drivers(proc: str) -> tuple[Found, ...]:
    """From the driver's own files, one directory a PCI address."""
    made = []
    for path in sorted(Path(proc, "driver/nvidia/gpus").glob("*/information")):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        model, uuid = _MODEL.search(text), _UUID.search(text)
        if model:
            made.append(Found(model[1], uuid[1] if uuid else ""))
    return tuple(made)
