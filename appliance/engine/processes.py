"""The engine's processes as text for evidence: state, where they wait, threads, open files. Reads only, never blocks.

What takes a process's memory lock (`cmdline`, `maps`, `smaps`) is left alone: reading it waits for a process that
hangs with the lock held. What this user may not read is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from appliance.host.proc import PROC, Process, read_process

SHOWN_PROCESSES = 64
SHOWN_THREADS = 64  # of each process; the main thread comes first
SHOWN_SEGMENTS = 500
_STATUS = ("Threads", "VmRSS", "VmHWM", "RssShmem", "SigPnd", "SigBlk", "SigCgt", "voluntary_ctxt_switches",
           "nonvoluntary_ctxt_switches")  # fmt: skip


def title(process: Process) -> str:
    """One line that names a process."""
    return f"=== {process.comm} pid {process.pid}, parent {process.parent}, state {process.state}"


def describe(processes: Sequence[Process], proc: str = PROC) -> str:
    """All that /proc tells about processes without asking them."""
    blocks = ["\n".join(_lines(process, proc)) for process in processes[:SHOWN_PROCESSES]]
    more = len(processes) - SHOWN_PROCESSES
    return "\n\n".join([*blocks, *([f"and {more} more processes"] if more > 0 else [])]) + "\n"


def _lines(process: Process, proc: str) -> Iterator[str]:
    root = f"{proc}/{process.pid}"
    yield title(process)
    yield f"cpu {process.cpu_s:.2f} s"
    for line in _read(f"{root}/status").splitlines():
        if line.partition(":")[0] in _STATUS:
            yield " ".join(line.split())
    try:
        yield f"open files: {len(os.listdir(f'{root}/fd'))}"
    except OSError:
        pass
    yield from _read(f"{root}/stack").splitlines()
    threads = _numbers(f"{root}/task")
    for thread in threads[:SHOWN_THREADS]:
        found = read_process(thread, f"{root}/task")
        if found is not None:
            waits = _read(f"{root}/task/{thread}/wchan") or "-"
            yield f"  thread {thread} {found.comm}: state {found.state}, cpu {found.cpu_s:.2f} s, waits in {waits}"
    if len(threads) > SHOWN_THREADS:
        yield f"  and {len(threads) - SHOWN_THREADS} more threads"


def shared_memory(directory: str) -> str:
    """What lies in a directory of shared memory, the largest first, and how full it is."""
    try:
        room = os.statvfs(directory)
        with os.scandir(directory) as entries:
            found = [(status, entry.name) for entry in entries if (status := _status(entry)) is not None]
    except OSError as error:
        return f"{directory} cannot be read: {error.strerror}\n"
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    lines = [f"{directory}: {size} bytes, {free} free, {len(found)} entries"]
    found.sort(key=lambda each: -each[0].st_size)
    lines += [f"{status.st_size:>14} uid {status.st_uid} {name}" for status, name in found[:SHOWN_SEGMENTS]]
    return "\n".join(lines) + "\n"


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:  # it went away meanwhile
        return None


def _numbers(directory: str) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(directory) if name.isdigit())
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
