"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], limit: float, what: str, pause: float = 0.2) -> T:
    """The first true value of `condition`; AssertionError, naming `what`, when `limit` seconds were not enough."""
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit:g} s: {what} (last: {value!r})")
        time.sleep(pause)
