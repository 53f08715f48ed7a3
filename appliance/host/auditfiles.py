"""The usage ledger's directory as its readers see it; the gateway alone writes it. Everything here may block."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from appliance.wire import auditline

BLOCK = 1 << 16
TAIL = 8 << 20  # bytes that `last_uses` reads: some 15,000 lines, a tenth of a second


@dataclass(frozen=True, slots=True)
class LastUses:
    """When each key was used last, seconds since the epoch; `since` is how far back that was looked up (None: to the
    first line there is)."""

    at: dict[str, float]
    since: float | None


def names(directory: str) -> list[str]:
    """The ledger's files, oldest first. Raises OSError."""
    return sorted(name for name in os.listdir(directory) if auditline.day_of(name) is not None)


def lines(path: str) -> Iterator[bytes]:
    """The lines of a file with their newlines; none for a file that was deleted meanwhile. Raises OSError."""
    try:
        with open(path, "rb") as file:
            yield from file
    except FileNotFoundError:
        return


def head(directory: str) -> auditline.Head | None:
    """What is known to be on the disk; None when it cannot be told."""
    try:
        with open(f"{directory}/{auditline.HEAD_FILE}", "rb") as file:
            return auditline.parse_head(file.read(auditline.HEAD_BYTES))
    except OSError:
        return None


def entries(directory: str, since: float, since_day: str) -> Iterator[dict[str, Any] | None]:
    """The requests that came since a moment (on a day in UTC), in the order in which they ended; None for a line that
    cannot be read. Raises OSError."""
    for name in names(directory):
        if (auditline.day_of(name) or "") < since_day:
            continue
        for raw in lines(f"{directory}/{name}"):
            entry = _entry(raw)
            if entry is None or ("event" not in entry and entry["at"] >= since):
                yield entry


def last_uses(directory: str, wanted: Collection[str], limit: int = TAIL) -> LastUses:
    """When each wanted key was used last, from the ledger's last `limit` bytes. Raises OSError."""
    found: dict[str, float] = {}
    oldest: float | None = None
    left, missing = limit, set(wanted)
    for name in reversed(names(directory)):
        with closing(_backwards(f"{directory}/{name}")) as back:
            for raw in back:
                if not missing:
                    return LastUses(found, None)
                if left <= 0:
                    return LastUses(found, oldest)
                left -= len(raw) + 1
                entry = _entry(raw)
                if entry is None or "event" in entry:
                    continue
                oldest = entry["at"]
                if entry.get("key_id") in missing:
                    missing.discard(entry["key_id"])
                    found[entry["key_id"]] = entry["at"]
    return LastUses(found, None)


def _entry(raw: bytes) -> dict[str, Any] | None:
    """A line's object; its hash is not looked at."""
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(value, dict) or ("event" not in value and not isinstance(value.get("at"), (int, float))):
        return None
    return value


def _backwards(path: str) -> Generator[bytes, None, None]:
    """The lines of a file without their newlines, last first."""
    with open(path, "rb") as file:
        position, rest = file.seek(0, os.SEEK_END), b""
        while position > 0:
            size = min(BLOCK, position)
            position -= size
            file.seek(position)
            first, *whole = (file.read(size) + rest).split(b"\n")
            yield from (line for line in reversed(whole) if line)
            rest = first
        if rest:
            yield rest
