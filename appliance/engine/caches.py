"""Compile caches of an engine: one directory for what each runtime, GPU and model needs (`policy/compilecaches`).

The one of this start is made and counts as used now; it is moved away first where the ladder wishes that; what was not
used for longest is removed, beside the start and never before it. Nothing here stops a start.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from appliance import names
from appliance.host.journal import NOTICE, WARNING
from appliance.policy import compilecaches

_DONE = ".caches-moved"
_GOING = ".removed-"  # a directory that is being deleted is none that a start could find half


def settle(cache: str, key: str, wish: str, log: Callable[[int, str], None]) -> None:
    """Make the directory `key` below the engine's `cache` ready; `wish` names a wish to have it moved away."""
    place = Path(cache, names.COMPILED)
    try:
        moved = move_away(cache, key, wish)
    except OSError as error:
        log(WARNING, f"compile caches cannot be moved away: {error}")
    else:
        if moved:
            log(NOTICE, f"compile caches moved away: {place}/{moved}")
    try:
        place.mkdir(mode=0o750, parents=True, exist_ok=True)
        (place / key).mkdir(mode=0o750, exist_ok=True)
        os.utime(place / key)
        used = {entry.name: entry.stat().st_mtime for entry in os.scandir(place) if not entry.name.startswith(".")}
        for one in compilecaches.superfluous(used, key):
            os.rename(place / one.name, place / f"{_GOING}{one.name}")
            log(NOTICE, f"compile caches are removed: {one.name} ({one.reason})")
        going = [place / entry.name for entry in os.scandir(place) if entry.name.startswith(_GOING)]
    except OSError as error:
        log(WARNING, f"compile caches cannot be tidied: {error}")
        return
    if going:
        threading.Thread(target=_delete, args=(going,), name="compile caches", daemon=True).start()


def move_away(cache: str, key: str, wish: str) -> str:
    """Move what was compiled for `key` aside, once for each wish; its new name, empty for none. Raises OSError."""
    done = Path(cache, _DONE)
    try:
        if not wish or done.read_text(errors="replace") == wish:
            return ""
    except FileNotFoundError:
        pass
    place = Path(cache, names.COMPILED)
    place.mkdir(mode=0o750, parents=True, exist_ok=True)
    moved = compilecaches.broken(key, os.listdir(place))
    try:
        os.rename(place / key, place / moved)
    except FileNotFoundError:
        moved = ""
    done.write_text(wish)
    return moved


def _delete(directories: list[Path]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
