"""Where boxes keep things on disk, and the one lock.

    CACHE/roots/DISTRO-KEY/     a base root, made once, never written again
    CACHE/layers/NAME/          tree/ (an overlay's upper directory) and layer.json (what lies below it)
    CACHE/boxes/NAME/           state.json, upper/, work/, merged/ (mounted while the box lives), console.log

CACHE is $LLM_APPLIANCE_CACHE, else `llm-appliance` in the user's cache directory: it outlives the checkout, and
everything in it can be made again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")


class BoxError(Exception):
    """A box could not do what was asked; the text says what and why."""


def cache() -> Path:
    """The cache directory, made if missing."""
    given = os.environ.get("LLM_APPLIANCE_CACHE")
    above = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(given) if given else Path(above) / "llm-appliance"
    path.mkdir(parents=True, exist_ok=True)
    return path


def place(kind: str, name: str) -> Path:
    """The directory of one root, layer or box; refuses a name that is not a plain word."""
    if not NAME.fullmatch(name):
        raise BoxError(f"{name!r} is no name for a box or layer: small letters, digits and -, 41 at most")
    path = cache() / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where the file is missing or no JSON object."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a file in one step."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(value, indent=1) + "\n")
    fresh.replace(path)


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold `CACHE/NAME.lock`; waits for whoever has it (a base root takes about a minute)."""
    with open(cache() / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
