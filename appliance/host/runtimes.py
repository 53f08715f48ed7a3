"""The vLLM environments on this machine: which there are, which is active, which the operator chose.

    runtimes/0.32.0-cpu/            an environment; `.complete` in it was written last and says what it is
    runtimes/0.32.0-cpu-2/          the same vLLM built again, for another Python or another lock
    runtimes/current                symlink to the active one, replaced in one step
    runtimes/previous               symlink to the one before it
    runtimes/choice.json            what `runtime use` and `runtime rollback` chose; the builder keeps to it

Read by anyone; written by the builder and by root. An environment without `.complete` is unfinished and worth nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance import names

from . import files

NAME = re.compile(r"(?P<version>\d[^/]*)-(?P<device>cpu|cuda)(-(?P<number>\d+))?")
CURRENT, PREVIOUS, CHOICE, LOCK = "current", "previous", "choice.json", ".lock"
REQUEST = "install.json"  # `runtime install` leaves it for the builder: build this release's vLLM as well


@dataclass(frozen=True, slots=True)
class Installed:
    """One environment. `python` is major.minor, `lock` the digest of the lock it was built from, `size` bytes.

    `usable` says that its interpreter is still there: a distribution upgrade takes it away.
    """

    name: str
    path: str
    version: str
    device: str
    python: str = ""
    lock: str = ""
    size: int | None = None
    complete: bool = False
    usable: bool = False
    current: bool = False


def installed(root: str) -> tuple[Installed, ...]:
    """All environments below `root`, finished or not, by name; empty when there is no such directory."""
    active = linked(root, CURRENT)
    found = []
    try:
        entries = sorted(entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return ()
    for name in entries:
        match = NAME.fullmatch(name)
        if match is not None:
            found.append(_read(root, name, match["version"], match["device"], current=name == active))
    return tuple(found)


def _read(root: str, name: str, version: str, device: str, *, current: bool) -> Installed:
    path = f"{root}/{name}"
    record = files.read_json(f"{path}/{names.RUNTIME_COMPLETE}")
    if record is None:
        return Installed(name, path, version, device, current=current)
    size = record.get("size")
    return Installed(
        name,
        path,
        str(record.get("version", version)),
        str(record.get("device", device)),
        python=str(record.get("python", "")),
        lock=str(record.get("lock", "")),
        size=size if isinstance(size, int) else None,
        complete=True,
        usable=os.path.exists(f"{path}/bin/python"),
        current=current,
    )


def linked(root: str, link: str) -> str | None:
    """The name that `current` or `previous` points to; None when there is no such link."""
    try:
        return Path(os.readlink(f"{root}/{link}")).name
    except OSError:
        return None


def switch(root: str, name: str) -> None:
    """Make `name` the active environment in one step and remember the one before it. Raises OSError."""
    before = linked(root, CURRENT)
    if before == name:
        return
    _link(root, CURRENT, name)
    if before is not None:
        _link(root, PREVIOUS, before)


def _link(root: str, link: str, name: str) -> None:
    scratch = tempfile.mkdtemp(dir=root, prefix=f".{link}.")
    try:
        os.symlink(name, f"{scratch}/{link}")
        os.replace(f"{scratch}/{link}", f"{root}/{link}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def chosen(root: str) -> str | None:
    """What the operator chose; None when the builder may choose."""
    record = files.read_json(f"{root}/{CHOICE}")
    return None if record is None else str(record.get("name"))


def choose(root: str, name: str) -> None:
    """Activate `name` and keep to it until another is chosen. Raises OSError."""
    files.replace_json(f"{root}/{CHOICE}", {"name": name})
    switch(root, name)


@contextlib.contextmanager
def exclusive(root: str) -> Iterator[None]:
    """Hold the lock of whoever changes environments; the kernel lets go of it when the process ends, however it ends.

    Raises BlockingIOError when another holds it.
    """
    with open(f"{root}/{LOCK}", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def users(path: str, proc: str = "/proc") -> tuple[int, ...]:
    """Processes that have files below `path` mapped, as far as this user may see them."""
    found, needle = [], f" {os.path.realpath(path)}/".encode()
    for entry in os.listdir(proc):
        if entry.isdecimal():
            try:
                mapped = Path(proc, entry, "maps").read_bytes()
            except OSError:
                continue
            if needle in mapped:
                found.append(int(entry))
    return tuple(sorted(found))


def size(path: str) -> int:
    """Bytes that a tree takes on the disk, each hard-linked file once; what cannot be read counts nothing."""
    total, seen = 0, set()
    for directory, _, entries in os.walk(path):
        for entry in entries:
            try:
                status = os.lstat(os.path.join(directory, entry))
            except OSError:
                continue
            if status.st_nlink > 1:
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
            total += status.st_blocks * 512
    return total


def remove(root: str, name: str) -> None:
    """Delete an environment; its `.complete` goes first, so that half of one is never taken for whole."""
    path = Path(root, name)
    (path / names.RUNTIME_COMPLETE).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
