"""File systems that the appliance writes to, and what lies in shared memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from appliance.host.access import user_name
from appliance.host.command import Silent, output_of
from appliance.host.proc import PROC, read_process
from appliance.hostfacts import Leftover, Mount, SharedMemory, is_away
from appliance.quantity import UNKNOWN
from appliance.wire import procsys

from .together import in_thread

ANSWER_S = 3.0
MOST_ENTRIES = 5000
# Names that torch, NCCL, multiprocessing and vLLM give to what they share.
_NAMES = ("nccl-", "psm_", "vllm", "sem.mp-", "torch_", "cuda.shm.", "ray_", "wnsm_")
_USERS_OF_IT = ("python", "vllm", "ray", "pt_main_thread", "llm-appliance", "raylet", "torchrun")


async def mounts(directories: Mapping[str, str], proc: str = PROC) -> tuple[Mount, ...]:
    """For each directory (path: purpose) the file system it lies on. One that does not answer is left out."""
    table = tuple(procsys.mounts(Path(proc, "self/mountinfo").read_text()))
    found = await asyncio.gather(*(_mount(path, why, table) for path, why in directories.items()))
    return tuple(each for each in found if each is not None)


async def _mount(path: str, purpose: str, table: tuple[procsys.MountLine, ...]) -> Mount | None:
    line = procsys.mount_of(path, iter(table))
    if line is None:
        return None
    if is_away(line.kind):
        figures = await _asked(path if os.path.isabs(path) else "/")
        if figures is None:
            return Mount(path=path, purpose=purpose, kind=line.kind)
        size, free, inodes, device = *figures, hash(line.place)
    else:
        size, free, inodes, device = await in_thread(lambda: _figures(path))
    return Mount(
        path=path, purpose=purpose, kind=line.kind, size=size, free=free, device=device,
        inodes_free=inodes if inodes >= 0 else UNKNOWN,
        noexec="noexec" in line.options, read_only="ro" in line.options,
    )  # fmt: skip


def _figures(path: str) -> tuple[int, int, int, int]:
    """Size, free bytes, free inodes (-1: no limit) and device of what a directory lies on, or will."""
    there = next(one for one in (Path(path), *Path(path).parents) if one.exists())
    status = os.statvfs(there)
    inodes = status.f_favail if status.f_files else -1
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize, inodes, os.stat(there).st_dev


async def _asked(path: str) -> tuple[int, int, int] | None:
    """Size, free bytes and free inodes, by a program that may be left behind; None where there is no answer."""
    try:
        text = await output_of(("stat", "-f", "-c", "%b %a %S %d", path), ANSWER_S, 4096)
        blocks, available, size, inodes = map(int, text.split())
    except (Silent, ValueError):
        return None
    return blocks * size, available * size, inodes


def shared_memory(directory: str = "/dev/shm", proc: str = PROC) -> SharedMemory:
    """Room in shared memory, and what lies in it that nobody can be using. Raises OSError."""
    room = os.statvfs(directory)
    entries = []
    for entry in list(os.scandir(directory))[:MOST_ENTRIES]:
        if entry.name.startswith(_NAMES) and not entry.is_symlink():
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            entries.append((entry.name, status.st_uid, status.st_blocks * 512))
    busy = _owners_at_work(proc) if entries else frozenset()
    return SharedMemory(
        size=room.f_blocks * room.f_frsize,
        free=room.f_bavail * room.f_frsize,
        leftovers=tuple(Leftover(name=name, owner=user_name(uid), size=size) for name, uid, size in entries
                        if uid not in busy),
    )  # fmt: skip


def _owners_at_work(proc: str) -> frozenset[int]:
    """Users with a process of a kind that shares memory."""
    found = set()
    for name in os.listdir(proc):
        process = read_process(int(name), proc) if name.isdigit() else None
        if process is not None and process.comm.lower().startswith(_USERS_OF_IT):
            try:
                found.add(os.stat(f"{proc}/{name}").st_uid)
            except OSError:
                continue
    return frozenset(found)
