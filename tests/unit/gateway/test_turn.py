"""What waits for the end of a turn: in order, once, and nobody pays for another's fault."""

from __future__ import annotations

import asyncio

from appliance.gateway.turn import CROWD, Turn


def test_what_waits_is_done_in_order_and_once_when_the_turn_is_over() -> None:
    async def run() -> None:
        done: list[int] = []
        turn = Turn(asyncio.get_running_loop())
        turn.add(lambda: done.append(1))
        turn.add(lambda: turn.add(lambda: done.append(3)))  # one that comes while it ends has the next one's end
        turn.add(lambda: done.append(2))
        assert done == []
        await asyncio.sleep(0)
        assert done == [1, 2]
        await asyncio.sleep(0)
        assert done == [1, 2, 3]
        await asyncio.sleep(0)
        assert done == [1, 2, 3]

    asyncio.run(run())


def test_a_crowd_does_not_wait_for_the_end() -> None:
    async def run() -> None:
        done: list[int] = []
        turn = Turn(asyncio.get_running_loop())
        for number in range(CROWD * 2 + 1):
            turn.add(lambda number=number: done.append(number))  # type: ignore[misc]
            assert len(done) == (number + 1) // CROWD * CROWD
        await asyncio.sleep(0)
        assert done == list(range(CROWD * 2 + 1))

    asyncio.run(run())


def test_a_fault_is_told_and_stops_no_other() -> None:
    def fault() -> None:
        raise ValueError("ours")

    async def run() -> None:
        done: list[int] = []
        told: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        turn = Turn(loop)
        turn.add(fault)
        turn.add(lambda: done.append(1))
        await asyncio.sleep(0)
        assert done == [1] and told == ["ours"]

    asyncio.run(run())
