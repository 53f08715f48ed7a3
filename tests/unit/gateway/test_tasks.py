"""Work whose first step is taken at once: it goes on, fails and is ended as a task is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from appliance.gateway.tasks import Tasks


async def played(work: Coroutine[Any, Any, None], reports: list[str]) -> Tasks:
    tasks = Tasks(lambda name, error: reports.append(f"{name}: {error!r}"))
    tasks.start_now(work, "work")
    return tasks


def test_the_first_step_is_taken_at_once_and_the_rest_when_it_can() -> None:
    async def play() -> None:
        steps: list[str] = []
        reports: list[str] = []
        gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            steps.append("begun")
            steps.append(await gate)
            await asyncio.sleep(0)
            steps.append("ended")

        tasks = await played(work(), reports)
        assert steps == ["begun"]
        gate.set_result("woken")
        for _ in range(5):
            await asyncio.sleep(0)
        assert (steps, reports) == (["begun", "woken", "ended"], [])
        await tasks.close()

    asyncio.run(play())


@pytest.mark.parametrize("waits", [False, True])
def test_a_failure_is_reported_wherever_it_comes(waits: bool) -> None:
    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError("broken")

    async def play() -> None:
        reports: list[str] = []
        tasks = await played(work(), reports)
        for _ in range(5):
            await asyncio.sleep(0)
        assert reports == ["work: ValueError('broken')"]
        await tasks.close()

    asyncio.run(play())


@pytest.mark.parametrize("first", [False, True])
def test_a_failure_of_what_it_waits_for_is_its_own_to_bear(first: bool) -> None:
    """Of the first that it waits for, and of a later one."""

    async def play() -> None:
        reports: list[str] = []
        steps: list[str] = []
        gates = [asyncio.get_running_loop().create_future() for _ in range(2)]

        async def work() -> None:
            for gate in gates:
                try:
                    steps.append(await gate)
                except ValueError as error:
                    steps.append(str(error))
                    if first:
                        return

        tasks = await played(work(), reports)
        gates[not first].set_exception(ValueError("broken"))
        gates[first].set_result("done")
        for _ in range(5):
            await asyncio.sleep(0)
        assert (steps, reports) == (["broken"] if first else ["done", "broken"], [])
        await tasks.close()

    asyncio.run(play())


def test_it_is_ended_with_the_others() -> None:
    async def play() -> None:
        ended: list[str] = []
        reports: list[str] = []

        async def work() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await asyncio.sleep(0)
                ended.append("cleaned up")

        tasks = await played(work(), reports)
        await asyncio.sleep(0)
        await tasks.close()
        assert (ended, reports) == (["cleaned up"], [])

    asyncio.run(play())
