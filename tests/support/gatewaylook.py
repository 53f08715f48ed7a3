"""What a running gateway shows from outside: whether anything is stuck, its memory, and how long others wait for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.gatewayprocess import Gateway
from tests.support.waiting import wait_until


def settle(gateway: Gateway) -> None:
    assert wait_until(gateway.idle, 5, "nothing runs and nothing waits", 0.02)


def rss(gateway: Gateway, field: str = "VmRSS") -> float:
    """Resident MiB of the process; with VmHWM the most there ever was."""
    text = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) / 1024


class Watch:
    """The slowest of one thread's calls, less the time in which a busy machine ran others than thread and gateway.

    What keeps the gateway's loop from a call is in it; that the processors were wanted elsewhere is not.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._ran = Path(f"/proc/{gateway.process.pid}/schedstat")
        self.slowest = 0.0

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        begun, queued = time.monotonic(), self._queued()
        yield
        self.slowest = max(self.slowest, time.monotonic() - begun - (self._queued() - queued))

    def _queued(self) -> float:
        """Seconds in which the thread that asks, and the gateway's, were ready to run and did not."""
        texts = [self._ran.read_text(), Path("/proc/thread-self/schedstat").read_text()]
        return sum(int(text.split()[1]) for text in texts) / 1e9
