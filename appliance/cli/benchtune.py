"""`bench --tune`: what follows from a ladder, shown as a drop-in and written after asking.

What a former run has written, and this one does not derive anew, is kept.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from appliance.config import source
from appliance.config.model import Config, Engine
from appliance.errors import ConfigInvalid, Failed, Unreachable, UsageError
from appliance.policy import tuning
from appliance.policy.loadladder import Best
from appliance.policy.tuning import Setting, Tuning

from . import dropin, output
from .benchrun import Bench

NAME = "90-bench.toml"


def check(args: argparse.Namespace) -> None:
    """Refuse before minutes of measuring what would be refused after. Raises ApplianceError."""
    if args.url:
        raise UsageError("--tune sets up this machine's engines: it goes without --url")
    found = source.load(args.config)
    if found.config is None:
        raise ConfigInvalid(found.problems)
    directory = dropin.path_of(args.config, NAME).parent
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
    path = dropin.path_of(args.config, NAME)
    text = document(path, found, bench.engine.name, head)
    tell(f"\n{path}:\n\n" + "".join(f"    {line}\n" if line else "\n" for line in text.splitlines()))
    if not args.yes and (args.json or not dropin.agreed(path)):
        output.note("not written (--yes writes it without asking)")
        return _told(found, None)
    dropin.write(args.config, path, text)
    for overridden in _overridden(args.config, bench.engine, found):
        tell(f"note: {overridden}")
    tell("Written. To make it take effect: llm-appliance apply")
    return _told(found, path)


def document(path: Path, found: Tuning, engine: str, head: Sequence[str]) -> str:
    """The drop-in: what was derived, and what former runs wrote into it that this one does not derive anew."""
    former: Any = source.load(str(path)).raw
    new = {one.path for one in found.settings}
    settings = [*found.settings]
    settings += _kept("gateway.admission", former.get("gateway", {}).get("admission", {}), new)
    others = ""
    for one in former.get("engine", ()):
        name, flags = one.get("name", "default"), one.get("vllm", {})
        if name == engine:
            settings += _kept("engine.vllm", flags, new)
        elif kept := _kept("engine.vllm", flags):
            others += tuning.dropin(kept, name, ())
    return tuning.dropin(settings, engine, head) + others


def _kept(section: str, table: Mapping[str, object], new: Container[str] = ()) -> list[Setting]:
    """Whole numbers of a table of the file, which are all that is ever written, but those that are written anew."""
    paths = {f"{section}.{key}": value for key, value in table.items()}
    return [Setting(path, value, value, "of a former run") for path, value in paths.items()
            if type(value) is int and path not in new]  # fmt: skip


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
