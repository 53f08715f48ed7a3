"""Ending asyncio's child processes.

`Process.kill` asks the kernel first whether the child has ended. Where it has, that takes the exit status away from
asyncio, which then tells of an unknown child and reports 255.
"""

from __future__ import annotations

import contextlib
import os
import signal
from asyncio.subprocess import Process


def kill(process: Process) -> None:
    """SIGKILL; nothing where the child has ended. Follow with `wait()`."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
