"""What engines are like when they work, kept over restarts: power and memory use of their GPUs, speed of prefills.

Kept for each model, number of ranks and set of GPUs; as `learned` of a recording's first line (`wire/timelinesetting`).
A lost file costs nothing but the wait until all is learned again.
"""

from __future__ import annotations

from pathlib import Path

from appliance import clock
from appliance.host import files
from appliance.samples import Learned, Setting
from appliance.wire.timelinefields import Wrong
from appliance.wire.timelinesetting import as_config, learned_of

PAUSE_S = 300.0  # between two writes
KEPT = 64  # engines; the oldest go


class LearnedFile:
    """The file and what is to go there. Raises nothing: `fault` says why it could not be written."""

    def __init__(self, path: str) -> None:
        self._path = path
        value = files.read_json(path) or {}
        engines = value.get("engines")
        self._known: dict[str, object] = dict(engines) if isinstance(engines, dict) else {}
        self._written = dict(self._known)
        self._written_at = clock.monotonic()
        self.fault = ""

    def of(self, key: str) -> Learned:
        """What is known of an engine; nothing where nothing can be read."""
        value = self._known.get(key)
        try:
            return learned_of(value) if isinstance(value, dict) else Learned()
        except Wrong:
            return Learned()

    @property
    def is_due(self) -> bool:
        """Whether the last write was long enough ago for another."""
        return clock.monotonic() - self._written_at > PAUSE_S

    def keep(self, key: str, learned: Learned) -> None:
        """Take over what an engine has shown, for the next `write`."""
        value = as_config(Setting(learned=learned))["learned"]
        if not value or self._known.get(key) == value:
            return
        self._known.pop(key, None)
        self._known[key] = value

    def write(self) -> None:
        """Put it on disk when it changed."""
        self._written_at = clock.monotonic()
        if self._known == self._written:
            return
        try:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            files.replace_json(self._path, {"engines": dict(list(self._known.items())[-KEPT:])}, mode=0o640)
            self._written, self.fault = dict(self._known), ""
        except OSError as error:
            self.fault = f"{self._path} cannot be written: {error.strerror}"
