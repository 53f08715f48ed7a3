"""A new process takes over: nothing is lost, all is counted once, and one that fails to come up changes nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.config.model import KeyLimits
from appliance.host import keystore
from tests.component.gateway.test_audit import audit, lines
from tests.component.gateway.test_life import Manager
from tests.support.gatewayprocess import FakeEngine, Response, chat, config, fault, remote
from tests.support.lineage import Lineage
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"
NARROW = '[gateway.admission]\nmax_in_flight = 1\nqueue_timeout = "5m"\n'
Begin = Callable[..., Lineage]


@pytest.fixture
def begin(tmp_path: Path, engine: FakeEngine) -> Iterator[Begin]:
    """A gateway with keys and a ledger; it and all that follow it are ended."""
    made: list[Lineage] = []
    (tmp_path / "audit").mkdir()
    keystore.create(str(tmp_path / "keys.toml"), "first", time.time())

    def start(gateway: str = "", **environment: Any) -> Lineage:
        text = config(remote(engine.url), gateway=gateway, auth=f'keys_file = "{tmp_path}/keys.toml"').replace(
            "[audit]\nenabled = false", f'[audit]\ndirectory = "{tmp_path}/audit"'
        )
        made.append(Lineage(tmp_path / "lineage", text, **environment))
        return made[-1]

    yield start
    for one in made:
        one.kill()
    for number in (5, 6):
        engine.let_go(number, open_=False)


def key(tmp_path: Path, name: str, **limits: Any) -> dict[str, Any]:
    secret = keystore.create(str(tmp_path / "keys.toml"), name, time.time(), limits=KeyLimits(**limits))[1]
    return {"Authorization": f"Bearer {secret}"}


@contextlib.contextmanager
def stream(gateway: Lineage, hold: int, **fields: Any) -> Iterator[http.client.HTTPResponse]:
    """A stream of 40 tokens that has begun, and goes on behind token `hold` when the engine lets it go."""
    body = fault(f"gap=0.01,tokens=40,hold={hold}", stream=True)
    with gateway.open("POST", CHAT, body, limit=120, **fields) as response:
        assert response.status == 200
        response.read(10)
        yield response


def whole(rest: bytes) -> bool:
    """Whether the rest of a stream has all tokens and its end; its first bytes were read before."""
    return rest.count(b'"content":"') >= 40 and rest.endswith(b"data: [DONE]\n\n")


def verified(gateway: Lineage, tmp_path: Path, count: int) -> None:
    """One chain, a line for each call, none twice."""
    wait_until(lambda: len(lines(tmp_path / "audit")) >= count, 10, f"{count} lines", 0.05)
    told = audit(gateway.config_file, "verify")
    assert told.returncode == 0, told.stdout + told.stderr
    ids = [line["request_id"] for line in lines(tmp_path / "audit")]
    assert len(ids) == len(set(ids)) == count


@pytest.mark.slow
def test_under_load_nothing_is_lost_and_one_chain_is_written(begin: Begin, engine: FakeEngine, tmp_path: Path) -> None:
    manager = Manager(tmp_path / "notify")
    gateway = begin(NOTIFY_SOCKET=str(manager.path))
    fields = key(tmp_path, "load")
    done, failures, count = threading.Event(), list[str](), [0]

    def load(kept: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
        while not done.is_set():
            try:
                connection.request("POST", CHAT, json.dumps(chat(max_tokens=2)),
                                   fields if kept else {**fields, "Connection": "close"})  # fmt: skip
                response = connection.getresponse()
                if response.status != 200:
                    failures.append(f"{response.status} {response.read()[:200]!r}")
                response.read()
                count[0] += 1
            except (OSError, http.client.HTTPException) as error:
                failures.append(repr(error))
        connection.close()

    threads = [threading.Thread(target=load, args=(kept,)) for kept in (True, False)]
    with stream(gateway, 5, **fields) as long:
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                wait_until(lambda seen=count[0]: count[0] > seen + 20, 30, "requests pass", 0.02)
                pid = gateway.hand_over()
                assert f"MAINPID={pid}" in manager.lines()
                wait_until(lambda pid=pid: "READY=1" in manager.after(f"MAINPID={pid}"), 10, "READY behind it", 0.02)
            wait_until(lambda seen=count[0]: count[0] > seen + 20, 30, "requests pass", 0.02)
        finally:
            done.set()
            for thread in threads:
                thread.join(40)
        assert failures == []
        engine.let_go(5)
        assert whole(long.read())
    for pid in gateway.pids[:-1]:
        gateway.wait_gone(pid)
    assert gateway.process.returncode == 0
    wait_until(gateway.still, 10, "all counters at zero", 0.05)
    verified(gateway, tmp_path, count[0] + 1)
    manager.socket.close()


@pytest.mark.slow
def test_the_new_process_alone_counts(begin: Begin, engine: FakeEngine, tmp_path: Path) -> None:
    """Places of an engine, of a key, its minute and its day: what the old process holds stands in new calls' way."""
    gateway = begin(NARROW.replace("1", "2", 1))
    one, many = key(tmp_path, "one", parallel=1), key(tmp_path, "many", daily_tokens=5000)
    with stream(gateway, 5, **one) as first, stream(gateway, 6, **many) as second:
        waiting = threading.Thread(
            target=lambda: replies.append(gateway.request("POST", CHAT, chat(), limit=120, **many))
        )
        replies: list[Response] = []
        waiting.start()
        wait_until(lambda: gateway.admin("/status")["gateway"]["queued"] == 1, 10, "a call waits", 0.02)
        gateway.hand_over()
        status = gateway.admin("/status")
        assert (status["gateway"]["running"], status["gateway"]["queued"]) == (2, 1)
        assert status["keys"]["running"] == 3
        refused = gateway.request("POST", CHAT, chat(), **one)
        assert (refused.status, refused.code) == (429, "concurrency_limit")
        engine.let_go(5)
        engine.let_go(6)
        assert whole(first.read())
        assert whole(second.read())
        waiting.join(120)
    assert replies[0].status == 200, "a call that waited in the old process is let in by the new one"
    assert "x-queue-time-ms" in replies[0].headers
    gateway.wait_gone(gateway.pids[0])
    wait_until(gateway.still, 10, "all counters at zero", 0.05)
    assert gateway.request("POST", CHAT, chat(), **one).status == 200
    kept = tmp_path / "lineage/state/gateway/use.json"
    wait_until(lambda: kept.exists() and len(json.loads(kept.read_text())["keys"]) == 2, 10, "what both used", 0.05)


