"""The ledger on disk: what is remembered of each engine, and how long each configuration of one took to load.

One writer, the supervisor; replaced atomically whenever it changes, before anything is done that follows from it. A
ledger that is missing or damaged is an empty one: engines keep running, only their past is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from appliance import names
from appliance.host import files
from appliance.policy.hardware import Step
from appliance.policy.ladder import Ladder, Place, Rung
from appliance.policy.reconcile import Seen, UnitState
from appliance.policy.restart import Death, GpuStep, Record

LOADS_KEPT = 128


@dataclass(frozen=True, slots=True)
class Ledger:
    """Records by instance; load times in seconds by `load_key`, the newest last."""

    records: Mapping[str, Record] = field(default_factory=dict)
    loads: Mapping[str, float] = field(default_factory=dict)

    def with_records(self, records: Mapping[str, Record]) -> Ledger:
        """The ledger with other records; empty ones are left out."""
        return Ledger({name: record for name, record in records.items() if record != Record()}, self.loads)

    def load_times(self, digests: Mapping[str, str], seen: Mapping[str, Seen]) -> dict[str, float]:
        """How long the present or the next start of each instance takes, where that is known."""
        found = {}
        for instance, digest in digests.items():
            now = seen.get(instance, Seen())
            again = now.unit is UnitState.OVER or (now.unit is UnitState.STARTING and names.is_again(now.run))
            usual = self.loads.get(digest)
            load_s = self.loads.get(load_key(digest, again=True), usual) if again else usual
            if load_s is not None:
                found[instance] = load_s
        return found

    def with_loads(self, loads: Iterable[tuple[str, float]]) -> Ledger:
        """The ledger after starts were seen to their ends, by key and seconds."""
        made = self
        for key, load_s in loads:
            if made.loads.get(key) != round(load_s, 1):
                made = made.with_load(key, load_s)
        return made

    def with_load(self, key: str, load_s: float) -> Ledger:
        """The ledger after a start was seen to its end."""
        loads = {known: value for known, value in self.loads.items() if known != key} | {key: round(load_s, 1)}
        return Ledger(self.records, dict(list(loads.items())[-LOADS_KEPT:]))


def load_key(digest: str, *, again: bool) -> str:
    """Under what the load time of a configuration is kept; a start `again` in its unit is another thing."""
    return f"{digest}.again" if again else digest


def read(path: str) -> Ledger:
    """The ledger at `path`, empty where there is none that can be read."""
    value = files.read_json(path)
    if value is None:
        return Ledger()
    engines, loads = value.get("engines"), value.get("loads")
    records = {name: _record(entry) for name, entry in engines.items()} if isinstance(engines, dict) else {}
    learned = loads.items() if isinstance(loads, dict) else ()
    return Ledger(records, {str(key): float(load) for key, load in learned if isinstance(load, (int, float))})


def write(path: str, ledger: Ledger) -> None:
    """Replace the ledger. Raises OSError."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    engines = {name: asdict(record) for name, record in ledger.records.items()}
    files.replace_json(path, {"engines": engines, "loads": dict(ledger.loads)}, mode=0o640)


def _record(entry: object) -> Record:
    if not isinstance(entry, dict):
        return Record()
    deaths, past, not_before = entry.get("deaths"), entry.get("past"), entry.get("not_before")
    wanted, over, hold, drop, drained, cause, reason = (
        str(entry.get(key) or "") for key in ("wanted", "over", "hold", "drop", "drained", "cause", "reason")
    )
    return Record(
        deaths=tuple(death for death in map(_death, deaths if isinstance(deaths, list) else ()) if death is not None),
        not_before=float(not_before) if isinstance(not_before, (int, float)) else None,
        ladder=_ladder(entry.get("ladder")),
        gpu_steps=_steps(entry.get("gpu_steps")),
        wanted=wanted,
        over=over,
        hold=hold,
        drop=drop,
        drained=drained,
        past=tuple(map(str, past)) if isinstance(past, list) else (),
        cause=cause,
        reason=reason,
    )


def _death(entry: object) -> Death | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("at"), (int, float)):
        return None
    key, cause, start = (str(entry.get(name, "")) for name in ("key", "cause", "start"))
    return Death(float(entry["at"]), key, cause, start, entry.get("killed") is True)


def _steps(listed: object) -> tuple[GpuStep, ...]:
    known = {step.value for step in Step}
    found = []
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("at"), (int, float)) and entry.get("step") in known:
            found.append(GpuStep(str(entry.get("pci") or ""), int(entry["step"]), float(entry["at"])))
    return tuple(found)


def _ladder(entry: object) -> Ladder:
    if not isinstance(entry, dict):
        return Ladder()
    place, rungs, trials = entry.get("place"), entry.get("rungs"), entry.get("trials")
    gpus = place.get("gpus") if isinstance(place, dict) else None
    known = [_rung(rung) for rung in (rungs if isinstance(rungs, list) else ())]
    dropped_at = entry.get("dropped_at")
    where = Place()
    if isinstance(place, dict):
        listed = tuple(map(str, gpus)) if isinstance(gpus, list) else ()
        where = Place(str(place.get("digest") or ""), str(place.get("runtime") or ""), listed)
    return Ladder(
        where,
        tuple(rung for rung in known if rung is not None),
        _rung(entry.get("dropped")),
        float(dropped_at) if isinstance(dropped_at, (int, float)) else 0.0,
        trials if isinstance(trials, int) else 0,
    )


def _rung(entry: object) -> Rung | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("at"), (int, float)):
        return None
    flags, env = entry.get("flags"), entry.get("env")
    return Rung(
        str(entry.get("cause") or ""),
        str(entry.get("told") or ""),
        float(entry["at"]),
        dict(flags) if isinstance(flags, dict) else {},
        {str(key): str(value) for key, value in env.items()} if isinstance(env, dict) else {},
        entry.get("caches") is True,
    )
