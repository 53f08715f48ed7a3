"""The process among systemd, signals and files: readiness, watchdog, sockets passed, reload, drain."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.gateway.conftest import Start
from tests.support.gatewayprocess import MODEL, FakeEngine, Gateway, chat, config, fault, remote
from tests.support.lineage import Lineage
from tests.support.rawclient import connect, read_all
from tests.support.rawrequests import BODY, post
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"


class Manager:
    """What systemd's end of NOTIFY_SOCKET hears."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        self.heard: list[str] = []

    def lines(self) -> list[str]:
        """All so far, one assignment each."""
        while True:
            try:
                self.heard += self.socket.recv(65536).decode().splitlines()
            except BlockingIOError:
                return self.heard

    def after(self, line: str) -> list[str]:
        """All that came behind a line; nothing when it did not come."""
        lines = self.lines()
        return lines[lines.index(line) + 1 :] if line in lines else []


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.socket.close()


class Activated(Gateway):
    """Started with listening sockets, as by socket units."""

    def __init__(self, directory: Path, text: str, sockets: dict[str, socket.socket], **environment: str) -> None:
        self._sockets = sockets
        super().__init__(directory, text, **environment)

    def _start(self) -> subprocess.Popen[bytes]:
        program = (
            "import os, sys\n"
            "fds = [int(word) for word in sys.argv[1].split(',')]\n"
            "spare = [os.dup(fd) for fd in fds]\n"
            "[os.dup2(fd, 3 + n) for n, fd in enumerate(spare)]\n"
            "[os.set_inheritable(3 + n, True) for n in range(len(spare))]\n"
            "os.environ['LISTEN_PID'] = str(os.getpid())\n"
            "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])\n"
        )
        fds = [one.fileno() for one in self._sockets.values()]
        environment = {
            **self.environment, "LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": ":".join(self._sockets),
        }  # fmt: skip
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", program, ",".join(map(str, fds)), *self.command()[1:]],
                stdout=log, stderr=log, env=environment, cwd="/", pass_fds=fds,
            )  # fmt: skip


@pytest.fixture
def sockets() -> Iterator[dict[str, socket.socket]]:
    made = {name: socket.create_server(("127.0.0.1", 0), backlog=1024) for name in ("admin", "public")}
    yield made
    for one in made.values():
        one.close()


def test_readiness_status_and_watchdog(start: Start, engine: FakeEngine, manager: Manager) -> None:
    gateway = start(config(remote(engine.url)), NOTIFY_SOCKET=str(manager.path), WATCHDOG_USEC="300000")
    wait_until(lambda: "READY=1" in manager.lines(), 5, "READY", 0.02)
    wait_until(lambda: manager.lines().count("WATCHDOG=1") >= 3, 5, "the watchdog is fed", 0.02)
    with gateway.open("POST", CHAT, fault("gap=0.02,tokens=1000", stream=True)) as stream:
        stream.read(10)

        def figures() -> bool:
            status = [
                line for line in manager.lines() if line.startswith("STATUS=serving 1 model, 1 running, 0 queued")
            ]
            return bool(status) and not status[-1].endswith(" 0 tok/s")

        wait_until(figures, 8, "live figures", 0.05)

    gateway.process.send_signal(signal.SIGSTOP)
    manager.lines()
    fed = len(manager.heard)
    deadline = time.monotonic() + 0.7
    while time.monotonic() < deadline:
        manager.lines()
    assert len(manager.heard) - fed <= 1, "a process that stands still feeds nothing"
    gateway.process.send_signal(signal.SIGCONT)
    before = len(manager.heard)
    wait_until(lambda: "WATCHDOG=1" in manager.lines()[before:], 5, "it is fed again", 0.02)
    assert gateway.stop() == 0
    assert "STOPPING=1" in manager.lines()


# Gateways that are broken in one place, as a fault of ours could break them; the admin listener of the second answers.
DEAF = ("gateway/listeners.py", "            self._loop.add_reader(self.socket.fileno(), self._accept)\n", "")
_BEGINS = "        if outlet is None:  # gone before"
MUTE = ("gateway/handler.py", _BEGINS, f"        return\n{_BEGINS}")


