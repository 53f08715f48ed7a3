"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DAY_S = 86400.0


def wait_until(condition: Callable[[], T], limit: float, what: str, pause: float = 0.2) -> T:
    """The first true value of `condition`; AssertionError, naming `what`, when `limit` seconds were not enough.

    On a machine so busy that hardly a look is had in that time, half the looks of an idle one are waited for.
    """
    began, looks = time.monotonic(), 0
    while True:
        value = condition()
        if value:
            return value
        looks += 1
        waited = time.monotonic() - began
        if waited > limit and (looks * pause > limit / 2 or waited > 10 * limit):
            raise AssertionError(f"not within {waited:.1f} s: {what} (last: {value!r})")
        time.sleep(pause)


def clear_of_midnight(seconds: float) -> None:
    """Return when the day (UTC) has so many seconds left: what is counted by the day would begin anew in between."""
    wait_until(lambda: DAY_S - time.time() % DAY_S > seconds, seconds, "another day")
