"""Processor time, memory and priority of a process with all below it, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Spent:
    """Processor seconds so far: exact, of the threads that live; and in ticks, of those that have ended as well."""

    exact: float
    ticks: float

    def since(self, before: Spent) -> float:
        """Seconds between two readings: exact unless a thread has ended with what it spent."""
        exact, ticks = self.exact - before.exact, self.ticks - before.ticks
        return ticks if ticks > exact * 1.1 + 0.03 else exact


def family(root: int) -> list[int]:
    """A process and all below it."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry)] = int(_stat(int(entry))[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def spent(pids: Iterable[int]) -> Spent:
    """What these processes have used; one that has ended counts for nothing."""
    exact = ticks = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = _stat(pid)
            ticks += (int(fields[11]) + int(fields[12])) / TICKS
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    exact += int((thread / "schedstat").read_text().split()[0]) / 1e9
    return Spent(exact, ticks)


def resident(pids: Iterable[int]) -> int:
    """Bytes of memory that are in use, pages that several share counted for each."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    return total


@contextlib.contextmanager
def niced(pids: Iterable[int], nice: int) -> Iterator[None]:
    """These processes with another niceness; with the usual one afterwards. Raises PermissionError."""
    threads = [int(thread.name) for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()]
    for thread in threads:
        os.setpriority(os.PRIO_PROCESS, thread, nice)
    try:
        yield
    finally:
        for thread in threads:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, 0)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on: the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