@pytest.mark.parametrize(
    ("defect", "said"), [(DEAF, "connections wait and are not accepted on"), (MUTE, "got no answer")]
)
def test_a_gateway_that_lives_and_does_not_serve_loses_its_watchdog(
    engine: FakeEngine, manager: Manager, tmp_path: Path, defect: tuple[str, str, str], said: str
) -> None:
    gateway = Lineage(tmp_path / "g", config(remote(engine.url)), wait=False, defect=defect,
                      NOTIFY_SOCKET=str(manager.path), WATCHDOG_USEC="900000")  # fmt: skip
    try:
        gateway.wait_ready()
        if defect is DEAF:
            wait_until(lambda: "WATCHDOG=1" in manager.lines(), 10, "nobody waits: it is fed", 0.02)
        with socket.create_connection(("127.0.0.1", gateway.port)):
            wait_until(lambda: said in gateway.text(), 20, "it is told", 0.02)
            fed = manager.lines().count("WATCHDOG=1")
            if defect is MUTE:
                assert gateway.admin("/healthz") == {"status": "ok"}
            looked = manager.lines().count("WATCHDOG=1")
            assert fed == looked and "the watchdog is not fed" in gateway.text()
    finally:
        gateway.kill()


def test_a_start_that_cannot_be_names_the_file_to_check(engine: FakeEngine, tmp_path: Path) -> None:
    text = config(remote(engine.url), gateway='tls_certificate = "/none.pem"\ntls_key = "/none.pem"')
    gateway = Gateway(tmp_path / "g", text, wait=False)
    try:
        assert gateway.process.wait(20) == 3
        assert f"(hint: llm-appliance check {gateway.config_file})" in gateway.text()
    finally:
        gateway.kill()


def test_reload_takes_keys_and_limits_and_says_so(
    start: Start, engine: FakeEngine, manager: Manager, tmp_path: Path
) -> None:
    gateway = start(config(remote(engine.url)), NOTIFY_SOCKET=str(manager.path))
    assert gateway.admin("/status")["engines"][0]["replicas"][0]["limit"] == 32
    with gateway.open("POST", CHAT, fault("gap=0.05,tokens=40", stream=True)) as stream:
        stream.read(10)
        text = config(remote(engine.url, served_names=["new-name"]), gateway="[gateway.admission]\nmax_in_flight = 9")
        gateway.config_file.write_text(text)
        gateway.reload()
        wait_until(lambda: "READY=1" in manager.after("RELOADING=1"), 5, "READY=1 behind RELOADING=1", 0.02)
        assert gateway.admin("/status")["engines"][0]["replicas"][0]["limit"] == 9
        assert gateway.request("POST", CHAT, chat()).status == 404
        assert gateway.request("POST", CHAT, {"model": "new-name"}).status == 200
        assert stream.read().endswith(b"data: [DONE]\n\n"), "a stream that ran goes on"

        gateway.config_file.write_text(text.replace("max_in_flight = 9", "max_in_flight = 'nine'"))
        gateway.reload()
        assert gateway.request("POST", CHAT, {"model": "new-name"}).status == 200
        status = gateway.admin("/status")
        assert not status["config"]["valid"] and "max_in_flight" in json.dumps(status["config"]["problems"])
    assert wait_until(gateway.idle, 3, "nothing runs", 0.05)


def test_a_drain_finishes_what_runs_and_ends_what_takes_too_long(start: Start, engine: FakeEngine) -> None:
    gateway = start(config(remote(engine.url), gateway='[gateway.timeouts]\ndrain = "1s"'))
    with (
        gateway.open("POST", CHAT, fault("gap=0.05,tokens=12", stream=True)) as short,
        gateway.open("POST", CHAT, fault("gap=0.05,tokens=5000", stream=True)) as long,
    ):
        short.read(10)
        long.read(10)
        began = time.monotonic()
        gateway.process.terminate()
        assert short.read().endswith(b"data: [DONE]\n\n")
        rest = long.read()
        assert b'"code":"gateway_draining"' in rest[-200:] and b"[DONE]" not in rest
        assert gateway.process.wait(20) == 0
        assert 0.9 < time.monotonic() - began < 20
    with pytest.raises(OSError):
        gateway.request("GET", "/healthz")