@pytest.mark.slow
def test_a_connection_from_before_brings_one_more_call(begin: Begin, engine: FakeEngine, tmp_path: Path) -> None:
    """The old process answers it, the new one counts it; then the connection ends, announced."""
    gateway = begin()
    fields = key(tmp_path, "kept", rpm=2)
    kept = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    other = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    for connection in (kept, other):
        connection.request("GET", "/readyz")
        assert connection.getresponse().read()
    gateway.hand_over()
    kept.request("POST", CHAT, json.dumps(chat()), fields)
    response = kept.getresponse()
    assert response.status == 200 and response.headers["Connection"] == "close"
    response.read()
    assert gateway.request("POST", CHAT, chat(), **fields).status == 200
    other.request("POST", CHAT, json.dumps(chat()), fields)
    response = other.getresponse()
    assert response.status == 429 and b"rate_limit_exceeded" in response.read(), "both processes draw on one allowance"
    gateway.wait_gone(gateway.pids[0])
    wait_until(gateway.still, 10, "all counters at zero", 0.05)
    verified(gateway, tmp_path, 3)


BROKEN = (
    ("gateway/main.py", "def main(", "def main(:"),
    ("gateway/app.py", "        await self._begin(expected)\n", "        os._exit(9)\n"),
    ("gateway/handover.py", 'self._lines.say({"op": "serving"})', "os._exit(9)"),
)


@pytest.mark.slow
def test_a_new_process_that_fails_changes_nothing(begin: Begin, engine: FakeEngine, tmp_path: Path) -> None:
    """No program, dead with all in its hands, dead in the last step, a configuration that is none; then a good one."""
    gateway = begin(NARROW)
    fields, queued = key(tmp_path, "one"), list[Response]()
    waiting = threading.Thread(target=lambda: queued.append(gateway.request("POST", CHAT, chat(), limit=120, **fields)))
    with stream(gateway, 5, **fields) as running:
        waiting.start()
        wait_until(lambda: gateway.admin("/status")["gateway"]["queued"] == 1, 10, "a call waits", 0.02)
        for file, good, bad in BROKEN:
            gateway.install(file, good, bad)
            assert "this one goes on as before" in gateway.refused()
            gateway.install(file, bad, good)
        before = gateway.config_file.read_text()
        gateway.config_file.write_text(before + "\n[nonsense]\n")
        assert "the configuration is invalid" in gateway.refused()
        gateway.config_file.write_text(before)
        status = gateway.admin("/status")["gateway"]
        assert (status["pid"], status["running"], status["queued"]) == (gateway.pids[0], 1, 1)
        engine.let_go(5)
        assert whole(running.read())
    waiting.join(120)
    assert queued[0].status == 200, "it waited behind the stream, as before"
    gateway.hand_over()
    assert gateway.request("POST", CHAT, chat(), **fields).status == 200
    gateway.wait_gone(gateway.pids[0])
    wait_until(gateway.still, 10, "all counters at zero", 0.05)
    verified(gateway, tmp_path, 3)


