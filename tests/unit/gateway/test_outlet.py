"""What is written to a client: whatever waits, bytes leave in the order in which they were given."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.gateway.outlet import Outlet
from appliance.gateway.turn import CROWD, Turn
from tests.support.wire import Wire

STEPS = st.lists(st.sampled_from(["now", "late", "flush", "turn"]), max_size=12)


@given(STEPS)
def test_the_order_is_that_of_the_calls(steps: list[str]) -> None:
    async def run() -> None:
        wire, given_ = Wire(), b""
        turn = Turn(asyncio.get_running_loop())
        outlet = Outlet(wire, turn)
        for number, step in enumerate(steps):
            data = b"%d " % number
            if step == "now":
                given_ += data
                outlet.write(data)
                assert wire.data == given_, "what was written before it, too"
            elif step == "late":
                given_ += data
                outlet.write_late(data)
                assert given_.startswith(wire.data) and wire.data != given_
            elif step == "flush":
                outlet.flush()
                assert wire.data == given_
            else:
                await asyncio.sleep(0)
                assert wire.data == given_
        await asyncio.sleep(0)
        assert wire.data == given_

    asyncio.run(run())


@pytest.mark.parametrize("how", ["close", "end"])
def test_what_waits_is_written_before_the_end(how: str) -> None:
    async def run() -> None:
        wire = Wire()
        outlet = Outlet(wire, Turn(asyncio.get_running_loop()))
        outlet.write_late(b"last words")
        getattr(outlet, how)()
        assert wire.data == b"last words" and (wire.ended == "closed" or wire.at_end)
        await asyncio.sleep(0)
        assert wire.data == b"last words"

    asyncio.run(run())


def test_a_client_that_went_gets_nothing() -> None:
    async def run() -> None:
        wire = Wire()
        outlet = Outlet(wire, Turn(asyncio.get_running_loop()))
        outlet.write_late(b"late")
        wire.abort()
        outlet.write(b"now")
        await asyncio.sleep(0)
        assert wire.data == b""

    asyncio.run(run())


def test_an_answer_that_is_the_last_of_a_crowd_goes_out_with_it() -> None:
    async def run() -> None:
        turn = Turn(asyncio.get_running_loop())
        wires = [Wire() for _ in range(CROWD)]
        for wire in wires:
            Outlet(wire, turn).write_late(b"an answer")
        assert all(wire.data == b"an answer" for wire in wires)

    asyncio.run(run())
