"""A program that is asked for its output, with a deadline, and that is never waited for beyond it.

A program that asks a sick driver cannot be killed; it is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .proc import PROC, parse_stat

REAP_S = 1.0  # for a killed program to go; one that hangs in a driver does not


class Silent(Exception):
    """There is no output; the message says why."""


class Late(Silent):
    """The program did not end in time. `state` is what it was doing then: D waits in the kernel."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


class _Output(asyncio.SubprocessProtocol):
    """Keeps the end of what a program prints; `ended` is set when it has ended and its output is closed."""

    def __init__(self, limit: int) -> None:
        self._limit, self._open = limit, 2
        self.kept, self.cut = b"", False
        self.exited, self.ended = asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.kept += data
        self.cut = self.cut or len(self.kept) > self._limit
        self.kept = self.kept[-self._limit :]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._close()

    def process_exited(self) -> None:
        self.exited.set()
        self._close()

    def _close(self) -> None:
        self._open -= 1
        if self._open == 0:
            self.ended.set()


async def output_of(
    argv: Sequence[str], deadline_s: float, limit: int, *, more: Mapping[str, str] | None = None, user: str = ""
) -> bytes:
    """A program's standard output, or its last `limit` bytes from a whole line on. Raises Silent.

    `more` is added to an environment that holds the search path alone; `user` is whose rights it has, for root only.
    """
    program = shutil.which(argv[0])
    if program is None:
        raise Silent(f"{argv[0]} {'cannot be run by this user' if '/' in argv[0] else 'is not installed'}")
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8", **(more or {})}
    nothing = asyncio.subprocess.DEVNULL
    try:
        transport, output = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Output(limit), program, *argv[1:], stdin=nothing, stderr=nothing, env=environment, **_rights(user)
        )
    except (OSError, KeyError) as error:
        raise Silent(f"{argv[0]} cannot be run: {getattr(error, 'strerror', error)}") from error
    try:
        await asyncio.wait_for(output.ended.wait(), deadline_s)
    except asyncio.TimeoutError:
        raise Late(f"{argv[0]} did not end within {deadline_s:.0f} s", _state(transport.get_pid())) from None
    finally:
        transport.close()  # kills it, and does not wait
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(output.exited.wait(), REAP_S)
    if transport.get_returncode() != 0 and not output.kept:
        raise Silent(f"{argv[0]} ended with status {transport.get_returncode()}")
    return output.kept.partition(b"\n")[2] if output.cut else output.kept


def _rights(user: str) -> dict[str, Any]:
    """A user's ids and groups, and a directory that everybody may be in. Raises KeyError."""
    if not user:
        return {}
    found = pwd.getpwnam(user)
    groups = os.getgrouplist(user, found.pw_gid)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": groups, "cwd": "/"}


def _state(pid: int | None) -> str:
    try:
        found = parse_stat(Path(PROC, str(pid), "stat").read_text(errors="replace"))
    except OSError:
        return ""
    return "" if found is None else found.state
