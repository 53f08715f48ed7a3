"""What changes from one configuration to another, and what each change costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from appliance.config.model import Config, Engine
from appliance.config.table import ROWS, Effect, Row


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs. `engine` is the engine's name for keys below `engine.`.

    An engine that comes or goes is one change of the key `engine`, with None for the side that lacks it.
    """

    key: str
    old: object
    new: object
    effect: Effect
    engine: str | None = None


def changes(old: Config, new: Config) -> tuple[Change, ...]:
    """Every difference, in the order of the table: the general settings, then engine by engine.

    Engines are told apart by name; their order in the file is no difference.
    """
    found = [
        Change(row.path, before, after, row.effect)
        for row in ROWS
        if row.table.partition(".")[0] != "engine" and (before := _of(old, row)) != (after := _of(new, row))
    ]
    olds = {engine.name: engine for engine in old.engines}
    news = {engine.name: engine for engine in new.engines}
    for name in dict.fromkeys([*news, *olds]):
        before, after = olds.get(name), news.get(name)
        if before is None or after is None:
            found.append(Change("engine", before, after, "restart", name))
        else:
            found += _engine(before, after)
    return tuple(found)


def _engine(old: Engine, new: Engine) -> list[Change]:
    found: list[Change] = []
    for row in ROWS:
        if row.table != "engine":
            continue
        before, after = getattr(old, row.key), getattr(new, row.key)
        if row.kind in ("env", "flags"):
            found += _members(row, before, after, new.name)
        elif before != after:
            # An engine that moves between this machine and elsewhere starts or stops here.
            effect = "restart" if row.key == "remote" and bool(before) != bool(after) else row.effect
            found.append(Change(row.path, before, after, effect, new.name))
    return found


def _members(row: Row, old: Mapping[str, object], new: Mapping[str, object], engine: str) -> list[Change]:
    """Differences of a table of free keys, each with its own dotted key; None is absent."""
    return [
        Change(f"{row.path}.{key}", old.get(key), new.get(key), row.effect, engine)
        for key in dict.fromkeys([*new, *old])
        if old.get(key) != new.get(key)
    ]


def value_of(config: Config, path: str) -> Any:
    """The value of a setting outside `engine.`. Raises AttributeError for a key that is not in the table."""
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _of(config: Config, row: Row) -> Any:
    return value_of(config, row.path)
