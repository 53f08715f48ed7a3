"""The GPUs as the supervisor shows them: one file, replaced with each reading of NVML."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from appliance import clock
from appliance.host import files
from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Gpu, Nvml

from .nvmlwatch import ABSENT

_IDENTITY = frozenset({"pci", "uuid", "idx", "name", "mem_total_mib"})
_HIDDEN = frozenset({"pids"})  # of all users; nothing for a file that everybody may read


class GpuBoard:
    """Writes the file. `fault` says why it could not be written, empty when it was."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: tuple[Gpu, ...] = ()
        self._driver = ""
        self.fault = ""

    def show(self, reading: Nvml) -> None:
        """Replace the file. Without a reading the GPUs are those that were, and every figure is unknown."""
        absent = reading.code in ABSENT
        if not reading.error:
            self._known, self._driver = reading.gpus, reading.driver
        elif absent:
            self._known, self._driver = (), ""
        value: dict[str, object] = {
            "at": round(clock.wall(), 3),
            "driver": self._driver or None,
            "error": "" if absent else reading.error,
            "code": _told(reading.code),
            "gpus": [_public(gpu, whole=not reading.error) for gpu in self._known],
        }
        try:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            files.replace_json(self._path, value)
        except OSError as error:
            self.fault = f"cannot write {self._path}: {error.strerror}"
        else:
            self.fault = ""


def _public(gpu: Gpu, *, whole: bool) -> dict[str, object]:
    names = [field.name for field in fields(gpu) if field.name not in _HIDDEN]
    return {name: _told(getattr(gpu, name)) if whole or name in _IDENTITY else None for name in names}


def _told(value: Maybe[object]) -> object:
    return None if value is UNKNOWN else value
