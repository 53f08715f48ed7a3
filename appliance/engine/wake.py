"""What wakes the launcher: signals, and the words of its threads, as bytes in a pipe.

It is there from before the first run to after the last: a signal that comes between two runs is heard by the next.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STOP = (signal.SIGTERM, signal.SIGINT)
# SIGUSR1 and SIGUSR2 are reserved for requests for evidence: not fatal.
_HEARD = (*_STOP, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Wake:
    """The pipe. `reading` is for the poll."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def stirred(self) -> bool:
        """Take what came; whether somebody wants the engine stopped."""
        try:
            return any(number in _STOP for number in os.read(self.reading, 512))
        except BlockingIOError:
            return False

    def stir(self) -> None:
        """Wake the main thread, from any thread. A full pipe wakes it as well."""
        try:
            os.write(self._writing, b"\0")
        except OSError:
            return

    @classmethod
    @contextmanager
    def listening(cls) -> Iterator[Wake]:
        """Signals go into the pipe inside; from the main thread."""
        wake = cls()
        signal.set_wakeup_fd(wake._writing, warn_on_full_buffer=False)
        nothing: Callable[[int, object], None] = lambda number, frame: None  # noqa: E731
        for number in _HEARD:
            signal.signal(number, nothing)
        try:
            yield wake
        finally:
            signal.set_wakeup_fd(-1)
            os.close(wake.reading)
            os.close(wake._writing)
