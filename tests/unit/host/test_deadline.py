from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from appliance.host.deadline import within


async def _word(after: asyncio.Event | None = None) -> str:
    if after is not None:
        await after.wait()
    return "word"


async def _fault() -> str:
    raise ValueError("fault")


def test_what_comes_in_time() -> None:
    assert asyncio.run(within(20.0, _word())) == "word"
    with pytest.raises(ValueError, match="fault"):
        asyncio.run(within(20.0, _fault()))


def test_what_is_late_is_ended() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(within(0.01, work()))
    assert ended == [True]


@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_at_any_moment_counts(turns: int) -> None:
    """Also in the turn of the loop in which the result came."""

    async def story() -> bool:
        event = asyncio.Event()
        task = asyncio.ensure_future(within(20.0, _word(event)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            return True
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    assert asyncio.run(story())


def test_a_fault_that_nobody_waits_for_is_not_reported() -> None:
    """Neither of work that answers its end with a fault, nor of a fault in the moment of the cancellation."""
    reports: list[dict[str, Any]] = []

    async def breaks(event: asyncio.Event) -> None:
        try:
            await event.wait()
        finally:
            raise ValueError("fault")

    async def late() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await within(0.01, breaks(asyncio.Event()))

    async def cancelled(turns: int) -> None:
        event = asyncio.Event()
        task = asyncio.ensure_future(within(20.0, breaks(event)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, ValueError)):
            await task

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
        await late()
        for turns in range(6):
            await cancelled(turns)
        gc.collect()

    asyncio.run(story())
    assert reports == []
