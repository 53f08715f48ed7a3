"""What a running gateway shows from outside: whether anything is stuck, and its memory."""

from __future__ import annotations

from pathlib import Path

from tests.support.gatewayprocess import Gateway
from tests.support.waiting import wait_until


def settle(gateway: Gateway) -> None:
    assert wait_until(gateway.idle, 5, "nothing runs and nothing waits", 0.02)


def rss(gateway: Gateway, field: str = "VmRSS") -> float:
    """Resident MiB of the process; with VmHWM the most there ever was."""
    text = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) / 1024
