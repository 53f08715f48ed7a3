"""`llm-appliance config`: `show [--effective]`, `explain KEY`, `import FILE [--write]` and `snapshot [--keep]`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from appliance import names
from appliance.config import diff, sample, source
from appliance.config.model import Config
from appliance.config.places import Path
from appliance.config.source import Effective
from appliance.config.table import ROWS, TABLES
from appliance.config.values import show, spell
from appliance.errors import EXIT_OK, ConfigInvalid, UsageError
from appliance.host import files
from appliance.wire.redact import HIDDEN, USERINFO, is_secret_name

from . import configimport, output

DEFAULT = "default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`show [--effective]`, `explain [KEY]`, `import FILE [--write]`, `snapshot [--keep]`."""
    verbs = parser.add_subparsers(dest="what", metavar="show|explain|import|snapshot", required=True)
    shown = verbs.add_parser("show", help="what the files set, and where", allow_abbrev=False)
    shown.add_argument("--effective", action="store_true", help="every setting in force, defaults too")
    explained = verbs.add_parser("explain", help="what a key means", allow_abbrev=False)
    explained.add_argument("key", nargs="?", metavar="KEY", help="a dotted key, like supervisor.hang.confirm")
    configimport.add_arguments(
        verbs.add_parser(
            "import", help="settings for a vLLM started by a compose file, script or command", allow_abbrev=False
        )
    )
    snapshot = verbs.add_parser("snapshot", help="all files merged into one", allow_abbrev=False)
    snapshot.add_argument(
        "--keep", action="store_true", help="write it as the last good configuration, unless there is one already"
    )


def run(args: argparse.Namespace) -> int:
    """Print the settings, one explanation, or the merged file; import foreign ones."""
    return {"show": _show, "explain": _explain, "import": configimport.run, "snapshot": _snapshot}[args.what](args)


def _snapshot(args: argparse.Namespace) -> int:
    """Until something was applied, what a fresh installation has is what a bad edit falls back to: `--keep`."""
    content = source.snapshot(args.config)
    target = os.path.join(os.path.dirname(args.config), names.LAST_GOOD_NAME)
    if not args.keep:
        print(content.decode(), end="")
    elif not os.path.exists(target):
        files.replace(target, content)
    return EXIT_OK


def _show(args: argparse.Namespace) -> int:
    found = source.effective(args.config)
    if found.config is None:
        raise ConfigInvalid(found.problems)
    rows = [row for row in settings(found.config, found) if args.effective or row["from"] != DEFAULT]
    if args.json:
        output.print_json(
            {
                "origin": found.origin,
                "files": found.files,
                "text_digest": found.text_digest,
                "problems": [str(problem) for problem in found.problems],
                "settings": rows,
            }
        )
        return EXIT_OK
    if found.origin == "last-good":
        output.note(f"{args.config} is invalid; this is the last configuration that was applied ({found.files[0]})")
    if not rows:
        print("nothing is set; all defaults (--effective lists them)")
        return EXIT_OK
    output.table(([row["key"], row["toml"], row["from"]] for row in rows), ("KEY", "VALUE", "FROM"))
    return EXIT_OK


def settings(config: Config, found: Effective) -> Iterator[dict[str, Any]]:
    """Every setting in table order, engines last: `key`, `engine` (its name, or None), `toml` (the value), `from`."""
    for row in ROWS:
        if row.table.partition(".")[0] != "engine":
            yield _setting(
                found, row.path, None, tuple(row.path.split(".")), spell(row, diff.value_of(config, row.path))
            )
    for index, engine in enumerate(config.engines):
        for row in ROWS:
            if row.table != "engine":
                continue
            value = getattr(engine, row.key)
            path = ("engine", index, row.key)
            if row.kind not in ("env", "flags"):
                yield _setting(found, row.path, engine.name, path, spell(row, value))
                continue
            for key, member in value.items():
                toml = f'"{HIDDEN}"' if is_secret_name(key) else show(member)
                yield _setting(found, f"{row.path}.{key}", engine.name, (*path, key), toml)


def _setting(found: Effective, key: str, engine: str | None, path: Path, toml: str) -> dict[str, Any]:
    shown = key if engine is None else key.replace("engine.", f"engine[{engine}].", 1)
    return {"key": shown, "engine": engine, "toml": USERINFO.sub(HIDDEN, toml), "from": _origin(found, path)}


def _origin(found: Effective, path: Path) -> str:
    """`FILE:LINE` of what a file says, DEFAULT where no file says it."""
    value: Any = found.raw
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return DEFAULT
    file, line = found.place(path)
    return f"{file}:{line}" if line else file or DEFAULT


def _explain(args: argparse.Namespace) -> int:
    if not args.key:
        known = [{"key": name, "help": about} for name, about in TABLES.items()]
        if args.json:
            output.print_json(known)
        else:
            output.table(([row["key"], row["help"]] for row in known), ("TABLE", "ABOUT"))
        return EXIT_OK
    told = sample.explain(args.key)
    if told is None:
        near = " or ".join(sample.nearest(args.key))
        raise UsageError(
            f"there is no setting {args.key!r}" + (f"; did you mean {near}?" if near else ""),
            hint="llm-appliance config explain lists the tables",
        )
    if args.json:
        output.print_json(told)
        return EXIT_OK
    print(output.paint(told["key"], "bold"))
    for field, value in told.items():
        if field == "keys":
            print(f"  keys      {'  '.join(value)}")
        elif field != "key" and value:
            print(f"  {field:<9} {value}")
    return EXIT_OK