@pytest.mark.slow
def test_what_a_killed_old_process_held_comes_back_at_once(begin: Begin, engine: FakeEngine, tmp_path: Path) -> None:
    gateway = begin(NARROW)
    fields = key(tmp_path, "one", parallel=1)
    with stream(gateway, 5, **fields):
        gateway.hand_over()
        assert gateway.request("POST", CHAT, chat(), **fields).code == "concurrency_limit"
        os.kill(gateway.pids[0], signal.SIGKILL)
        wait_until(gateway.still, 5, "all counters at zero", 0.02)
        assert gateway.request("POST", CHAT, chat(), **fields).status == 200


@pytest.mark.parametrize("next_one", ["while it runs", pytest.param("after its end", marks=pytest.mark.slow)])
def test_what_a_killed_new_process_did_not_hear_the_next_one_writes(
    begin: Begin, engine: FakeEngine, tmp_path: Path, next_one: str
) -> None:
    gateway = begin()
    fields = key(tmp_path, "one", daily_tokens=100_000)
    with stream(gateway, 6, **fields) as long, stream(gateway, 5, **fields) as short:
        gateway.hand_over()
        os.kill(gateway.pids[1], signal.SIGKILL)
        gateway.wait_gone(gateway.pids[1])
        engine.let_go(5)
        assert whole(short.read()), "a stream needs no new process"
        if next_one == "while it runs":
            gateway.succeed_by_hand()
            wait_until(lambda: [one["running"] for one in gateway.predecessors()] == [1], 10, "it is counted", 0.05)
            verified(gateway, tmp_path, 1)
        engine.let_go(6)
        assert whole(long.read())
    gateway.wait_gone(gateway.pids[0])
    if next_one == "after its end":
        gateway.succeed_by_hand()
    verified(gateway, tmp_path, 2)
    wait_until(gateway.still, 10, "all counters at zero", 0.05)
    assert not [name for name in os.listdir(tmp_path / "lineage/state/gateway") if name.startswith("unreported")]
    assert gateway.request("POST", CHAT, chat(), **fields).status == 200


@pytest.mark.slow
def test_a_second_hand_over_while_the_first_process_still_finishes(
    begin: Begin, engine: FakeEngine, tmp_path: Path
) -> None:
    gateway = begin("[gateway.admission]\nmax_in_flight = 3\n")
    fields = key(tmp_path, "one")
    with stream(gateway, 5, **fields) as oldest:
        gateway.hand_over()
        with stream(gateway, 6, **fields) as older:
            gateway.hand_over()
            assert {one["pid"]: one["running"] for one in gateway.predecessors()} == dict.fromkeys(gateway.pids[:2], 1)
            assert gateway.control("/ledger")["engines"]["default"]["inflight"] == 2
            engine.let_go(6)
            assert whole(older.read())
        gateway.wait_gone(gateway.pids[1])
        engine.let_go(5)
        assert whole(oldest.read())
    gateway.wait_gone(gateway.pids[0])
    wait_until(gateway.still, 10, "all counters at zero", 0.05)
    verified(gateway, tmp_path, 2)


@pytest.mark.slow
def test_a_stop_in_the_middle_ends_both_within_drain(begin: Begin, engine: FakeEngine, tmp_path: Path) -> None:
    gateway = begin('[gateway.timeouts]\ndrain = "3s"\n')
    fields = key(tmp_path, "one")
    with stream(gateway, 5, **fields) as short, stream(gateway, 6, **fields) as long:
        gateway.hand_over()
        gateway.signal_main(signal.SIGTERM)
        engine.let_go(5)
        assert whole(short.read())
        rest = long.read()
        assert b'"code":"gateway_draining"' in rest[-200:] and b"[DONE]" not in rest
        for pid in gateway.pids:
            gateway.wait_gone(pid)
    verified(gateway, tmp_path, 2)
