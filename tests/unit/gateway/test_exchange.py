"""A call's steps with an engine and a client that are lists of bytes: whatever happens, what it held comes back."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from appliance import clock
from appliance.config.model import Config, Engine
from appliance.gateway.answer import Answer
from appliance.gateway.engines import Engines, Group, Replica
from appliance.gateway.exchange import Exchange
from appliance.gateway.finish import End, Finish
from appliance.gateway.outlet import Outlet
from appliance.gateway.quarantine import Quarantines, Watch
from appliance.gateway.relay import Relay
from appliance.gateway.tasks import Tasks
from appliance.gateway.turn import Turn
from appliance.gateway.upstream import EngineConnection, Target
from appliance.host.journal import Journal
from appliance.policy.admission import Admission, Ticket
from appliance.wire.openai import ROUTES, Call, Shape
from tests.support.wire import Wire

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Owner:
    """Whose call it is; its client takes everything."""

    settings = Config().gateway

    def __init__(self, ends: dict[int, End], number: int, look: Callable[[], bool] = lambda: False) -> None:
        self.ends, self.number, self.look = ends, number, look

    @property
    def is_paused(self) -> bool:
        return self.look()

    def body_sent(self) -> None: ...

    def exchanged(self, finish: Finish) -> None:
        self.ends[self.number] = finish.end


class Stage:
    """One engine with room for one call and a pooled connection; calls come one after the other."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.engine = Wire()
        self.group = Group(Engine(model="m"), Admission(queue_size=9, queue_timeout=9.0))
        replica = Replica("m", Target(path="/nowhere/x"), "/nowhere", self.loop)
        replica.up = True
        self.group.replicas["m"] = replica
        self.group.admission.set_replica("m", limit=1, serving=True)
        self.connection = EngineConnection(replica.pool)
        self.connection.connection_made(self.engine)
        replica.pool.give(self.connection)
        self.faults: list[str] = []
        self.tasks = Tasks(lambda name, error: self.faults.append(name))
        self.loop.set_exception_handler(lambda _, context: self.faults.append(str(context["exception"])))
        self.ends: dict[int, End] = {}

    def call(self, number: int, body: bytes = b"{}", watch: Watch | None = None, **options: Any) -> Exchange:
        outlet = Outlet(Wire(), Turn(self.loop))
        answer = Answer(outlet, shape=Shape.OPENAI, request_id=f"r{number}", http11=True, keep_alive=True)

        exchange = Exchange(
            Owner(self.ends, number, **options), answer, Call(model="m", stream=False, size=2),
            ROUTES["/v1/embeddings"], self.group, Engines("/nowhere", self.loop), self.tasks,
            ticket=Ticket(number, "k", 0.0), fields="", body=body, watch=watch,
        )  # fmt: skip
        exchange.begin()
        return exchange

    def is_still(self) -> bool:
        admission = self.group.admission
        admission.check()
        return not (self.group.waiters or admission.waiting or admission.in_flight())


def test_a_call_is_at_its_engine_at_the_end_of_the_turn_that_let_it_in() -> None:
    async def run() -> None:
        stage = Stage()
        first, second = stage.call(1), stage.call(2)
        await asyncio.sleep(0)
        assert b"x-request-id: r1\r\n" in stage.engine.data and second.position == 1 and not stage.ends
        stage.connection.data_received(WHOLE)
        assert stage.ends == {1: End.COMPLETE}
        await asyncio.sleep(0)
        assert b"x-request-id: r2\r\n" in stage.engine.data
        assert first.answer.ended and not second.answer.ended
        stage.connection.data_received(WHOLE)
        assert stage.ends[2] is End.COMPLETE and stage.is_still() and not stage.faults

    asyncio.run(run())


def test_what_a_call_took_is_free_at_its_end_without_the_garbage_collector() -> None:
    async def run() -> None:
        stage = Stage()
        stage.call(1)
        assert any(isinstance(one, (Exchange, Relay)) for one in gc.get_objects())
        await asyncio.sleep(0)
        stage.connection.data_received(WHOLE)
        assert stage.ends == {1: End.COMPLETE}
        assert not any(isinstance(one, (Exchange, Relay)) for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_a_body_is_let_go_when_its_answer_has_begun() -> None:
    async def run() -> None:
        stage = Stage()
        body = b"x" * 100_000
        held = sys.getrefcount(body)
        watch = Quarantines(Journal("test")).check("m", "/v1/embeddings", body, "r1", "k")
        running = stage.call(1, body, watch)
        await asyncio.sleep(0)
        running.tick(clock.monotonic())
        assert sys.getrefcount(body) > held
        stage.connection.data_received(WHOLE[:-1])
        running.tick(clock.monotonic())
        assert sys.getrefcount(body) == held

    asyncio.run(run())


def test_the_silence_of_a_body_begins_with_its_head() -> None:
    """However long the engine has worked on it before."""

    async def run() -> None:
        stage = Stage()
        call = stage.call(1)
        await asyncio.sleep(0)
        before = clock.monotonic()
        stage.connection.data_received(WHOLE[:-2])
        call.tick(before + Owner.settings.timeouts.stall)
        assert not stage.ends
        stage.connection.data_received(WHOLE[-2:])
        assert stage.ends == {1: End.COMPLETE} and stage.is_still() and not stage.faults

    asyncio.run(run())


@pytest.mark.parametrize("who", [1, 2])
def test_one_that_leaves_lets_the_other_run(who: int) -> None:
    async def run() -> None:
        stage = Stage()
        calls = {1: stage.call(1), 2: stage.call(2)}
        calls[who].client_left()
        assert stage.ends == {who: End.LEFT}
        other = calls[3 - who]
        assert other.lease is not None and stage.engine.aborted == (who == 1)
        other.client_left()
        await stage.tasks.close()
        assert stage.is_still() and not stage.faults

    asyncio.run(run())


def test_a_fault_of_ours_ends_its_own_call_alone() -> None:
    def fault() -> bool:
        raise ValueError("ours")

    async def run() -> None:
        stage = Stage()
        stage.call(1)
        stage.call(2, look=fault)
        stage.call(3)
        await asyncio.sleep(0)
        stage.connection.data_received(WHOLE)
        assert stage.ends == {1: End.COMPLETE, 2: End.REFUSED} and stage.faults == ["ours"]
        assert list(stage.group.waiters) == [] and stage.group.admission.in_flight() == 1, "the third one runs"
        await stage.tasks.close()

    asyncio.run(run())