def test_a_drain_waits_for_a_client_that_takes_its_answer_late(
    sockets: dict[str, socket.socket], engine: FakeEngine, tmp_path: Path
) -> None:
    # All that the kernels hold; the rest of the answer waits in the gateway, and the call is over.
    sockets["public"].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    gateway = Activated(tmp_path / "g", config(remote(engine.url)), sockets)
    with connect(gateway.port, receive=4096) as slow:
        slow.sendall(post(b"X-Request-Id: late\r\n", json.dumps(fault("big=50000,tokens=2", stream=True)).encode()))
        wait_until(lambda: "request=late" in gateway.text(), 5, "the call is over", 0.02)
        gateway.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            gateway.process.wait(4)
        data = read_all(slow).data
    assert len(data) > 50_000 and data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert gateway.process.wait(20) == 0


@pytest.mark.slow
def test_a_drain_waits_for_bodies_and_answers_those_that_do_not_come(start: Start, engine: FakeEngine) -> None:
    gateway = start(config(remote(engine.url), gateway='[gateway.timeouts]\ndrain = "2s"'))
    request = post()
    with connect(gateway.port) as slow, connect(gateway.port) as never:
        for connection in (slow, never):
            connection.sendall(request[:-5])
        wait_until(lambda: gateway.metric("request_body_bytes") == 2 * (len(BODY) - 5), 5, "both are read", 0.02)
        gateway.process.terminate()
        with pytest.raises(TimeoutError):  # longer than idle connections are kept
            slow.settimeout(1.3)
            slow.recv(1)
        slow.sendall(request[-5:])
        served, refused = read_all(slow), read_all(never)
        assert served.statuses == [200] and served.seconds is not None
        assert refused.statuses == [503] and refused.error["code"] == "gateway_draining"
        assert gateway.process.wait(20) == 0


def test_an_idle_gateway_ends_at_once(start: Start, engine: FakeEngine) -> None:
    gateway = start(config(remote(engine.url)))
    kept = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=5)
    kept.request("GET", "/healthz")
    kept.getresponse().read()
    began = time.monotonic()
    assert gateway.stop() == 0
    assert time.monotonic() - began < 12  # its `drain` is a minute
    kept.close()


@pytest.mark.slow
def test_sockets_from_systemd_outlive_the_process(
    sockets: dict[str, socket.socket], engine: FakeEngine, tmp_path: Path
) -> None:
    """Restarts under load lose no request: new ones wait in the socket, old connections are told to close."""
    text = config(remote(engine.url))
    gateway = Activated(tmp_path / "g", text, sockets)
    port = sockets["public"].getsockname()[1]
    assert gateway.port == port
    done, failures, count = threading.Event(), list[str](), [0]

    def load(kept: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
        while not done.is_set():
            try:
                connection.request(
                    "POST", CHAT, json.dumps(chat(max_tokens=2)), {} if kept else {"Connection": "close"}
                )
                response = connection.getresponse()
                if response.status != 200:
                    failures.append(str(response.status))
                response.read()
                count[0] += 1
            except (OSError, http.client.HTTPException) as error:
                failures.append(repr(error))
        connection.close()

    threads = [threading.Thread(target=load, args=(kept,)) for kept in (True, False, True)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            wait_until(lambda seen=count[0]: count[0] > seen + 30, 15, "requests pass", 0.02)
            assert gateway.stop() == 0
            gateway.start_again()
        wait_until(lambda seen=count[0]: count[0] > seen + 30, 15, "requests pass", 0.02)
    finally:
        done.set()
        for thread in threads:
            thread.join(20)
        gateway.kill()
    assert failures == []


def test_a_taken_port_is_named_with_its_owner(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = config("").replace("127.0.0.1:0", f"127.0.0.1:{port}", 1)
        gateway = start(text, wait=False)
        assert gateway.process.wait(20) == 3
        assert f"127.0.0.1:{port} is taken by " in gateway.text() and f"(pid {os.getpid()})" in gateway.text()


def test_the_control_socket_is_not_for_everybody(start: Start, engine: FakeEngine) -> None:
    gateway = start(config(remote(engine.url)))
    path = gateway.run / "gateway" / "control.sock"
    assert path.stat().st_mode & 0o777 == 0o660
    assert gateway.control("/status")["v"] == 1
    assert gateway.stop() == 0
    assert not path.exists()


def test_models_come_from_the_configuration(start: Start, engine: FakeEngine) -> None:
    text = config(remote(engine.url) + '\n[[engine]]\nname = "other"\nmodel = "org/some-model"\n')
    gateway = start(text)
    assert [card["id"] for card in gateway.request("GET", "/v1/models").json["data"]] == [MODEL, "some-model"]
