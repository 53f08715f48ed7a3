"""A TOML mapping becomes a `Config`, or every problem in it at once.

A value that does not fit is replaced by its default for as long as this runs, so that one mistake hides no other; the
`Config` that comes out then is not handed on. The laws across fields are `check`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from appliance.config import check, model
from appliance.config.places import Path
from appliance.config.table import BY_PATH, ROWS, TABLES, keys_of
from appliance.config.values import Wrong, read, show
from appliance.errors import Problem
from appliance.wire import vllmflags

Place = Callable[[Path], tuple[str | None, int | None]]

_TYPES: dict[str, type] = {
    "gateway": model.Gateway,
    "gateway.admission": model.Admission,
    "gateway.timeouts": model.Timeouts,
    "gateway.stream": model.Stream,
    "auth": model.Auth,
    "audit": model.Audit,
    "supervisor": model.Supervisor,
    "supervisor.hang": model.Hang,
    "supervisor.restart": model.Restart,
    "runtime": model.Runtime,
    "models": model.Models,
    "network": model.Network,
    "engine": model.Engine,
}


def nowhere(path: Path) -> tuple[None, None]:
    """The place of a mapping that came from no file."""
    return None, None


def parse(raw: Mapping[str, Any], place: Place = nowhere) -> tuple[model.Config | None, tuple[Problem, ...]]:
    """(the configuration, or None when there is an error; all problems, warnings too, in the order found)."""
    reader = _Reader(raw, place)
    config = reader.config()
    check.laws(config, reader.say)
    problems = tuple(dict.fromkeys(reader.problems))
    return (None if any(p.severity == "error" for p in problems) else config), problems


class _Reader:
    """Walks the mapping beside the table's rows and collects problems."""

    def __init__(self, raw: Mapping[str, Any], place: Place) -> None:
        self.raw = raw
        self.place = place
        self.problems: list[Problem] = []
        self.label: dict[int, str] = {}  # index of an engine -> what messages call it

    def config(self) -> model.Config:
        """The whole mapping."""
        self.unknown("", self.raw, ())
        parts = {
            name: self.table(name, self.raw.get(name, {}), (name,))
            for name in TABLES
            if "." not in name and name != "engine"
        }
        return model.Config(**parts, engines=self.engines())

    def table(self, name: str, value: object, path: Path) -> Any:
        """One table and the tables in it, as its type of the model."""
        if not isinstance(value, Mapping):
            self.wrong(path, f"{show(value)} is not a table", f"write [{name}] and its keys below it")
            value = {}
        self.unknown(name, value, path)
        fields: dict[str, object] = {}
        for key, row in keys_of(name).items():
            if key not in value:
                continue
            if row is None:
                fields[key] = self.table(f"{name}.{key}", value[key], (*path, key))
                continue
            try:
                fields[key] = read(row, value[key])
            except Wrong as wrong:
                for one in wrong.each:
                    part = () if one.member is None else (one.member,)
                    self.wrong((*path, key, *part), one.message, one.remedy)
                if row.kind == "name":  # so that no law takes it for the default engine
                    fields[key] = f"engine-{path[-1]}"
        flags = fields.get("vllm")
        if isinstance(flags, dict):
            fields["vllm"] = self.flags(flags, (*path, "vllm"))
        return _TYPES[name](**fields)

    def engines(self) -> tuple[model.Engine, ...]:
        """`[[engine]]`; a file without any has the default one."""
        value = self.raw.get("engine")
        if value is None:
            return (model.Engine(),)
        if isinstance(value, Mapping):
            self.wrong(("engine",), "is a single table", "write [[engine]], in double brackets")
            value = [value]
        if not isinstance(value, list):
            self.wrong(("engine",), f"{show(value)} is not a table", "write [[engine]] and its keys below it")
            return (model.Engine(),)
        if len(value) > 1:
            for index, table in enumerate(value):
                name = table.get("name", "default") if isinstance(table, Mapping) else ""
                self.label[index] = f"engine {name}: " if isinstance(name, str) else f"engine {index + 1}: "
        return tuple(self.table("engine", table, ("engine", index)) for index, table in enumerate(value))

    def flags(self, value: dict[str, object], path: Path) -> dict[str, object]:
        """`[engine.vllm]`, without the flags that may not be passed on."""
        clean, findings = vllmflags.check(value)
        for finding in findings:
            remedy = finding.remedy
            if f"engine.{finding.flag}" in BY_PATH and finding.flag not in ("model",):
                remedy = f"{finding.flag} is a key of [[engine]]: write it above [engine.vllm]"
            self.say((*path, finding.flag), finding.message, remedy, finding.severity)
        return clean

    def unknown(self, name: str, value: Mapping[str, object], path: Path) -> None:
        """Refuse keys that no row and no table knows."""
        known = keys_of(name)
        for key in value:
            if key not in known:
                self.wrong((*path, key), "there is no such setting", _nearest(name, key, list(known)))

    def wrong(self, path: Path, message: str, remedy: str) -> None:
        """An error at a path."""
        self.say(path, message, remedy)

    def say(self, path: Path, message: str, remedy: str = "", severity: str = "error") -> None:
        """A problem at a path, with its place; the engine is named where there are several."""
        file, line = self.place(path)
        key = ".".join(part for part in path if isinstance(part, str))
        index = path[1] if path[0] == "engine" and len(path) > 1 else None
        label = self.label.get(index, "") if isinstance(index, int) else ""
        self.problems.append(Problem(key, label + message, remedy, file, line, severity))


def _nearest(table: str, key: str, known: list[str]) -> str:
    """What a misspelt or misplaced key was meant to be."""
    from difflib import get_close_matches  # only a wrong file pays for the import

    prefix = f"{table}." if table else ""
    elsewhere = [row.path for row in ROWS if row.key == key] + [name for name in TABLES if name.endswith(f".{key}")]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    flag = key.replace("-", "_")
    if table == "engine" and (flag in vllmflags.table().flags or flag in vllmflags.LEGACY):
        return f"{flag} is a flag of vLLM: write it below [engine.vllm]"
    near = get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    far = get_close_matches(key, [row.key for row in ROWS], n=1, cutoff=0.75)
    if far:
        return f"did you mean {next(row.path for row in ROWS if row.key == far[0])}?"
    return f"known here: {', '.join(known)}"
