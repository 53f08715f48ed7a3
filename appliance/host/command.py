"""A program that is asked for its output, with a deadline, and that is never waited for beyond it.

A program that asks a sick driver cannot be killed; it is left behind.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence

_CHUNK = 1 << 16


class Silent(Exception):
    """There is no output; the message says why."""


async def output_of(argv: Sequence[str], deadline_s: float, limit: int) -> bytes:
    """The end of a program's standard output, at most `limit` bytes. Raises Silent."""
    program = shutil.which(argv[0])
    if program is None:
        raise Silent(f"{argv[0]} is not installed")
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8"}
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *argv[1:],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
        )
    except OSError as error:
        raise Silent(f"{argv[0]} cannot be run: {error.strerror}") from error
    assert process.stdout is not None
    try:
        kept = await asyncio.wait_for(_tail(process.stdout, limit), deadline_s)
        status = await asyncio.wait_for(process.wait(), 1.0)
    except asyncio.TimeoutError:
        raise Silent(f"{argv[0]} did not end within {deadline_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
    if status != 0 and not kept:
        raise Silent(f"{argv[0]} ended with status {status}")
    return kept


async def _tail(stream: asyncio.StreamReader, limit: int) -> bytes:
    """All there is, or its end from a whole line on."""
    kept, cut = b"", False
    while chunk := await stream.read(_CHUNK):
        kept += chunk
        cut = cut or len(kept) > limit
        kept = kept[-limit:]
    return kept.partition(b"\n")[2] if cut else kept
