"""What starts have taught about plans, kept for the next plan of the same model, GPU and runtime.

A lost file costs nothing but estimates that are estimates again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from appliance.host import files
from appliance.policy import planerror
from appliance.policy.planerror import PlanError

KEPT = 64  # the oldest go


class PlanErrors:
    """The file. Raises nothing: `fault` says why it could not be written."""

    def __init__(self, path: str) -> None:
        self._path = path
        listed = (files.read_json(path) or {}).get("errors")
        read = (planerror.read(one) for one in listed if isinstance(one, dict)) if isinstance(listed, list) else ()
        self._known = {one.about: one for one in read if one is not None}
        self.fault = ""

    def see(self, starts: Iterable[PlanError]) -> None:
        """Take over what starts have shown; writes when that is news."""
        news = [one for one in starts if self._known.get(one.about) != one]
        if not news:
            return
        for one in news:
            self._known.pop(one.about, None)
            self._known[one.about] = one
        self._known = dict(list(self._known.items())[-KEPT:])
        try:
            files.replace_json(self._path, {"errors": [asdict(one) for one in self._known.values()]}, mode=0o640)
            self.fault = ""
        except OSError as error:
            self.fault = f"{self._path} cannot be written: {error.strerror}"
