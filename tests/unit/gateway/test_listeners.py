"""Listening sockets: what is in the place is replaced, and a listener that is stuck is told from one that has rest."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import uvloop

from appliance.gateway.listeners import Listener, unix_socket
from appliance.gateway.tasks import Tasks


def test_a_unix_socket_takes_the_place_of_whatever_is_there(tmp_path: Path) -> None:
    assert unix_socket(str(tmp_path / "missing/sock"), 0o177) is None
    path = tmp_path / "sock"
    path.write_text("left by a process that was killed")
    listener = unix_socket(str(path), 0o177)
    assert listener is not None
    with listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            listener.accept()[0].close()


def test_only_a_connection_that_waits_from_look_to_look_is_a_fault() -> None:
    async def play() -> None:
        made = socket.create_server(("127.0.0.1", 0))
        tasks = Tasks(lambda name, error: None)
        listener = Listener(made, asyncio.Protocol, tasks, lambda text: None)
        place = made.getsockname()
        assert not listener.stuck(calls_run=False), "nobody waits"
        with socket.create_connection(place):
            assert not listener.stuck(calls_run=False), "it has just come"
            assert listener.stuck(calls_run=False)
            listener.stop()
            assert not listener.stuck(calls_run=False), "it is meant to wait"
            listener.start()
            await asyncio.sleep(0.05)
            assert not listener.stuck(calls_run=False), "it was accepted"
            with socket.create_connection(place):
                assert not listener.stuck(calls_run=False)
                await asyncio.sleep(0.05)
                assert not listener.stuck(calls_run=False), "and this one between two looks"
        listener.close()
        await tasks.close()

    asyncio.run(play())


def test_an_answer_over_a_pair_of_sockets() -> None:
    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            assert isinstance(self.transport, asyncio.Transport)
            self.transport.write(data.upper())

    async def play() -> None:
        tasks = Tasks(lambda name, error: None)
        listener = Listener(socket.create_server(("127.0.0.1", 0)), Echo, tasks, lambda text: None)
        assert await listener.ask(b"health") == b"HEALTH"
        listener.close()
        await tasks.close()

    asyncio.run(play())


def test_what_is_written_to_an_accepted_connection_is_not_held_back() -> None:
    """A token that waits for the receipt of the one before it would be forty milliseconds late."""

    async def play() -> int:
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[socket.socket] = loop.create_future()

        class Client(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepted.set_result(transport.get_extra_info("socket"))

        made = socket.create_server(("127.0.0.1", 0))
        tasks = Tasks(lambda name, error: None)
        listener = Listener(made, Client, tasks, lambda text: None)
        listener.start()
        with socket.create_connection(made.getsockname()):
            ours = await asyncio.wait_for(accepted, 5)
            delay = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        listener.close()
        await tasks.close()
        return int(delay)

    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(play()) == 1
    finally:
        loop.close()
