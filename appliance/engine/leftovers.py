"""What a killed vLLM leaves behind: shared memory segments, semaphores, inner sockets.

Usually /dev/shm is the unit's own and vanishes with it. Where it is shared (in the foreground, or with `shm_size` taken
out), a segment is removed only when it has a name that vLLM's libraries give, belongs to this user, is not brand-new,
and no process has it mapped: another engine of the same user may be serving next to this one.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from appliance import clock

SHARED_MEMORY = "/dev/shm"
_OURS = re.compile(r"psm_|sem\.mp-|vllm_|nccl-|torch_|__KMP_REGISTERED_LIB_")
NEW_S = 2.0  # a segment is created, then mapped; younger ones may be between the two


def clear(socket: str, directory: str) -> int:
    """Remove vLLM's own socket, its inner ones in `directory`, and abandoned segments; how many of those."""
    try:
        os.unlink(socket)
    except OSError:
        pass
    clear_sockets(directory)
    return clear_shared_memory()


def clear_shared_memory(directory: str = SHARED_MEMORY, *, proc: str = "/proc") -> int:
    """Remove this user's abandoned segments; how many. Never raises."""
    try:
        candidates = [entry for entry in os.scandir(directory) if _abandonable(entry)]
    except OSError:
        return 0
    mapped = _mapped(proc) if candidates else set()
    removed = 0
    for entry in candidates:
        if _identity(entry.stat(follow_symlinks=False)) not in mapped:
            try:
                os.unlink(entry.path)
                removed += 1
            except OSError:
                continue
    return removed


def _abandonable(entry: os.DirEntry[str]) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    old = clock.wall() - status.st_mtime >= NEW_S
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and old and bool(_OURS.match(entry.name))


def _identity(status: os.stat_result) -> tuple[str, int]:
    """A file as /proc/PID/maps names it. Not its path: a semaphore is mapped under another name, then linked."""
    return f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}", status.st_ino


def _mapped(proc: str) -> set[tuple[str, int]]:
    """All files that a process of this user has mapped."""
    found: set[tuple[str, int]] = set()
    for entry in os.scandir(proc):
        if not entry.name.isdigit():
            continue
        try:
            maps = Path(entry.path, "maps").read_text(errors="replace")
        except OSError:
            continue
        for line in maps.splitlines():
            _, _, _, device, inode, *_ = line.split(maxsplit=5)
            found.add((device, int(inode)))
    return found


def clear_sockets(directory: str) -> None:
    """Remove every socket in a directory of ours. Never raises."""
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        try:
            if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                os.unlink(entry.path)
        except OSError:
            continue
