"""Many streams at once: descriptors and memory. The great numbers run with `tests/run --full`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.gatewayprocess import ROOT, FakeEngine, Gateway, config, fault, remote
from tests.support.rawclient import connect
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"
LOCAL = '[[engine]]\nname = "default"\nmodel = "builtin:smollm2-135m"\n'  # over a unix socket, as in the product
ROOM = '[gateway.admission]\nmax_in_flight = {0}\n[gateway.timeouts]\nconnect = "120s"\nfirst_token = "600s"\n'
FILES = 65536  # as the unit has it
UNREAD = 192 << 10  # bytes of the process for a stream that nobody reads: README states it


class Limited(Gateway):
    """Started by a shell with limits of its own."""

    limits = ""

    def command(self) -> list[str]:
        return ["/bin/bash", "-c", f'{self.limits}; exec "$@"', "bash", *super().command()]


def figure(gateway: Gateway, name: str) -> int:
    """KiB from the process's status."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{gateway.process.pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def body(script: str) -> bytes:
    data = json.dumps(fault(script, stream=True)).encode()
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(data), data)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose sockets' paths fit."""
    with tempfile.TemporaryDirectory(prefix="many") as directory:
        yield Path(directory)


@pytest.fixture
def engine_process(place: Path) -> Iterator[int]:
    """A fake engine that is a process of its own, on a unix socket; its pid."""
    path = place / "gateway/run/engines/default/vllm.sock"
    path.parent.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.support.fakeengine", "--uds", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("listening")
        yield process.pid
        process.kill()


@pytest.mark.slow
def test_a_low_soft_limit_is_raised_and_a_low_hard_one_is_told(tmp_path: Path, engine: FakeEngine) -> None:
    text = config(remote(engine.url))
    for limits, limit in (("ulimit -S -n 128", resource.getrlimit(resource.RLIMIT_NOFILE)[1]), ("ulimit -n 128", 128)):
        kind = type("Kind", (Limited,), {"limits": limits})
        gateway = kind(tmp_path / f"g{limit}", text)
        try:
            shown = Path(f"/proc/{gateway.process.pid}/limits").read_text()
            assert re.search(rf"Max open files\s+{limit}\s+{limit} ", shown)
            told = "128 files may be open here, this configuration may need 1280" in gateway.text()
            assert told == (limit == 128)
        finally:
            gateway.kill()


@pytest.mark.parametrize(
    "count",
    [pytest.param(40, marks=pytest.mark.slow), pytest.param(1000, marks=[pytest.mark.full, pytest.mark.timeout(900)])],
)
def test_clients_that_do_not_read_cost_a_bounded_amount(place: Path, engine_process: int, count: int) -> None:
    """The engine sends as fast as it can, 40 MB a stream; what is not read stays with the engine."""
    gateway = Gateway(place / "gateway", config(LOCAL, gateway=ROOM.format(2000)))
    clients: list[socket.socket] = []
    try:
        gateway.engine_state("default", "serving", ready=time.time())
        wait_until(lambda: gateway.request("GET", "/readyz").status == 200, 20, "it serves", 0.05)
        before = figure(gateway, "VmRSS")
        for _ in range(count):
            clients.append(connect(gateway.port, receive=4096))
            clients[-1].sendall(body("tokens=100000,pad=400"))
        wait_until(lambda: gateway.admin("/status")["gateway"]["running"] == count, 300, "all run", 0.1)
        seen = [-1.0]

        def stands() -> bool:
            """No stream moves: the engine has sent nothing between two looks."""
            text = gateway.request("GET", "/metrics", port=gateway.admin_port).body.decode()
            found = re.search(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)", text, re.MULTILINE)
            now = float(found[1]) if found else -2.0
            stood, seen[0] = now == seen[0] and now > count, now
            return stood

        wait_until(stands, 300, "the engine waits for the readers", 1.0)
        each = (figure(gateway, "VmRSS") - before) * 1024 / count
        print(f"{count} slow readers: {each / 1024:.0f} KiB each, {figure(gateway, 'VmRSS') // 1024} MiB in all")
        assert each <= UNREAD
        assert gateway.request("POST", CHAT, fault("tokens=3", stream=True)).body.endswith(b"data: [DONE]\n\n")
    finally:
        for client in clients:
            client.close()
        with contextlib.suppress(OSError):
            wait_until(gateway.idle, 60, "all counters at zero", 0.2)
        gateway.kill()


class Reader(asyncio.Protocol):
    """A client that reads its stream to the end; `begun` and `whole` tell how far it is."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd, self.data, self.first = crowd, b"", True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self.crowd.request)

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.first and b'"content":"The' in self.data:
            self.first = False
            self.crowd.begun += 1
        if self.data.endswith(b"0\r\n\r\n"):
            good = self.data.count(b'"content":"') == 9 and self.data.count(b"data: [DONE]\n\n") == 1
            self.crowd.whole += good and self.data.startswith(b"HTTP/1.1 200 ")
            self.crowd.ended += 1

    def connection_lost(self, exc: BaseException | None) -> None:
        self.crowd.lost += 1


class Crowd:
    """Many readers in one loop."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.begun = self.whole = self.ended = self.lost = 0

    async def run(self, gateway: Gateway, count: int) -> None:
        loop = asyncio.get_running_loop()
        transports = []
        for number in range(count):
            if number % 200 == 0:
                await self._until(lambda number=number: number - self.begun < 500)
            transports.append((await loop.create_connection(lambda: Reader(self), "127.0.0.1", gateway.port))[0])
        await self._until(lambda: self.begun == count)
        descriptors = len(os.listdir(f"/proc/{gateway.process.pid}/fd"))
        print(
            f"{count} streams: {figure(gateway, 'VmRSS') // 1024} MiB, "
            f"{figure(gateway, 'VmRSS') / count:.1f} KiB each with all there is, {descriptors} descriptors"
        )
        assert 2 * count < descriptors < 2 * count + 256
        go = await loop.run_in_executor(None, lambda: release(gateway))
        assert go
        await self._until(lambda: self.ended == count)
        for transport in transports:
            transport.close()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not await asyncio.sleep(0.02, condition()):
            assert not self.lost, f"{self.lost} connections were lost"


def release(gateway: Gateway) -> bool:
    """Let the engine go on with all of them."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(gateway.run / "engines/default/vllm.sock"))
        connection.sendall(b"POST /_fake/go HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\n4")
        return connection.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_ten_thousand_streams_complete(place: Path, engine_process: int) -> None:
    """Every one runs at the same time, and every one is whole. Fewer where the machine does not allow the files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = before[1]
    with contextlib.suppress(ValueError):  # not the machine's administrator, even as root
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
        allowed = FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    resource.prlimit(engine_process, resource.RLIMIT_NOFILE, (allowed, allowed))
    count = min(10_000, (allowed - 64) // 2)
    gateway = Gateway(place / "gateway", config(LOCAL, gateway=ROOM.format(20_000)))
    try:
        gateway.engine_state("default", "serving", ready=time.time())
        wait_until(lambda: gateway.request("GET", "/readyz").status == 200, 20, "it serves", 0.05)
        crowd = Crowd(body("tokens=8,hold=4"))
        asyncio.run(asyncio.wait_for(crowd.run(gateway, count), 600))
        assert (crowd.whole, crowd.ended) == (count, count)
        wait_until(gateway.idle, 60, "all counters at zero", 0.2)
    finally:
        gateway.kill()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
