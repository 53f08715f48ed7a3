"""A program that is asked for its output, with a deadline, and that is never waited for beyond it.

A program that asks a sick driver cannot be killed; it is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Sequence

REAP_S = 1.0  # for a killed program to go; one that hangs in a driver does not


class Silent(Exception):
    """There is no output; the message says why."""


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


async def output_of(argv: Sequence[str], deadline_s: float, limit: int) -> bytes:
    """A program's standard output, or its last `limit` bytes from a whole line on. Raises Silent."""
    program = shutil.which(argv[0])
    if program is None:
        raise Silent(f"{argv[0]} is not installed")
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8"}
    nothing = asyncio.subprocess.DEVNULL
    try:
        transport, output = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Output(limit), program, *argv[1:], stdin=nothing, stderr=nothing, env=environment
        )
    except OSError as error:
        raise Silent(f"{argv[0]} cannot be run: {error.strerror}") from error
    try:
        await asyncio.wait_for(output.ended.wait(), deadline_s)
    except asyncio.TimeoutError:
        raise Silent(f"{argv[0]} did not end within {deadline_s:.0f} s") from None
    finally:
        transport.close()  # kills it, and does not wait
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(output.exited.wait(), REAP_S)
    if transport.get_returncode() != 0 and not output.kept:
        raise Silent(f"{argv[0]} ended with status {transport.get_returncode()}")
    return output.kept.partition(b"\n")[2] if output.cut else output.kept
