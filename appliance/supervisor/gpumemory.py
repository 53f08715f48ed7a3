"""How much of each GPU's memory is in use, and whether that has settled: a start beside a change measures wrongly."""

from __future__ import annotations

from collections.abc import Mapping

from appliance.policy.reconcile import Memory
from appliance.quantity import UNKNOWN
from appliance.samples import Nvml

CHANGE_MIB = 64.0  # less is what drivers and desktops do all the time


class GpuMemory:
    """Follows readings; `known` gives each GPU by UUID and by its number in the order of addresses."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._changed: dict[str, float] = {}  # when it last changed
        self._unsettled: dict[str, float] = {}  # since when it has been changing
        self._seen_t = float("-inf")
        self.known: Mapping[str, Memory] = {}

    def see(self, reading: Nvml | None, stable_s: float) -> None:
        """The newest reading; one without GPUs, or none, makes all of it UNKNOWN."""
        if reading is None or reading.error or not reading.gpus:
            self.known = {}
            return
        if reading.t <= self._seen_t:
            return
        self._seen_t = reading.t
        known: dict[str, Memory] = {}
        for number, gpu in enumerate(sorted(reading.gpus, key=lambda gpu: gpu.pci)):
            key = gpu.uuid or gpu.pci
            if gpu.mem_used_mib is UNKNOWN:
                continue
            before = self._used.get(key)
            if before is None or abs(gpu.mem_used_mib - before) > CHANGE_MIB:
                self._used[key] = gpu.mem_used_mib
                if before is not None:
                    self._changed[key] = reading.t
                    self._unsettled.setdefault(key, reading.t)
            quiet = reading.t - self._changed.get(key, float("-inf"))
            if quiet >= stable_s:
                self._unsettled.pop(key, None)
            unsettled = reading.t - self._unsettled[key] if key in self._unsettled else 0.0
            known[key] = known[str(number)] = Memory(gpu.mem_used_mib, min(quiet, 1e9), unsettled)
        self.known = known
