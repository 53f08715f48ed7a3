"""Clients that go away: the engine's work for them ends within a second, wherever the call is, and nothing leaks."""

from __future__ import annotations

import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.component.gateway.conftest import QUICK, Start
from tests.support.gatewaylook import Watch
from tests.support.gatewayprocess import FakeEngine, Gateway, chat, config, fault, remote
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def roomy(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    """Long deadlines: what ends a call here is the client."""
    made = Gateway(tmp_path_factory.mktemp("roomy"), config(remote(engine.url)))
    yield made  # type: ignore[misc]
    made.kill()


def ask(gateway: Gateway, mark: str, body: dict[str, Any]) -> socket.socket:
    """A request on a raw connection, not read."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=10)
    connection.sendall(
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nX-Request-Id: {mark}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return connection


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize(
    ("situation", "script", "stream"),
    [("streaming", "gap=0.02,tokens=5000", True), ("prefill", "first=30", True), ("whole", "first=30", False),
     ("before the head", "head=30", True)],
)  # fmt: skip
def test_the_engine_is_told_at_once(
    roomy: Gateway, engine: FakeEngine, situation: str, script: str, stream: bool, how: str
) -> None:
    mark = f"{situation}-{how}".replace(" ", "-")
    connection = ask(roomy, mark, fault(script, stream=stream))
    wait_until(lambda: engine.marked(mark), 5, "the engine has the call", 0.02)
    if situation == "streaming":
        assert connection.recv(100)
    entry, watch = engine.marked(mark), Watch(roomy)
    assert entry
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    with watch.call():
        if how == "half-close":
            connection.shutdown(socket.SHUT_WR)
        else:
            connection.close()
        wait_until(lambda: entry["aborted"], 10, "the engine's connection ends", 0.01)
    assert watch.slowest < 1.0
    connection.close()
    assert wait_until(roomy.idle, 2, "nothing runs", 0.02)


def test_one_that_waits_leaves_its_place(engine: FakeEngine, start: Start) -> None:
    gateway = start(config(remote(engine.url), gateway="[gateway.admission]\nmax_in_flight = 1"))
    running = ask(gateway, "running", fault("first=30", stream=True))
    wait_until(lambda: engine.marked("running"), 5, "one runs", 0.02)
    waiting = [ask(gateway, f"waiting-{n}", chat(stream=n % 2 == 0)) for n in range(4)]
    wait_until(lambda: gateway.admin("/status")["gateway"]["queued"] == 4, 5, "four wait", 0.02)
    for connection in waiting[:3]:
        connection.close()
    wait_until(lambda: gateway.admin("/status")["gateway"]["queued"] == 1, 5, "three have left", 0.02)
    running.close()
    assert waiting[3].recv(15) == b"HTTP/1.1 200 OK"
    waiting[3].close()
    assert engine.marked("waiting-3") and not any(engine.marked(f"waiting-{n}") for n in range(3))
    assert wait_until(gateway.idle, 2, "nothing runs", 0.02)


@pytest.mark.slow
def test_many_clients_that_leave_at_any_moment_leak_nothing(engine: FakeEngine, start: Start) -> None:
    chance = random.Random(7)
    quick = QUICK.replace("max_in_flight = 64", "max_in_flight = 4\nqueue_size = 8")
    gateway = start(config(remote(engine.url), gateway=quick + 'keepalive = "100ms"\n'))
    scripts = ("gap=0.01,tokens=8", "first=0.05", "reset=3", "refuse", "status=400", "head=0.05", "error=2", "eof=3")

    def one(number: int) -> None:
        body = fault(scripts[number % len(scripts)], stream=chance.random() < 0.7)
        connection = ask(gateway, f"leak-{number}", body)
        connection.settimeout(chance.choice((0.001, 0.01, 0.05, 0.6)))
        try:
            while connection.recv(65536):
                pass
        except OSError:
            pass
        finally:
            connection.close()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(300)))
    assert wait_until(gateway.idle, 5, "nothing runs", 0.05)
    assert wait_until(lambda: engine.engine.running == 0, 5, "the engine is idle", 0.05) is True
    assert gateway.control("/ledger")["engines"]["default"]["inflight"] == 0
    assert "Traceback" not in gateway.text() and "failed" not in gateway.text()
    assert gateway.text().count("route=") == 300


@pytest.mark.slow
def test_a_reader_that_takes_nothing_is_cut_after_the_stall_limit(gateway: Gateway, engine: FakeEngine) -> None:
    with ask(gateway, "stuck", fault("pad=50000,tokens=2000", stream=True)):
        wait_until(lambda: engine.marked("stuck"), 5, "it runs", 0.02)
        entry = engine.marked("stuck")
        assert entry
        wait_until(lambda: entry["aborted"], 15, "it is given up", 0.05)
    assert wait_until(gateway.idle, 2, "nothing runs", 0.02)


def _resident(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096


@pytest.mark.slow
def test_slow_readers_hold_the_engine_back_and_not_in_memory(roomy: Gateway, engine: FakeEngine) -> None:
    before = _resident(roomy.process.pid)
    connections = []
    for number in range(20):
        connections.append(ask(roomy, f"slow-{number}", fault("pad=50000,tokens=2000", stream=True)))
    wait_until(lambda: engine.marked("slow-19"), 10, "all run", 0.05)

    seen = [(0, time.monotonic())]

    def stuck() -> bool:
        count = sum(entry["events"] for entry in engine.log)
        if count != seen[0][0]:
            seen[0] = (count, time.monotonic())
        return time.monotonic() - seen[0][1] > 0.5

    wait_until(stuck, 30, "the engine is held back", 0.05)
    # What waits: a read and the transport's high-water mark for each reader, far less than what the engine has to say.
    assert _resident(roomy.process.pid) - before < 20 * 2_500_000
    sent = sum(entry["events"] for entry in engine.log if "slow" in entry["headers"].get("x-request-id", ""))
    assert sent < 20 * 1000
    data = b""
    connections[0].settimeout(5)
    while len(data) < 5_000_000:
        data += connections[0].recv(1 << 20)
    assert data.startswith(b"HTTP/1.1 200")
    for connection in connections:
        connection.close()
    assert wait_until(roomy.idle, 5, "nothing runs", 0.05)
