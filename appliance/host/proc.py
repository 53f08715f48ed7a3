"""The processes of a unit, from its control group: who they are, in which state, how much CPU they have used.

The group is found in the unified hierarchy or in systemd's own tree of a hybrid one; processes of groups below it count
too. A process that ends while it is read is left out; a group that cannot be read is UNKNOWN, not empty. Read without
psutil, which opens several files for each process where one line has it all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from appliance.quantity import UNKNOWN, Maybe

CGROUPS = "/sys/fs/cgroup"
PROC = "/proc"
_TREES = ("", "unified", "systemd")  # unified; hybrid: the v2 side tree, then systemd's named v1 hierarchy


@dataclass(frozen=True, slots=True)
class Process:
    """One process. `state` is the kernel's letter (R S D T Z ...), `cpu_s` user and system time since its start.

    `started`, in ticks since boot, tells it from a later one with the same pid.
    """

    pid: int
    parent: int
    comm: str
    state: str
    cpu_s: float
    started: int = field(default=0, compare=False)


def unit_processes(control_group: str, *, cgroups: str = CGROUPS, proc: str = PROC) -> Maybe[tuple[Process, ...]]:
    """The processes of a unit by its `ControlGroup` (`/system.slice/...`), ordered by pid. UNKNOWN when unreadable.

    An empty `control_group` is a unit that is not running: no processes.
    """
    if not control_group:
        return ()
    for tree in _TREES:
        directory = Path(cgroups, tree, control_group.lstrip("/"))
        if (directory / "cgroup.procs").exists():
            try:
                pids = sorted(set(_pids(directory)))
            except OSError:
                return UNKNOWN
            return tuple(found for found in (read_process(pid, proc) for pid in pids) if found is not None)
    return UNKNOWN


def read_process(pid: int, proc: str = PROC) -> Process | None:
    """One process from its `stat` line; None when it is gone."""
    try:
        text = Path(proc, str(pid), "stat").read_text(errors="replace")
    except OSError:
        return None
    return parse_stat(text)


def read_wchan(pid: int, proc: str = PROC) -> str:
    """Where in the kernel a process waits; empty when it does not, or when we may not know."""
    try:
        text = Path(proc, str(pid), "wchan").read_text(errors="replace").strip()
    except OSError:
        return ""
    return "" if text == "0" else text


def parse_stat(text: str) -> Process | None:
    """`/proc/PID/stat`. The name stands in brackets and may itself hold brackets and blanks: the last one ends it."""
    pid, opening, rest = text.partition("(")
    comm, closing, fields = rest.rpartition(")")
    words = fields.split()
    if not opening or not closing or len(words) < 20:
        return None
    try:
        ticks = int(words[11]) + int(words[12])
        return Process(int(pid), int(words[1]), comm, words[0], ticks / os.sysconf("SC_CLK_TCK"), int(words[19]))
    except ValueError:
        return None


def _pids(directory: Path) -> Iterator[int]:
    for path in (directory, *(p for p in directory.rglob("*") if p.is_dir())):
        try:
            yield from map(int, (path / "cgroup.procs").read_text().split())
        except FileNotFoundError:  # a group below went away meanwhile
            if path == directory:
                raise


def open_files_limit(proc: str = PROC) -> Maybe[int]:
    """How many files this process may have open now. A file, since a sandbox may refuse the system call."""
    try:
        text = Path(proc, "self/limits").read_text()
    except OSError:
        return UNKNOWN
    for line in text.splitlines():
        if line.startswith("Max open files"):
            soft = line.split()[3]
            return int(soft) if soft.isdigit() else UNKNOWN
    return UNKNOWN
