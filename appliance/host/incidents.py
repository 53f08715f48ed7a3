"""Incidents on disk: one directory each, complete or not there.

    incidents/20261129T173000Z-chat-hang-collective/     incident.json, lines.log, stacks.txt ...
    incidents/.partial-ID/                               one that is being written; what a crash left is removed

Written by the supervisor alone; mode 0750, so that its group and root may read. A bundle is renamed into place when it
is whole; a file of a kept bundle is replaced in one step.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from appliance.wire import incident as format_
from appliance.wire.incident import Incident

from . import files

ABOUT = "incident.json"
_PARTIAL = ".partial-"
_FILE_MODE, _DIRECTORY_MODE = 0o640, 0o750


@dataclass(frozen=True, slots=True)
class Bundle:
    """One kept incident, with its files and their sizes in bytes."""

    incident: Incident
    files: dict[str, int]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.files.values())


class Store:
    """The directory of incidents."""

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, id_: str, name: str = "") -> str:
        """Where a kept incident, or a file of it, lies."""
        return f"{self.root}/{id_}/{name}" if name else f"{self.root}/{id_}"

    def clean(self) -> int:
        """Remove what was left half-written; how many. Raises OSError when the directory cannot be read."""
        left = [name for name in self._names() if name.startswith(_PARTIAL)]
        for name in left:
            shutil.rmtree(f"{self.root}/{name}", ignore_errors=True)
        return len(left)

    def all(self) -> tuple[Bundle, ...]:
        """Every kept incident, the oldest first; one that cannot be read is left out. Raises OSError as `clean`."""
        found = [self.read(name) for name in sorted(self._names()) if format_.ID.fullmatch(name)]
        return tuple(bundle for bundle in found if bundle is not None)

    def read(self, id_: str) -> Bundle | None:
        """One kept incident; None when there is none of that name that can be read."""
        if not format_.ID.fullmatch(id_):
            return None
        about = format_.parse(files.read_json(self.path(id_, ABOUT)))
        if about is None:
            return None
        sizes: dict[str, int] = {}
        try:
            for entry in os.scandir(self.path(id_)):
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                    sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
        except OSError:
            return None
        return Bundle(about, dict(sorted(sizes.items())))

    def free(self) -> int:
        """Bytes that may still be written. Raises OSError."""
        room = os.statvfs(self.root)
        return room.f_bavail * room.f_frsize

    def begin(self, id_: str) -> str:
        """Make the directory that a bundle is written in. Raises OSError."""
        partial = f"{self.root}/{_PARTIAL}{id_}"
        shutil.rmtree(partial, ignore_errors=True)
        os.makedirs(partial)
        os.chmod(partial, _DIRECTORY_MODE)
        return partial

    def put(self, directory: str, name: str, content: bytes) -> None:
        """Write one file of a bundle, on the disk when this returns. Raises OSError; then nothing is there."""
        files.replace(f"{directory}/{name}", content, _FILE_MODE)

    def describe(self, directory: str, about: Incident) -> None:
        """Write or replace a bundle's `incident.json`. Raises OSError."""
        files.replace_json(f"{directory}/{ABOUT}", about.value, _FILE_MODE)

    def publish(self, partial: str, id_: str) -> None:
        """The bundle is whole: give it its name. Raises OSError."""
        os.rename(partial, self.path(id_))
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def discard(self, id_: str) -> None:
        """Remove what was begun and cannot be finished. Never raises."""
        shutil.rmtree(f"{self.root}/{_PARTIAL}{id_}", ignore_errors=True)

    def remove(self, id_: str) -> None:
        """Remove a kept incident, by way of a name that no listing shows. Never raises."""
        doomed = f"{self.root}/{_PARTIAL}old-{id_}"
        try:
            os.rename(self.path(id_), doomed)
        except OSError:
            return
        shutil.rmtree(doomed, ignore_errors=True)

    def _names(self) -> list[str]:
        try:
            return os.listdir(Path(self.root))
        except FileNotFoundError:
            return []
