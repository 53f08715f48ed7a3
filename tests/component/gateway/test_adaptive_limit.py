"""The limit of the real gateway follows what an engine shows of itself."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gatewayprocess import FakeEngine, Gateway, config, fault, remote
from tests.support.waiting import wait_until

from .conftest import Start

CHAT = "/v1/chat/completions"


@pytest.fixture
def fake() -> Iterator[FakeEngine]:
    made = FakeEngine()
    yield made
    made.close()


def replica(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = gateway.admin("/status")["engines"][0]["replicas"][0]
    return found


@contextlib.contextmanager
def streams(gateway: Gateway, count: int) -> Iterator[None]:
    """So many calls that go on and on."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            body = fault("gap=0.2,tokens=10000", stream=True)
            stack.enter_context(gateway.open("POST", CHAT, body)).read(10)
        yield


@pytest.mark.slow
def test_it_rises_falls_and_rises_again(start: Start, fake: FakeEngine) -> None:
    gateway = start(config(remote(fake.url)))
    assert replica(gateway)["limit"] == 32
    with streams(gateway, 30):
        high = wait_until(lambda: (now := replica(gateway)["limit"]) > 40 and now, 10, "the limit rises", 0.1)
        fake.engine.fault = {"waiting": 40.0}
        low = wait_until(lambda: (now := replica(gateway)["limit"]) < high and now, 10, "the limit falls", 0.1)
        assert replica(gateway)["limit_reason"] == "calls wait inside the engine"
        metrics = gateway.request("GET", "/metrics", port=gateway.admin_port).body.decode()
        shown = re.search(r'^llm_appliance_concurrency_limit\{replica="[^"]+"\} (\d+)', metrics, re.M)
        assert shown and int(shown[1]) <= low
        fake.engine.fault = {}
        low = replica(gateway)["limit"]
        wait_until(lambda: replica(gateway)["limit"] > low, 15, "the limit rises again", 0.1)
    wait_until(gateway.idle, 10, "every call is gone", 0.05)


@pytest.mark.slow
def test_metrics_that_stop_freeze_it(start: Start, fake: FakeEngine) -> None:
    """An engine that can no longer be seen gets no more calls than when it was."""
    gateway = start(config(remote(fake.url)))
    with streams(gateway, 30):
        wait_until(lambda: replica(gateway)["limit"] > 33, 10, "the limit rises", 0.1)
        fake.engine.fault = {"waiting": -1.0, "kv": -1.0, "preempted": -1.0}
        stopped = "its metrics have stopped"
        wait_until(lambda: replica(gateway)["limit_reason"] == stopped, 10, "the gateway sees it", 0.1)
        frozen, seen = replica(gateway)["limit"], fake.engine.scrapes
        wait_until(lambda: fake.engine.scrapes >= seen + 3, 15, "it looks again", 0.1)
        assert replica(gateway)["limit"] == frozen
        fake.engine.fault = {"waiting": 40.0}  # it may have risen as far as so many calls can make it
        wait_until(lambda: replica(gateway)["limit"] < frozen, 15, "the limit moves again", 0.1)
    wait_until(gateway.idle, 10, "every call is gone", 0.05)


@pytest.mark.slow
def test_late_first_tokens_make_it_fall(start: Start, fake: FakeEngine) -> None:
    """Of an engine whose metrics say nothing the calls themselves tell."""
    gateway = start(config(remote(fake.url), gateway="[gateway.stream]\nkeepalive = '200ms'"))
    fake.engine.fault = {"waiting": -1.0, "kv": -1.0, "preempted": -1.0}
    with contextlib.ExitStack() as stack:
        for _ in range(10):  # a comment comes first, so that the client's response begins
            stack.enter_context(gateway.open("POST", CHAT, fault("first=30", stream=True)))
        wait_until(lambda: replica(gateway)["limit"] < 32, 15, "the limit falls", 0.1)
        assert replica(gateway)["limit_reason"] == "first tokens are late"


@pytest.mark.slow
def test_a_restart(start: Start, tmp_path: Path) -> None:
    """Another start of the engine begins anew. (The name is short for the socket's path is bounded.)"""
    path = tmp_path / "gateway0" / "run" / "engines" / "chat" / "vllm.sock"
    path.parent.mkdir(parents=True)
    fake = FakeEngine(uds=path)
    try:
        gateway = start(config('[[engine]]\nname = "chat"\nmodel = "builtin:smollm2-135m"'))
        gateway.engine_state("chat", "serving", start="a")
        wait_until(lambda: replica(gateway)["serving"], 5, "it serves", 0.05)
        with streams(gateway, 30):
            wait_until(lambda: replica(gateway)["limit"] > 40, 10, "the limit rises", 0.1)
        wait_until(gateway.idle, 10, "every call is gone", 0.05)
        gateway.engine_state("chat", "serving", start="b")
        wait_until(lambda: replica(gateway)["limit"] == 32, 5, "the limit begins anew", 0.05)
    finally:
        fake.close()


def test_a_configured_limit_stands_and_the_engine_is_left_alone(start: Start, fake: FakeEngine) -> None:
    gateway = start(config(remote(fake.url), gateway="[gateway.admission]\nmax_in_flight = 40"))
    fake.engine.fault = {"waiting": 30.0}
    with streams(gateway, 30):
        assert replica(gateway)["limit"] == 40
        assert replica(gateway)["limit_reason"] == "configured"
