"""Many looks at once, none of which can hold up the others: what is not there at the deadline is `NotKnown`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias, TypeVar

from appliance.errors import ApplianceError
from appliance.host.command import Late, Silent
from appliance.hostfacts import NotKnown

T = TypeVar("T")
Look: TypeAlias = Callable[[], Awaitable[object]]


async def gathered(looks: Mapping[str, Look], limit_s: float) -> dict[str, object]:
    """What each look gave within `limit_s`, by its name."""
    tasks = {name: asyncio.ensure_future(look()) for name, look in looks.items()}
    try:
        await asyncio.wait(tasks.values(), timeout=limit_s)
        return {name: _given(task, limit_s) for name, task in tasks.items()}
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


def _given(task: asyncio.Future[object], limit_s: float) -> object:
    if not task.done():
        return NotKnown(f"no answer within {limit_s:.0f} s", late=True)
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, Late):
        return NotKnown(str(error), late=True, state=error.state)
    if isinstance(error, Silent):
        return NotKnown(str(error))
    if isinstance(error, ApplianceError):
        return NotKnown(error.message)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return NotKnown(f"{where}{(error.strerror or str(error)).lower()}")
    return NotKnown(f"a fault of this program: {type(error).__name__}: {error}")


async def in_thread(function: Callable[[], T]) -> T:
    """What a function that may block gives. Its thread is nobody's: it keeps neither the loop nor the program."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, failed = None, None
        try:
            result = function()
        except Exception as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=work, daemon=True).start()
    return await future
