"""What is usual for each GPU of an engine: power while idle, power and memory utilisation while tokens flow.

A spinning GPU shows full utilisation; what gives it away is power far below what this engine draws when it works. So
the measure is the engine's own, learnt while it provably worked, taken from earlier runs (`Learned`) until then.

    busy   median over at least 60 readings with tokens flowing
    idle   median over at least 5 minutes without demand, of readings whose GPU did nothing: after the clients of a
           hung engine have given up it has no demand either
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Gpu, Learned, Usual

BUSY_READINGS = 60
IDLE_S = 300.0
KEPT = 600  # readings of each kind; the oldest go
_AGAIN = 30  # new readings after which a median is taken anew
IDLE_UTIL = 5.0


class _Median:
    """A median over the last readings, taken anew now and then: readings are many and medians are slow."""

    def __init__(self) -> None:
        self._readings: deque[float] = deque(maxlen=KEPT)
        self._fresh = 0
        self._value: Maybe[float] = UNKNOWN

    def add(self, value: float) -> None:
        self._readings.append(value)
        self._fresh += 1

    def value(self, at_least: int) -> Maybe[float]:
        if len(self._readings) < at_least:
            return UNKNOWN
        if self._value is UNKNOWN or self._fresh >= _AGAIN:
            self._value, self._fresh = median(self._readings), 0
        return self._value


class Baseline:
    """Learns from readings; `usual` is what is known by now."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self._idle: dict[str, _Median] = {}
        self._busy: dict[str, _Median] = {}
        self._memory: dict[str, _Median] = {}
        self._idle_s = 0.0

    def usual(self, pci: str) -> Usual:
        """What is usual for a GPU."""
        before = self._learned.gpus.get(pci, self._learned.gpus.get("", Usual()))
        idle = self._idle[pci].value(1) if pci in self._idle and self._idle_s >= IDLE_S else UNKNOWN
        busy = self._busy[pci].value(BUSY_READINGS) if pci in self._busy else UNKNOWN
        memory = self._memory[pci].value(BUSY_READINGS) if pci in self._memory else UNKNOWN
        return Usual(
            idle_power_w=before.idle_power_w if idle is UNKNOWN else idle,
            busy_power_w=before.busy_power_w if busy is UNKNOWN else busy,
            busy_mem_util=before.busy_mem_util if memory is UNKNOWN else memory,
        )

    def learn_busy(self, gpus: tuple[Gpu, ...]) -> None:
        """A reading while tokens flowed; a card that did nothing at that moment was not at work."""
        for gpu in gpus:
            if gpu.util is not UNKNOWN and gpu.util <= IDLE_UTIL:
                continue
            if gpu.power_w is not UNKNOWN:
                self._busy.setdefault(gpu.pci, _Median()).add(gpu.power_w)
            if gpu.mem_util is not UNKNOWN:
                self._memory.setdefault(gpu.pci, _Median()).add(gpu.mem_util)

    def learn_idle(self, gpus: tuple[Gpu, ...], seconds: float) -> None:
        """A reading without demand, `seconds` after the one before it."""
        still = [gpu for gpu in gpus if gpu.util is not UNKNOWN and gpu.util <= IDLE_UTIL]
        if len(still) != len(gpus):
            return
        self._idle_s += seconds
        for gpu in still:
            if gpu.power_w is not UNKNOWN:
                self._idle.setdefault(gpu.pci, _Median()).add(gpu.power_w)

    def learned(self) -> Learned:
        """What is known, to be kept for the next run."""
        known: Mapping[str, object] = {**self._busy, **self._idle}
        gpus = {pci: self.usual(pci) for pci in known}
        return Learned(gpus={**self._learned.gpus, **gpus}, prefill_rate=self._learned.prefill_rate)
