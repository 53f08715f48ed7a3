"""Reads a model's weights into the page cache while vLLM's processes import: the disk is idle for those seconds.

A thread asks the kernel, in pieces that it takes at once (a longer one is cut off silently), and stays a window ahead
of what has come, so that what vLLM itself reads meanwhile waits for little. What is in memory already is seen by a few
pages of it, without reading it. Nothing waits for the thread, and it ends with the launcher.

Not over a network: vLLM reads ahead there by itself, and what lies in between may block for ever.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from appliance import clock
from appliance.host import cgroup, files
from appliance.host.journal import INFO
from appliance.host.proc import CGROUPS, PROC
from appliance.hostfacts import is_away
from appliance.policy.readahead import portions
from appliance.quantity import UNKNOWN, Maybe
from appliance.wire import procsys

PIECE = 128 << 10  # Linux's default of read_ahead_kb: no request is cut off
WINDOW = 16  # pieces on their way
BLOCK = 4 << 20  # is taken as being in memory when SAMPLES pages of it are
SAMPLES = 8
_INDEX = "model.safetensors.index.json"


def begin(directory: str, log: Callable[[int, str], None]) -> threading.Thread:
    """Read ahead what will be loaded of the model in `directory`; tells how much that was, when it was anything."""
    thread = threading.Thread(target=_run, args=(directory, log), name="read ahead", daemon=True)
    thread.start()
    return thread


def _run(directory: str, log: Callable[[int, str], None]) -> None:
    begun = clock.monotonic()
    try:
        count = read(directory)
    except OSError:  # vLLM meets the same, and says it
        return
    if count:
        seconds = clock.monotonic() - begun
        log(INFO, f"read {count / (1 << 30):.2f} GiB of the weights ahead, in {seconds:.1f} s")


def read(directory: str, proc: str = PROC, cgroups: str = CGROUPS) -> int:
    """How many bytes the kernel was asked for; 0 where all were in memory. Blocks until they are. Raises OSError."""
    mount = procsys.mount_of(os.path.realpath(directory), procsys.mounts(files.read_text(f"{proc}/self/mountinfo")))
    if mount is None or is_away(mount.kind):
        return 0
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(directory) if entry.is_file()}
    chosen = portions(sizes, _indexed(directory), _available(proc, cgroups))
    return sum(_file(os.path.join(directory, name), portion) for name, portion in chosen)


def _file(path: str, size: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Else the kernel takes the looks below for the beginning of a sequence, and reads on by itself.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        count, window = 0, []
        for block in range(0, size, BLOCK):
            end = min(block + BLOCK, size)
            if _is_cached(descriptor, block, end):
                continue
            for piece in range(block, end, PIECE):
                length = min(PIECE, end - piece)
                os.posix_fadvise(descriptor, piece, length, os.POSIX_FADV_WILLNEED)
                count += length
                window.append(piece + length - 1)
                if len(window) > WINDOW:
                    os.pread(descriptor, 1, window.pop(0))
        for last in window:
            os.pread(descriptor, 1, last)
        return count
    finally:
        os.close(descriptor)


def _is_cached(descriptor: int, begin: int, end: int) -> bool:
    """Whether a few pages of a block, its last one too, can be read without waiting for the disk."""
    step = max(1, (end - begin) // SAMPLES)
    try:
        for at in (*range(begin, end, step), end - 1):
            os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT)
    except OSError:  # EAGAIN: not in memory; EOPNOTSUPP: nobody can tell
        return False
    return True


def _indexed(directory: str) -> frozenset[str]:
    try:
        named = json.loads(Path(directory, _INDEX).read_bytes())["weight_map"].values()
        return frozenset(map(str, named))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return frozenset()


def _available(proc: str, cgroups: str) -> Maybe[int]:
    """Of the machine's memory, and of the unit's own limit: what is read counts against both."""
    available = procsys.counters(files.read_text(f"{proc}/meminfo")).get("MemAvailable", UNKNOWN)
    room = cgroup.own_room(cgroups=cgroups, proc=proc)
    return available if available is UNKNOWN or room is UNKNOWN else min(available, room)
