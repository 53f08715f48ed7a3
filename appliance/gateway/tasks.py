"""Every task has an owner, a name and an end, and every wait a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from appliance import clock


class Tasks:
    """Owns tasks: keeps them alive, reports one that fails, ends all of them."""

    def __init__(self, report: Callable[[str, BaseException], None]) -> None:
        self._report = report
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` until it ends or `close` is called."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._report(task.get_name(), error)

    async def close(self) -> None:
        """Cancel all tasks and wait for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition, at most so long."""
    end = clock.monotonic() + seconds
    while True:
        if condition() or clock.monotonic() >= end:
            return
        await asyncio.sleep(0.02)
