"""`llm-appliance models list|pull|rm`: model files on this machine.

A model belongs to the engines that name it in the configuration; what no engine names can be removed.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from appliance import names
from appliance.config import source
from appliance.config.model import Config
from appliance.errors import EXIT_FOUND, EXIT_OK, ConfigInvalid, Failed, UsageError
from appliance.host import files, modelstore, places, runtimes
from appliance.quantity import format_size

from . import output
from .runtimejob import run_job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own verbs."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="which models there are, where, and who uses them")
    pull = actions.add_parser("pull", help="fetch what the configuration names and is not there yet")
    pull.add_argument("model", nargs="?", metavar="MODEL", help="only to check that it is one of them")
    remove = actions.add_parser("rm", help="remove the files of a model that no engine uses")
    remove.add_argument("model", metavar="MODEL")


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    found = source.effective(args.config)
    if found.config is None:
        raise ConfigInvalid(found.problems)
    if args.action == "list":
        return _list(found.config, args.json)
    if args.action == "pull":
        return _pull(found.config, args.model)
    return _remove(found.config, args.model)


def models_root(config: Config) -> str:
    """The directory of fetched models."""
    return places.from_environment().under_state(config.models.directory)


def _list(config: Config, as_json: bool) -> int:
    """Print what is configured, then what merely lies there. 1 when a configured model is not there."""
    configured = modelstore.configured(config, models_root(config))
    told = files.read_json(places.from_environment().under_run(names.RUNTIME_STATE)) or {}
    reasons = told.get("models")
    rows: list[dict[str, object]] = []
    for model in configured:
        state = modelstore.standing(model)
        if state == modelstore.MISSING and isinstance(reasons, dict):
            heard = str(reasons.get(model.model, state))
            state = state if heard == modelstore.READY else heard
        rows.append(_row(model.model, model.path, state, model.engines))
    known = {model.path for model in configured}
    for name, path in modelstore.stored(models_root(config)):
        if path not in known:
            rows.append(_row(name, path, "not used", ()))
    if as_json:
        output.print_json(rows)
    else:
        cells = [(r["model"], _shown(r["size"]), r["state"], ", ".join(_engines(r)) or "-", r["path"]) for r in rows]
        output.table(cells, ("MODEL", "SIZE", "STATE", "ENGINES", "PATH"))
    return EXIT_FOUND if any(_engines(row) and row["state"] != modelstore.READY for row in rows) else EXIT_OK


def _row(model: str, path: str, state: str, engines: tuple[str, ...]) -> dict[str, object]:
    size = runtimes.size(path) if os.path.isdir(path) else None
    return {"model": model, "path": path, "size": size, "state": state, "engines": list(engines)}


def _engines(row: dict[str, object]) -> list[str]:
    engines = row["engines"]
    return [str(engine) for engine in engines] if isinstance(engines, list) else []


def _shown(size: object) -> str | None:
    return format_size(size) if isinstance(size, int) else None


def _pull(config: Config, wanted: str | None) -> int:
    configured = modelstore.configured(config, models_root(config))
    if wanted is not None and wanted not in {model.model for model in configured}:
        raise UsageError(
            f"no engine uses {wanted}",
            hint=f'name it in the configuration ([[engine]] model = "{wanted}"); llm-appliance apply then fetches it',
        )
    output.note(run_job(output.note))
    return EXIT_OK


def _remove(config: Config, wanted: str) -> int:
    """Remove one model's files. Raises Failed when an engine uses it or the files are the operator's own."""
    root = models_root(config)
    users = [engine for model in modelstore.configured(config, root) for engine in model.engines
             if wanted in (model.model, model.path)]  # fmt: skip
    if users:
        raise Failed(
            f"{wanted} is used by {', '.join(users)}", hint="take it out of the configuration and apply that first"
        )
    if wanted.startswith("/"):
        raise Failed(f"{wanted} is a directory of your own: remove it yourself", hint=f"rm -r {wanted}")
    path = next((path for name, path in modelstore.stored(root) if name == wanted), None)
    if path is None:
        raise Failed(f"there are no files of {wanted} in {root}", hint="llm-appliance models list")
    real = os.path.realpath(path)
    if real != os.path.join(os.path.realpath(root), os.path.relpath(path, root)):  # root deletes nothing behind a link
        raise Failed(
            f"{path} leads by a link to {real}: remove it yourself",
            hint="remove the link, then what it leads to where nothing else needs that",
        )
    freed = runtimes.size(path)
    Path(path, names.RUNTIME_COMPLETE).unlink(missing_ok=True)  # first: half a model must not pass for a whole one
    shutil.rmtree(path)
    output.note(f"{wanted} is removed, {format_size(freed)} are free again")
    return EXIT_OK
