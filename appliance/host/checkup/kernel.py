"""What the kernel tells of itself: memory, clock, limits, and processes that it does not let go."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
from pathlib import Path

from appliance import clock
from appliance.host.files import read_text
from appliance.host.proc import PROC, Process, read_process, read_wchan
from appliance.hostfacts import Clock, Limits, Memory, Stuck
from appliance.quantity import UNKNOWN, Maybe
from appliance.wire import procsys

BETWEEN_S = 0.7  # two looks at a process: one that reads a disk is in another place by then
_KERNEL_THREADS = 2
_TIMEX_BYTES, _TIMEX_STATUS, _UNSYNCHRONISED = 512, 40, 0x40  # struct timex on amd64; STA_UNSYNC


def memory(proc: str = PROC) -> Memory:
    """Main memory and swap. Raises OSError."""
    found = procsys.counters(Path(proc, "meminfo").read_text())
    killed = procsys.counters(read_text(f"{proc}/vmstat")).get("oom_kill")
    return Memory(
        total=found.get("MemTotal", 0),
        available=found.get("MemAvailable", 0),
        swap=found.get("SwapTotal", 0),
        swap_used=found.get("SwapTotal", 0) - found.get("SwapFree", 0),
        oom_kills=UNKNOWN if killed is None else killed,
        stalled=procsys.stalled(read_text(f"{proc}/pressure/memory")),
        disk_stalled=procsys.stalled(read_text(f"{proc}/pressure/io")),
    )


def limits(proc: str = PROC) -> Limits:
    """What the kernel allows."""
    used = read_text(f"{proc}/sys/fs/file-nr").split()
    return Limits(
        files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        files_each=_number(f"{proc}/sys/fs/nr_open"),
        files_all=_number(f"{proc}/sys/fs/file-max"),
        files_used=int(used[0]) if used and used[0].isdigit() else UNKNOWN,
        maps=_number(f"{proc}/sys/vm/max_map_count"),
        processes=_number(f"{proc}/sys/kernel/pid_max"),
        backlog=_number(f"{proc}/sys/net/core/somaxconn"),
    )


def clock_of() -> Clock:
    """The system clock, and whether something keeps it right."""
    return Clock(now=clock.wall(), written=os.stat(__file__).st_mtime, synchronised=_synchronised())


def container(root: str = "/") -> str:
    """Which kind of container this is; empty for a machine of its own."""
    named = read_text(f"{root}/run/systemd/container").strip()
    return named or ("docker" if os.path.exists(f"{root}/.dockerenv") else "")


async def stuck(proc: str = PROC) -> tuple[Stuck, ...]:
    """Processes that have not moved between two looks and cannot be killed where they are."""
    before = {process.pid: process for process in _uninterruptible(proc)}
    if not before:
        return ()
    await asyncio.sleep(BETWEEN_S)
    return tuple(
        Stuck(pid=now.pid, comm=now.comm, where=read_wchan(now.pid, proc))
        for now in _uninterruptible(proc)
        if now.pid in before and _is_where_it_was(before[now.pid], now)
    )


def _uninterruptible(proc: str) -> list[Process]:
    numbers = (int(name) for name in os.listdir(proc) if name.isdigit())
    found = (read_process(number, proc) for number in numbers)
    return [each for each in found if each is not None and each.state == "D" and each.parent != _KERNEL_THREADS]


def _is_where_it_was(before: Process, now: Process) -> bool:
    return (before.started, before.cpu_s) == (now.started, now.cpu_s)


def _synchronised() -> Maybe[bool]:
    """adjtimex(2) without a change: everybody may ask."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return UNKNOWN
    if answer < 0:
        return UNKNOWN
    return not int.from_bytes(buffer.raw[_TIMEX_STATUS : _TIMEX_STATUS + 4], "little") & _UNSYNCHRONISED


def _number(path: str) -> Maybe[int]:
    text = read_text(path).strip()
    return int(text) if text.isdigit() else UNKNOWN
