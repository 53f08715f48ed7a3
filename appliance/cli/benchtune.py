"""`bench --tune`: what follows from a ladder, shown as a drop-in and written after asking.

The drop-in replaces the one of a former run. Were the configuration invalid with it, what was there comes back.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from appliance import names
from appliance.config import source
from appliance.config.model import Config, Engine
from appliance.errors import ConfigInvalid, Failed, Unreachable, UsageError
from appliance.host import files
from appliance.policy import tuning
from appliance.policy.loadladder import Best
from appliance.policy.tuning import Setting, Tuning

from . import output
from .benchrun import Bench

NAME = "90-bench.toml"


def path_of(config_path: str) -> Path:
    """Where the drop-in lies."""
    return Path(config_path).parent / names.DROPIN_DIRECTORY / NAME


def check(args: argparse.Namespace) -> None:
    """Refuse before minutes of measuring what would be refused after. Raises ApplianceError."""
    if args.url:
        raise UsageError("--tune sets up this machine's engines: it goes without --url")
    found = source.load(args.config)
    if found.config is None:
        raise ConfigInvalid(found.problems)
    directory = path_of(args.config).parent
    there = directory if directory.exists() else directory.parent
    if not os.access(there, os.W_OK):
        raise Unreachable(f"{there} cannot be written", hint="run the command as root (sudo)")


def settle(args: argparse.Namespace, config: Config | None, bench: Bench, best: Best | None) -> dict[str, object]:
    """Derive, show, ask, write; what was done, for a program. Raises ApplianceError."""
    assert config is not None and bench.engine is not None
    tell = output.note if args.json else print
    if best is None:
        raise Failed(
            "no step is a place to work at: in each of them requests failed or missed the target; nothing is derived",
            hint="--target-ttft and --target-itl of what can be reached; or --concurrency with fewer at once",
        )
    found = tuning.derive(config, bench.engine, best)
    for text in found.notes:
        tell(f"note: {text}")
    if not found.settings:
        tell("Nothing to change.")
        return _told(found, None)
    head = (f"Written by llm-appliance bench --tune, {time.strftime('%Y-%m-%d')}.", bench.title())
    path, text = path_of(args.config), tuning.dropin(found.settings, bench.engine.name, head)
    tell(f"\n{path}:\n\n" + "".join(f"    {line}\n" if line else "\n" for line in text.splitlines()))
    if not (args.yes or _agreed(path, args.json)):
        return _told(found, None)
    _write(args.config, path, text.encode())
    for overridden in _overridden(args.config, bench.engine, found):
        tell(f"note: {overridden}")
    tell("Written. To make it take effect: llm-appliance apply")
    return _told(found, path)


def _agreed(path: Path, as_json: bool) -> bool:
    if as_json or not sys.stdin.isatty():
        output.note("not written: nobody can be asked here (--yes writes it)")
        return False
    try:
        answer = input(f"write {path}? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        output.note("not written")
        return False
    return True


def _write(config_path: str, path: Path, content: bytes) -> None:
    before = path.read_bytes() if path.exists() else None
    path.parent.mkdir(mode=0o755, exist_ok=True)
    files.replace(path, content)
    found = source.load(config_path)
    if found.config is not None:
        return
    if before is None:
        path.unlink()
    else:
        files.replace(path, before)
    raise ConfigInvalid(found.problems)


def _overridden(config_path: str, engine: Engine, found: Tuning) -> list[str]:
    """Settings that a later drop-in keeps from being in force."""
    raw: Any = source.load(config_path).raw
    kept = []
    for setting in found.settings:
        section, _, key = setting.path.rpartition(".")
        if section == "engine.vllm":
            table = next(one for one in raw["engine"] if one.get("name", "default") == engine.name)["vllm"]
        else:
            table = raw["gateway"]["admission"]
        if table[key] != setting.value:
            kept.append(f"a later drop-in sets {setting.path} = {table[key]}, which holds")
    return kept


def _told(found: Tuning, written: Path | None) -> dict[str, object]:
    def one(setting: Setting) -> dict[str, object]:
        return {"key": setting.path, "value": setting.value, "was": setting.was, "reason": setting.reason}

    return {
        "settings": [one(setting) for setting in found.settings],
        "notes": list(found.notes),
        "written": None if written is None else str(written),
    }
