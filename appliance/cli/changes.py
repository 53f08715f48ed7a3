"""What an `apply` would do, in words: the settings that differ, and what that costs each engine and the gateway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from appliance import names
from appliance.config.diff import Change
from appliance.config.model import Config, Engine
from appliance.config.table import BY_PATH
from appliance.config.values import show, spell
from appliance.host import files, places
from appliance.quantity import format_duration
from appliance.units.render import engine_digest
from appliance.wire.redact import HIDDEN, USERINFO, is_secret_name

RELOAD, RESTART = "reload", "restart"
_EFFECTS = {"live": "at once", "reload": "at once", "restart": "by a restart"}


@dataclass(frozen=True, slots=True)
class Costs:
    """What happens to whom: engine instances that are restarted, started or stopped, with a sentence each."""

    engines: Mapping[str, str]
    restarted: tuple[str, ...]
    gateway: str  # "", RELOAD or RESTART
    runtime: bool  # version or device of the runtime changed


def fleet_entries() -> Mapping[str, Mapping[str, object]]:
    """What the supervisor last wrote of each engine instance; empty where nothing can be read."""
    fleet = files.read_json(places.from_environment().under_run(names.FLEET_STATE)) or {}
    told = fleet.get("engines")
    return {name: entry for name, entry in told.items() if isinstance(entry, dict)} if isinstance(told, dict) else {}


def costs(changes: Sequence[Change], old: Config | None, new: Config) -> Costs:
    """The costs; what runs is judged by what its launcher says it was started with, else by the old configuration."""
    where, entries = places.from_environment(), fleet_entries()
    engines, restarted = {}, []
    for instance in new.local_instances:
        state = files.read_json(names.engine_state(instance, where.run)) or {}
        running = state.get("digest") if state.get("phase") not in (None, "exited") else None
        before = _digest(old, instance)
        if running is None and before is None:
            engines[instance] = "is started"
        elif (running or before) != engine_digest(new, instance):
            engines[instance] = f"is restarted{_took(entries.get(instance, {}))}"
            restarted.append(instance)
    for instance in old.local_instances if old is not None else ():
        if instance not in new.local_instances:
            engines[instance] = "is stopped"
    return Costs(
        engines=engines,
        restarted=tuple(restarted),
        gateway=_gateway(changes, first=old is None),
        runtime=any(change.key in ("runtime.version", "runtime.device") for change in changes),
    )


def lines(changes: Sequence[Change]) -> Iterator[str]:
    """The settings that differ, one a line, in the file's own words. What may be a secret is not shown."""
    for change in changes:
        if change.key == "engine":
            word = "new" if change.old is None else "removed"
            yield f"[[engine]] {change.engine}: {word}{_model(change.new or change.old)}"
            continue
        place = change.key if change.engine is None else f"{change.key} of {change.engine}"
        if _is_secret(change):
            yield f"{place}: {'removed' if change.new is None else 'new' if change.old is None else 'changed'}"
        else:
            old, new = (_value(change.key, side) for side in (change.old, change.new))
            yield f"{place}: {old} -> {new} ({_EFFECTS[change.effect]})"


def listed(changes: Sequence[Change], price: Costs) -> dict[str, object]:
    """The same for programs, sizes in bytes and times in seconds."""
    return {
        "changes": [
            {
                "key": change.key,
                "engine": change.engine,
                "effect": change.effect,
                **(
                    {}
                    if _is_secret(change) or change.key == "engine"
                    else {"old": _bare(change.old), "new": _bare(change.new)}
                ),
            }
            for change in changes
        ],
        "engines": dict(price.engines),
        "gateway": price.gateway or None,
        "runtime": price.runtime,
    }


def _gateway(changes: Sequence[Change], *, first: bool) -> str:
    mine = [change for change in changes if change.key.split(".")[0] in ("gateway", "auth", "audit")]
    if any(change.effect == "restart" for change in mine):
        return RESTART
    return RELOAD if changes or first else ""


def _digest(config: Config | None, instance: str) -> str | None:
    if config is None or instance not in config.local_instances:
        return None
    return engine_digest(config, instance)


def _took(entry: Mapping[str, object]) -> str:
    load_s = entry.get("load_s")
    return f"; its last start took {format_duration(load_s)}" if isinstance(load_s, (int, float)) else ""


def _model(engine: object) -> str:
    return f", model {engine.model}" if isinstance(engine, Engine) else ""


def _is_secret(change: Change) -> bool:
    """Whether it belongs to an engine's environment, or to a flag with a secret's name."""
    return change.key.startswith("engine.env.") or (
        change.key not in BY_PATH and is_secret_name(change.key.rpartition(".")[2])
    )


def _value(key: str, value: object) -> str:
    """A value as the file would say it."""
    if value is None:
        return "(not set)"
    row = BY_PATH.get(key)
    return USERINFO.sub(HIDDEN, show(value) if row is None else spell(row, value))


def _bare(value: object) -> object:
    """A value for programs, without the passwords of its URLs."""
    if isinstance(value, (tuple, list)):
        return [_bare(one) for one in value]
    return USERINFO.sub(HIDDEN, value) if isinstance(value, str) else value
