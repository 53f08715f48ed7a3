"""How far the plan of a start was from what vLLM found, and what the next plan makes of it.

What vLLM takes besides weights and cache can only be estimated before; the difference shows in the room that is left
for the cache. It is learned for one model on one kind of GPU under one runtime, split in one way, and holds for no
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .cards import GIB


@dataclass(frozen=True, slots=True)
class PlanError:
    """`kv_gib`: by how much the room for the cache on each GPU differed from the plan, below zero where it was less."""

    model: str
    gpu: str
    runtime: str
    tp: int
    pp: int
    kv_gib: float

    @property
    def about(self) -> tuple[object, ...]:
        """What it holds for."""
        return self.model, self.gpu, self.runtime, self.tp, self.pp


def of_start(state: Mapping[str, object]) -> PlanError | None:
    """From a launcher's state.json; None where one side did not tell its figure."""
    planned, measured = state.get("planned"), state.get("measured")
    if not isinstance(planned, Mapping) or not isinstance(measured, Mapping):
        return None
    expected, found = planned.get("kv_gib"), measured.get("kv_gib")
    if not isinstance(expected, (int, float)) or not isinstance(found, (int, float)):
        return None
    return read({**planned, "kv_gib": round(found - expected, 2), "runtime": state.get("runtime")})


def read(value: Mapping[str, object]) -> PlanError | None:
    """From its fields as JSON; None where one is missing or odd."""
    model, gpu, runtime, tp, pp, kv_gib = (value.get(key) for key in PlanError.__slots__)
    if not (isinstance(model, str) and isinstance(gpu, str) and isinstance(runtime, str) and isinstance(tp, int)):
        return None
    if not (isinstance(pp, int) and isinstance(kv_gib, (int, float))):
        return None
    return PlanError(model, gpu, runtime, tp, pp, float(kv_gib))


def corrections(known: Iterable[PlanError], model: str, gpu: str, runtime: str) -> dict[tuple[int, int], int]:
    """Bytes to add to the room for the cache on each GPU, by tensor and pipeline parallel size."""
    mine = (one for one in known if (one.model, one.gpu, one.runtime) == (model, gpu, runtime))
    return {(one.tp, one.pp): int(one.kv_gib * GIB) for one in mine}
