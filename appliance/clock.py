"""The one place that reads a clock. Policies take `now` as an argument instead."""

from __future__ import annotations

import time

# The functions themselves, not wrapped: a request reads a clock a dozen times.
monotonic = time.monotonic  # seconds on a clock that never jumps; comparable between processes of one boot
wall = time.time  # seconds since the epoch, for what people read and what outlives a boot
