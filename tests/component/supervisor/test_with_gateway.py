"""Supervisor and gateway as processes that know of one another by their files and sockets alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.gatewayprocess import FakeEngine, Gateway, chat
from tests.support.livestage import LiveStage, live
from tests.support.stage import CHAT as ENGINE
from tests.support.stage import SETTINGS, Stage, staged

CHAT = "/v1/chat/completions"
LISTEN = """
[gateway]
listen = ["127.0.0.1:0"]
admin_listen = "127.0.0.1:0"
[auth]
required = false
[audit]
enabled = false
"""


@contextmanager
def gateway_of(stage: Stage, home: Path) -> Iterator[Gateway]:
    """A gateway that shares the stage's directories and its configuration."""
    made = Gateway(home, stage.config.read_text(), LLM_APPLIANCE_STATE=str(stage.state))
    assert made.run == stage.run
    try:
        yield made
    finally:
        made.kill()


@pytest.mark.slow
def test_a_request_that_kills_the_engine_kills_it_twice() -> None:
    """From the request to the launcher's verdict, the supervisor's cause, the gateway's refusal; others are served."""
    poison, good = chat("[[fault:poison]]"), chat("hi")
    with live("tp=1") as stage:
        stage.write(stage.text_of_config, SETTINGS + LISTEN)
        with gateway_of(stage, stage.home) as gateway:
            stage.start()
            crash(stage, gateway, 1, poison)
            assert [death["cause"] for death in stage.ledger()["deaths"]] == ["engine-exception"]
            assert gateway.request("POST", CHAT, good).status == 200
            crash(stage, gateway, 2, poison)
            assert [death["cause"] for death in stage.ledger()["deaths"]] == ["engine-exception", "poison-request"]
            refused = gateway.request("POST", CHAT, poison)
            assert (refused.status, refused.code) == (422, "request_quarantined")
            assert refused.headers["x-should-retry"] == "false"
            assert gateway.request("POST", CHAT, good).status == 200
            assert stage.starts() == 3
        told = stage.journal
        assert "poison-request: a request was in flight at this crash and at an earlier one; engine-exception" in told
        assert "(KeyError)" in told and "Find the client by the request id" in told
        causes = {bundle.incident.cause for bundle in stage.bundles}
        assert causes == {"engine-exception", "poison-request"}


def crash(stage: LiveStage, gateway: Gateway, run: int, body: object) -> None:
    """The engine's run of that number serves, dies of a request, and the next one serves."""
    stage.served(run)
    gateway.wait_serving("chat")
    assert gateway.request("POST", CHAT, body).status == 503
    stage.served(run + 1)
    gateway.wait_serving("chat")


@pytest.mark.slow
def test_a_replica_drains_before_its_restart_while_another_serves(tmp_path: Path) -> None:
    """An operator's restart: new calls go to the other, the open stream ends as it would have, then it is restarted."""
    with staged(tmp_path, ENGINE + "replicas = 2\n") as stage:
        stage.write(ENGINE + "replicas = 2\n", SETTINGS + LISTEN)
        engines = {name: FakeEngine(uds=directory(stage, name) / "vllm.sock") for name in ("chat", "chat-2")}
        try:
            with gateway_of(stage, tmp_path) as gateway:
                stage.start()
                for name in engines:
                    stage.serving(name)
                    gateway.wait_serving(name)
                drained(stage, gateway, engines)
        finally:
            for engine in engines.values():
                engine.close()


def directory(stage: Stage, name: str) -> Path:
    made = stage.run / "engines" / name
    made.mkdir()
    return made


def drained(stage: Stage, gateway: Gateway, engines: dict[str, FakeEngine]) -> None:
    body: dict[str, Any] = {**chat("[[fault:hold=3]]", stream=True), "model": "chat"}
    with ExitStack() as streams:
        opened = [streams.enter_context(gateway.open("POST", CHAT, body)) for _ in engines]  # one at each
        running = {str(stream.getheader("x-engine")): stream for stream in opened}
        order = threading.Thread(target=stage.ask, args=("restart",), kwargs={"engine": "chat-2"})
        order.start()
        stage.wait_state("draining", "chat-2")
        stage.wait(lambda: stage.fleet("chat-2")["next"] == "restart after: 1 open calls", "its call is known")
        stage.wait(lambda: not gateway.serves("chat-2"), "the gateway has read it")
        assert {ask(gateway) for _ in range(6)} == {"chat"}
        assert stage.starts("chat-2") == 1
        engines["chat-2"].let_go(3)
        assert b"[DONE]" in running["chat-2"].read()
        stage.wait_started(2, "chat-2")
        order.join(20)
        stage.serve("chat-2")
        gateway.wait_serving("chat-2")
        engines["chat"].let_go(3)
        assert b"[DONE]" in running["chat"].read()
    assert {ask(gateway) for _ in range(6)} == {"chat", "chat-2"} and stage.starts("chat") == 1


def ask(gateway: Gateway) -> str:
    answer = gateway.request("POST", CHAT, {**chat(), "model": "chat"})
    assert answer.status == 200
    return answer.headers["x-engine"]
