"""Every task has an owner, a name and an end, and every wait a limit."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
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

    def start_now(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """As `start`, but the first step is taken at once; a loop with much to do would let it wait for all of that."""
        try:
            awaited = work.send(None)
        except StopIteration:
            return
        except Exception as error:
            self._report(name, error)
            return
        self.start(_rest(work, awaited), name)

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


@types.coroutine
def _rest(work: Coroutine[Any, Any, None], awaited: object) -> Generator[Any, Any, None]:
    """What is left of a coroutine that waits for something."""
    while True:
        try:
            yield awaited
        except BaseException as error:
            step = partial(work.throw, error)
        else:
            step = partial(work.send, None)
        try:
            awaited = step()
        except StopIteration:
            return


async def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition, at most so long."""
    end = clock.monotonic() + seconds
    while True:
        if condition() or clock.monotonic() >= end:
            return
        await asyncio.sleep(0.02)
