"""`llm-appliance replay FILE`: a recorded timeline through the policies that the supervisor runs.

Every change of verdict, cause or action is a line: what the supervisor would have said and done, and when. Settings of
`[supervisor]` come from the recording, else from the configuration; `--set` changes them, to try other limits.

Exit status: 0 whatever was found, 2 for a recording or a setting that is malformed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import chain, islice
from typing import Any

from appliance import names
from appliance.config import source
from appliance.config.model import Supervisor
from appliance.config.parse import parse
from appliance.config.table import BY_PATH
from appliance.errors import EXIT_OK, ConfigInvalid, UsageError
from appliance.policy.judge import Judge
from appliance.policy.judgement import Judgement
from appliance.samples import Setting
from appliance.wire import timeline
from appliance.wire.findings import Reader
from appliance.wire.timeline import Recorded

from . import output

STANDARD_INPUT = "-"
LOOKED_AHEAD = 1000  # samples among which an engine is named, if the recording names any
COLOURS = {"ok": "green", "suspect": "yellow", "unknown": "grey", "hung": "red", "failed": "red", "held": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`FILE [--set KEY=VALUE]...`."""
    parser.add_argument(
        "file", metavar="FILE", help="the recording, for instance an incident's timeline.jsonl; - reads standard input"
    )
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="changes",
        help="another setting of [supervisor], e.g. supervisor.hang.confirm=60s; may be given again",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print a line at every change of verdict, cause or action."""
    with _opened(args.file) as stream:
        name = "standard input" if args.file == STANDARD_INPUT else args.file
        recording = timeline.read(iter(lambda: stream.readline(timeline.LONGEST + 2), b""), name)
        limits = limits_of(recording.raw, args.config, args.changes)
        changes = replayed(recording.samples, recording.setting, limits)
        if args.json:
            for found in changes:
                print(json.dumps(asdict(found), ensure_ascii=False), flush=True)
        else:
            _print_table(changes)
    for src, count in recording.unknown.items():
        output.note(f"{name}: {count} lines with src {output.clean(src)} are not known here and were passed over")
    return EXIT_OK


def _opened(file: str) -> Any:
    if file == STANDARD_INPUT:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    try:
        return open(file, "rb")
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise UsageError(f"{file}: {words}", hint="llm-appliance incidents lists what was recorded") from error


def _print_table(changes: Iterator[Judgement]) -> None:
    """All changes as a table; what was found before a malformed line is shown as well."""
    rows = []
    try:
        for found in changes:
            verdict = output.paint(found.verdict, COLOURS[found.verdict])
            told = "; ".join((found.reason, *(fact for fact in found.evidence if fact not in found.reason)))
            rows.append((f"{found.t:.1f}", found.engine, verdict, found.cause, found.action, told))
    finally:
        output.table(rows, ("T", "ENGINE", "VERDICT", "CAUSE", "ACTION", "REASON"))


# --- the fold -----------------------------------------------------------------------------------------


class _Engine:
    """One engine's judge, with what reads its lines, and what was printed last."""

    def __init__(self, setting: Setting, limits: Supervisor, unit: str) -> None:
        self._reader = Reader(unit)
        self._judge = Judge(setting, limits)
        self._last: Judgement | None = None

    def feed(self, recorded: Recorded) -> None:
        """A sample, and what is found in it."""
        self._judge.feed(recorded.sample)
        for finding in self._reader.read(recorded.sample):
            self._judge.feed(finding)

    def changes(self, now: float) -> Iterator[Judgement]:
        """What is news at `now`."""
        for found in (*self._judge.concluded(), self._judge.judged(now)):
            if found.differs(self._last):
                self._last = found
                yield found

    def settled(self) -> Iterator[Judgement]:
        """What an end that the recording stops at amounts to when nothing more is heard."""
        if self._judge.settles_at is not None:
            yield from self.changes(self._judge.settles_at)


def replayed(samples: Iterable[Recorded], setting: Setting, limits: Supervisor) -> Iterator[Judgement]:
    """Every change of an engine's judgement, in time order.

    A line that names no engine is about all of them. A recording that names none has one engine, the setting's.
    """
    stream = iter(samples)
    first = list(islice(stream, LOOKED_AHEAD))
    named = sorted({recorded.engine for recorded in first if recorded.engine})
    unit = names.engine_unit if len(named) > 1 else lambda engine: ""
    engines = {name: _Engine(replace(setting, engine=name), limits, unit(name)) for name in named or [setting.engine]}
    now: float | None = None
    for recorded in chain(first, stream):
        if now is not None and recorded.sample.t > now:
            for engine in engines.values():
                yield from engine.changes(now)
        now = recorded.sample.t
        if recorded.engine and recorded.engine not in engines:
            engines[recorded.engine] = _Engine(replace(setting, engine=recorded.engine), limits, unit(recorded.engine))
        for name, engine in engines.items():
            if recorded.engine in ("", name):
                engine.feed(recorded)
    if now is not None:
        for engine in engines.values():
            yield from engine.changes(now)
            yield from engine.settled()


# --- the settings -----------------------------------------------------------------------------------------


def limits_of(recorded: Mapping[str, Any], config: str, changes: Iterable[str]) -> Supervisor:
    """`[supervisor]` of the recording, else of the configuration, else the defaults; with `changes` made.

    Raises UsageError and ConfigInvalid.
    """
    raw = recorded.get("supervisor")
    if raw is None:
        raw = _configured(config)
    elif not isinstance(raw, dict):
        raise UsageError("config.supervisor of the recording is not an object")
    made = _spelt(raw, "supervisor")
    for change in changes:
        _change(made, change)
    found, problems = parse({"supervisor": made})
    if found is None:
        raise ConfigInvalid(problems)
    return found.supervisor


def _configured(config: str) -> Mapping[str, Any]:
    if config == names.CONFIG_FILE and not os.path.exists(config):
        return {}
    found = source.effective(config)
    if found.config is None:
        raise ConfigInvalid(found.problems)
    raw = found.raw.get("supervisor", {})
    return raw if isinstance(raw, dict) else {}


def _spelt(raw: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A copy of a table; a duration may be a number of seconds, as programs write it."""
    made: dict[str, Any] = {}
    for key, value in raw.items():
        row = BY_PATH.get(f"{path}.{key}")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if isinstance(value, dict):
            made[key] = _spelt(value, f"{path}.{key}")
        elif row is not None and row.kind == "duration" and number:
            made[key] = f"{value}s"
        else:
            made[key] = value
    return made


def _change(raw: dict[str, Any], change: str) -> None:
    """`supervisor.hang.confirm=60s` into the table of `supervisor`."""
    path, equals, text = change.partition("=")
    head, *keys = path.strip().split(".")
    if not equals or head != "supervisor" or not keys or path.strip() not in BY_PATH:
        raise UsageError(
            f"--set {change}: write a setting of [supervisor] and its value, like supervisor.hang.confirm=60s",
            hint="llm-appliance config explain supervisor.hang",
        )
    table = raw
    for key in keys[:-1]:
        table = table.setdefault(key, {})
    table[keys[-1]] = _value(text.strip().strip('"'), BY_PATH[path.strip()].kind)


def _value(text: str, kind: str) -> object:
    """The value as TOML would have given it to the row."""
    if kind == "bool" and text in ("true", "false"):
        return text == "true"
    if kind == "int":
        try:
            return int(text)
        except ValueError:
            return text
    return text
