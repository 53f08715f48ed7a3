"""The one place that reads a clock. Policies take `now` as an argument instead."""

from __future__ import annotations

import time


def monotonic() -> float:
    """Seconds on a clock that never jumps; comparable between processes of one boot."""
    return time.monotonic()


def wall() -> float:
    """Seconds since the epoch, for what people read and what outlives a boot."""
    return time.time()
