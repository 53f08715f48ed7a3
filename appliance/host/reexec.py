"""Starting this program again from the code that is installed now, beside the process that runs.

The new process is told a descriptor of ours in an environment variable. It forks away from us at its beginning
(`detach`): only then is the service manager its parent, and hears when it ends.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "LLM_APPLIANCE_HANDOVER"
# What the service manager meant for the process that runs.
_OURS = ("WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def start_again(descriptor: int) -> int:
    """Run the same command line with `descriptor` open in it; the pid of what soon forks away. Raises OSError."""
    environment = {name: value for name, value in os.environ.items() if name not in _OURS}
    environment[VARIABLE] = str(descriptor)
    os.set_inheritable(descriptor, True)
    try:
        if os.access(sys.argv[0], os.X_OK):  # the installed command: its first line chooses the interpreter
            return os.posix_spawn(sys.argv[0], sys.argv, environment, setsigmask=[])
        return os.posix_spawn(sys.executable, sys.orig_argv, environment, setsigmask=[])
    finally:
        os.set_inheritable(descriptor, False)


def passed_descriptor() -> int | None:
    """The descriptor from the process that started this one; None where it was started in any other way. Once."""
    text = os.environ.pop(VARIABLE, "")
    if not text.isdigit():
        return None
    os.set_inheritable(int(text), False)
    return int(text)


def detach(descriptor: int) -> None:
    """Go on in a child whose parent is gone, and tell its pid, 4 bytes. Before any thread or loop."""
    if os.fork():
        os._exit(0)
    os.write(descriptor, os.getpid().to_bytes(4, "big"))
