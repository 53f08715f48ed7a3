"""Who listens on TCP ports of this machine, as far as this user may see."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from appliance.wire import procnet

PROC = "/proc"
_TABLES = ("net/tcp", "net/tcp6")


def listening(proc: str = PROC) -> tuple[procnet.Entry, ...]:
    """Every socket that listens; empty where the tables cannot be read."""
    found: list[procnet.Entry] = []
    for table in _TABLES:
        try:
            found += procnet.listening(Path(proc, table).read_text())
        except OSError:
            continue
    return tuple(found)


def owners(inodes: Iterable[int], proc: str = PROC) -> dict[int, tuple[int, str]]:
    """inode -> pid and name of a process that holds the socket; other users' are seen by root alone."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, tuple[int, str]] = {}
    for process in Path(proc).glob("[0-9]*"):
        try:
            held = {wanted[link] for fd in (process / "fd").iterdir() if (link := os.readlink(fd)) in wanted}
            if held:
                name = (process / "comm").read_text().strip()
        except OSError:
            continue
        for inode in held:
            found.setdefault(inode, (int(process.name), name))
        if len(found) == len(wanted):
            break
    return found


def held(pid: int, proc: str = PROC) -> frozenset[int]:
    """The inodes of the sockets that a process holds; none where this user may not see them."""
    try:
        links = [os.readlink(fd) for fd in Path(proc, str(pid), "fd").iterdir()]
    except OSError:
        return frozenset()
    return frozenset(int(link[8:-1]) for link in links if link.startswith("socket:["))


def port_owner(port: int, proc: str = PROC) -> str:
    """`name (pid N)` of the process that listens on a TCP port; empty when it cannot be seen."""
    entries = [entry.inode for entry in listening(proc) if entry.port == port]
    found = owners(entries, proc) if entries else {}
    return next((f"{name} (pid {pid})" for pid, name in found.values()), "")
