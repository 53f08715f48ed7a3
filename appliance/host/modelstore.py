"""Model files on this machine: where each configured model lies, and whether an engine can be started with it.

A model that was fetched has `.complete` in its directory, written last. A directory that the operator names is used
where it is and never copied; it only has to be readable for the user that engines run as.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from appliance import names
from appliance.config.model import Config
from appliance.wire.vllmmodels import references

from .access import ENTER, READ, Account, account, allowed

READY = "ready"
MISSING = "not fetched yet"


@dataclass(frozen=True, slots=True)
class Model:
    """One model that engines need: its reference (`wire/vllmmodels`), where its files lie, and the engines."""

    model: str
    path: str
    engines: tuple[str, ...]

    @property
    def is_directory(self) -> bool:
        """Whether the operator keeps the files himself."""
        return self.model.startswith("/")


def configured(config: Config, root: str | None = None) -> tuple[Model, ...]:
    """The models that engines of this machine need (`vllmmodels.references`), each once, in start order.

    `root` replaces `[models] directory`.
    """
    users: dict[str, list[str]] = {}
    for engine in sorted((e for e in config.engines if not e.remote), key=lambda e: e.priority):
        for reference in references(engine):
            users.setdefault(reference, []).append(engine.name)
    directory = config.models.directory if root is None else root
    return tuple(
        Model(model, names.model_directory(model, directory, config.models.source), tuple(engines))
        for model, engines in users.items()
    )


def stored(root: str) -> tuple[tuple[str, str], ...]:
    """(model, path) of everything that was fetched below `root`, whole or in part, named as in the file."""
    found = [(f"builtin:{path.name}", str(path)) for path in _directories(Path(root, "builtin"))]
    for hub in ("huggingface", "modelscope"):
        for path in _directories(Path(root, hub)):
            if _is_model(path):  # from a time when a hub's names had one part: gpt2
                found.append((path.name, str(path)))
            else:
                found += [(f"{path.name}/{below.name}", str(below)) for below in _directories(path)]
    return tuple(found)


def _directories(path: Path) -> list[Path]:
    """What in a directory is one as well, by name; empty where there is none."""
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir() and entry.name[0] != ".")
    except OSError:
        return []


def _is_model(path: Path) -> bool:
    """Whether a model's own files lie here, whole or begun, and not those of an organisation's models below it."""
    return any((path / name).exists() for name in (names.RUNTIME_COMPLETE, "config.json", ".cache"))


def standing(model: Model) -> str:
    """READY, or why an engine cannot be started with this model. Never raises."""
    if model.is_directory:
        return directory_standing(model.path)
    return READY if os.path.exists(f"{model.path}/{names.RUNTIME_COMPLETE}") else MISSING


def directory_standing(path: str, user: str = names.ENGINE_USER) -> str:
    """READY, or what is wrong with a directory of the operator's.

    The builder runs as another user than the engines: what it may not see is no fault, and left to the launcher.
    """
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            return f"{path} is not a directory"
        with os.scandir(path) as found:
            entries = [entry.path for entry in found if entry.is_file() and not entry.name.startswith(".")]
    except FileNotFoundError:
        return f"{path} does not exist"
    except PermissionError:
        return READY
    except OSError as error:
        return f"{path} cannot be looked into: {(error.strerror or '').lower()}"
    if not any(os.path.basename(entry) in ("config.json", "params.json") for entry in entries):
        return f"{path} has no config.json: not the directory of a model"
    who = account(user)
    if who is None:
        return READY  # the engine runs as whoever starts it
    barred = _barred(path, entries, who)
    return READY if barred is None else f"{barred} cannot be read by the user {user}; chmod -R a+rX {path}"


def _barred(path: str, entries: list[str], who: Account) -> str | None:
    """The first of the path's parents and its files that a user may not enter or read.

    Below a tree that the units hide, the directory is mounted for the engine, so that its parents bar nobody.
    """
    parts = os.path.realpath(path).split("/")
    hidden = any(path.startswith(f"{tree}/") for tree in names.HIDDEN)
    for count in range(len(parts) if hidden else 1, len(parts) + 1):
        parent = "/".join(parts[:count]) or "/"
        if not allowed(os.stat(parent), who, ENTER):
            return parent
    return next((entry for entry in entries if not allowed(os.stat(entry), who, READ)), None)
