"""A reading of NVML as one line of JSON: from the process that asks the driver to the one that does not dare to.

The names are the samples' own; what is UNKNOWN or empty is left out. A field of a wrong type is UNKNOWN again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Gpu, Nvml

_TEXTS = ("pci", "uuid", "name", "error")
_FLOATS = ("util", "mem_util", "power_w", "power_limit_w", "temp_c", "mem_used_mib", "mem_total_mib")
_INTS = ("idx", "recovery_action", "ecc_uncorrected", "throttle", "code")


def encode(reading: Nvml) -> str:
    """One line, without its end."""
    value = {**_told(reading), "gpus": [_told(gpu) for gpu in reading.gpus]}
    return json.dumps(value, ensure_ascii=False)


def decode(line: bytes) -> Nvml:
    """The reading of a line. Raises ValueError for what is no reading."""
    value = json.loads(line)
    if not isinstance(value, dict) or not _is_number(value.get("t")) or not isinstance(value.get("gpus"), list):
        raise ValueError("not a reading of NVML")
    return Nvml(
        t=float(value["t"]),
        gpus=tuple(_gpu(gpu) for gpu in value["gpus"] if isinstance(gpu, dict)),
        driver=_text(value, "driver"),
        error=_text(value, "error"),
        code=_int(value, "code"),
    )


def _told(value: Nvml | Gpu) -> dict[str, object]:
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: each for name, each in found.items() if each is not UNKNOWN and each != ""}


def _gpu(value: Mapping[str, object]) -> Gpu:
    told: dict[str, Any] = {name: _text(value, name) for name in _TEXTS}
    told |= {name: _float(value, name) for name in _FLOATS}
    told |= {name: _int(value, name) for name in _INTS}
    pids, rows = value.get("pids"), value.get("remapped_rows")
    if isinstance(pids, list):
        told["pids"] = tuple(pid for pid in pids if isinstance(pid, int))
    if isinstance(rows, list) and len(rows) == 4 and all(isinstance(each, int) for each in rows):
        told["remapped_rows"] = (rows[0], rows[1], bool(rows[2]), bool(rows[3]))
    return Gpu(**told)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Mapping[str, object], name: str) -> str:
    found = value.get(name)
    return found if isinstance(found, str) else ""


def _float(value: Mapping[str, object], name: str) -> Maybe[float]:
    found = value.get(name)
    return float(found) if isinstance(found, (int, float)) and _is_number(found) else UNKNOWN


def _int(value: Mapping[str, object], name: str) -> Maybe[int]:
    found = value.get(name)
    return found if isinstance(found, int) and _is_number(found) else UNKNOWN
