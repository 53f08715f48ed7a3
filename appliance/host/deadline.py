"""Waiting with a deadline.

`asyncio.wait_for` before Python 3.12 loses a cancellation that comes in the moment of the result: a task that waits
again and again then lives on after it was told to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(limit_s: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives within `limit_s` seconds; else it is cancelled. Raises asyncio.TimeoutError.

    A fault of work that nobody waits for any longer, being late or cancelled, is nobody's, and not reported either.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=limit_s)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # asyncio complains of one that was never asked for


async def first_of(timeout_s: float, *events: asyncio.Event) -> None:
    """Wait until one of the events is set or the time is over; leaves no task behind."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
