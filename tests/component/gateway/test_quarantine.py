"""Requests under which engines crash, and replicas that may hang: what the gateway does about them.

What kills an engine here is the test: its connections end, and it says what launcher and supervisor would have said.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gatewayprocess import FakeEngine, Gateway, chat, config
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"
LOCAL = '[[engine]]\nname = "chat"\nmodel = "builtin:smollm2-135m"\n'


class Stage:
    """A gateway over engines on their sockets, which this class starts and lets die."""

    def __init__(self, directory: Path, names: tuple[str, ...] = ("chat",)) -> None:
        self.gateway = Gateway(directory, config(f"{LOCAL}replicas = {len(names)}\n"))
        self.engines: dict[str, FakeEngine] = {}
        self.deaths: dict[str, dict[str, Any] | None] = dict.fromkeys(names)
        self.runs = dict.fromkeys(names, 0)
        try:
            for name in names:
                (self.gateway.run / "engines" / name).mkdir(parents=True)
                self.engines[name] = FakeEngine(uds=self.gateway.run / "engines" / name / "vllm.sock")
            self.serve(*names)
        except BaseException:
            self.close()
            raise

    def start(self, name: str) -> str:
        """The launcher's name of an engine's present run."""
        return f"{name}-{self.runs[name]}"

    def serve(self, *names: str) -> None:
        """The next run of each serves, and the gateway knows."""
        for name in names:
            self.runs[name] += 1
            self.run(name, "serving")
        self.tell()

        def known() -> bool:
            seen = {one["name"]: one for one in self.replicas()}
            return all(seen[name]["digest"] == self.start(name) and seen[name]["serving"] for name in names)

        wait_until(known, 5, "they serve", 0.05)

    def run(self, name: str, phase: str) -> None:
        """The launcher writes; the digest tells in the status which run the gateway has seen."""
        self.gateway.engine_state(name, phase, start=self.start(name), digest=self.start(name), ready=time.time())

    def replicas(self) -> list[dict[str, Any]]:
        return list(self.gateway.admin("/status")["engines"][0]["replicas"])

    def tell(self, **more: dict[str, Any]) -> None:
        """The supervisor writes."""
        self.gateway.fleet(
            **{name: {"state": "serving", "death": death, **more.get(name, {})} for name, death in self.deaths.items()}
        )

    def wait_heard(self) -> None:
        """The gateway has read what the supervisor wrote last; it looks twice a second."""
        at = json.loads((self.gateway.run / "supervisor/fleet.json").read_text())["at"]
        wait_until(lambda: self.gateway.admin("/status")["supervisor"]["at"] == at, 5, "the gateway has looked", 0.05)

    def die(self, cause: str = "engine-exception", name: str = "chat", late: float = 0.0, killed: bool = False) -> None:
        """The engine's run ends, and the supervisor tells of what."""
        self.run(name, "exited")
        self.deaths[name] = {"start": self.start(name), "at": time.time() + late, "cause": cause, "killed": killed}
        self.tell(**{name: {"state": "restarting"}})

    def crash(self, *bodies: object, cause: str = "engine-exception", killed: bool = False) -> None:
        """An engine dies with these in flight, and the next run serves."""
        self.lose(*bodies)
        self.die(cause, killed=killed)
        self.serve("chat")

    def lose(self, *bodies: object, name: str = "chat") -> None:
        """The engine's connections end under these."""
        engine = self.engines[name].engine
        engine.fault = {"refuse": 1.0}
        for body in bodies:
            answer = self.send(body)
            assert (answer.status, answer.code) == (503, "engine_restarting")
        engine.fault = {}

    def send(self, body: object, path: str = CHAT, mark: str = "") -> Any:
        return self.gateway.request("POST", path, body, X_Request_Id=mark or "some-id")

    def suspects(self, name: str = "chat") -> int:
        return int(self.gateway.control("/ledger")["engines"][name]["suspects"])

    def counts(self) -> tuple[int, int]:
        told = self.gateway.admin("/status")["gateway"]["quarantine"]
        return told["suspected"], told["refused"]

    def close(self) -> None:
        self.gateway.kill()
        for engine in self.engines.values():
            engine.close()


Make = Callable[..., Stage]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Stage] = []

    def begin(*names: str) -> Stage:
        made.append(Stage(tmp_path / "g", names or ("chat",)))  # a socket's path is short
        return made[-1]

    yield begin
    for stage in made:
        stage.close()


def test_what_two_crashes_saw_is_refused_and_nothing_else(make: Make) -> None:
    """Twice with others in flight, of which each was there once or was served between."""
    stage = make()
    guilty, once, often = chat("guilty"), chat("once"), chat("often")
    stage.crash(guilty, once, often)
    assert stage.counts() == (3, 0)
    assert stage.send(often).status == 200  # cleared
    assert stage.counts() == (2, 0) and stage.suspects() == 0
    stage.engines["chat"].engine.fault = {"refuse": 1.0}
    assert stage.send(guilty, mark="who-sent-it").status == 503
    assert stage.suspects() == 1  # what the supervisor asks when the engine has ended
    stage.crash(often)
    told = stage.engines["chat"].log
    before = len(told)
    refused = stage.send(guilty)
    assert (refused.status, refused.headers["x-should-retry"]) == (422, "false")
    assert "retry-after" not in refused.headers and refused.headers["x-request-id"] == "some-id"
    error = refused.json["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_quarantined")
    assert "two crashes" in error["message"] and "guilty" not in error["message"]
    assert len(told) == before
    assert stage.send(once).status == stage.send(often).status == stage.send(chat("guilty", stream=True)).status == 200
    assert stage.counts() == (0, 1)
    assert stage.gateway.metric("quarantined_requests") == stage.gateway.metric("requests_quarantined_total") == 1
    line = next(line for line in stage.gateway.text().splitlines() if "and is refused for" in line)
    assert "engine-exception of chat" in line
    assert "guilty" not in stage.gateway.text()


def test_a_worker_that_somebody_kills_is_no_requests_fault(make: Make) -> None:
    stage = make()
    body = chat("innocent")
    for _ in range(2):
        stage.crash(body, cause="worker-died", killed=True)
    assert stage.counts() == (0, 0)
    assert stage.send(body).status == 200
    for _ in range(2):
        stage.crash(body, cause="worker-died")
    assert stage.send(body).status == 422


@pytest.mark.parametrize("answer", ["status=500", "error=3"])
def test_an_engine_that_dies_with_an_answer_on_its_lips(make: Make, answer: str) -> None:
    """vLLM's API process outlives its engine core for a moment: 500, an error event, or a stream cut off."""
    stage = make()
    body = chat("guilty", stream=True)
    engine = stage.engines["chat"].engine
    for _ in range(2):
        engine.fault = {name: float(value) for name, _, value in [answer.partition("=")]}
        stage.send(body)
        engine.fault = {}
        stage.die()
        stage.serve("chat")
    assert stage.send(body).status == 422


def test_who_left_before_and_what_failed_long_before_has_no_part_in_a_crash(make: Make) -> None:
    stage = make()
    left, failed = chat("left", stream=True), chat("failed")
    engine = stage.engines["chat"]
    for _ in range(2):
        engine.engine.fault = {"stall": 1.0}
        with stage.gateway.open("POST", CHAT, left) as stream:
            stream.read(5)
        wait_until(stage.gateway.idle, 5, "it has left", 0.05)
        stage.lose(failed)
        stage.die(late=61.0)
        stage.serve("chat")
    assert stage.send(left).status == stage.send(failed).status == 200 and stage.counts() == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["", "engine-died"])
def test_what_no_request_does_counts_for_nothing(make: Make, cause: str) -> None:
    """An operator's restart or an apply (no death is told), a kill from outside."""
    stage = make()
    body = chat("again and again")
    for _ in range(3):
        stage.lose(body)
        if cause:
            stage.die(cause)
        stage.serve("chat")
    assert stage.send(body).status == 200 and stage.counts() == (0, 0)


def test_a_death_of_another_run_says_nothing_of_this_one(make: Make) -> None:
    stage = make()
    body = chat("late")
    stage.crash()  # nothing was in flight
    for _ in range(3):  # the supervisor tells of it on and on
        stage.lose(body)
        stage.tell()
        stage.wait_heard()
    assert stage.send(body).status == 200 and stage.counts() == (0, 0)


def test_what_is_still_open_when_a_hang_is_told_counts(make: Make) -> None:
    """The supervisor tells of a hang before it kills: what is in flight then is in flight at the crash."""
    stage = make()
    body = chat("turns for ever", stream=True)
    engine = stage.engines["chat"]
    for _ in range(2):
        engine.engine.fault = {"stall": 1.0}
        with stage.gateway.open("POST", CHAT, body) as stream:
            stream.read(5)
            stage.die("hang-livelock")
            stage.serve("chat")
        engine.engine.fault = {}
    assert stage.send(body).status == 422


def test_several_that_were_there_both_times_run_one_at_a_time(make: Make) -> None:
    stage = make()
    first, second, other = chat("first", stream=True), chat("second", stream=True), chat("other", stream=True)
    for _ in range(2):
        stage.crash(first, second)
    assert "2 requests were in flight at two crashes" in stage.gateway.text()
    engine = stage.engines["chat"]
    engine.engine.fault = {"hold": 2.0}
    with stage.gateway.open("POST", CHAT, first) as running:
        assert running.status == 200
        wait = stage.send(second)
        assert (wait.status, wait.code) == (429, "concurrency_limit")
        assert 1 <= float(wait.headers["retry-after"]) <= 10
        with stage.gateway.open("POST", CHAT, other) as beside:  # nobody else waits
            assert beside.status == 200
            engine.let_go(2)
            assert b"[DONE]" in beside.read()
        assert b"[DONE]" in running.read()
    engine.engine.fault = {}
    wait_until(lambda: stage.counts() == (1, 0), 5, "the first is cleared", 0.05)
    stage.crash(second)
    assert stage.send(second).status == 422 and stage.send(first).status == 200


def test_one_that_is_suspected_takes_no_second_engine_with_it(make: Make) -> None:
    """The gateway sends a lost call to another replica once; not one under which an engine has crashed before."""
    stage = make("chat", "chat-2")
    body = chat("guilty")
    for name in ("chat", "chat-2"):
        stage.engines[name].engine.fault = {"refuse": 1.0}
    assert stage.send(body).status == 503
    sent = {name: len(stage.engines[name].log) for name in stage.engines}
    assert sent == {"chat": 1, "chat-2": 1}
    stage.die(name="chat")
    stage.serve("chat-2")  # which was restarted for another reason
    assert stage.counts() == (1, 0)
    assert stage.send(body).status == 503
    assert sum(len(engine.log) for engine in stage.engines.values()) == 3


def test_a_replica_that_may_hang_comes_last_until_it_may_not(make: Make) -> None:
    stage = make("chat", "chat-2")

    def served_by() -> set[str]:
        return {stage.send(chat()).headers["x-engine"] for _ in range(6)}

    def marked(*names: str) -> bool:
        return [one["name"] for one in stage.replicas() if one["suspect"]] == list(names)

    assert served_by() == {"chat", "chat-2"}
    stage.tell(chat={"suspect": True})
    wait_until(lambda: marked("chat"), 5, "it is suspected", 0.05)
    assert served_by() == {"chat-2"}
    stage.tell(chat={"suspect": True}, **{"chat-2": {"suspect": True}})
    wait_until(lambda: marked("chat", "chat-2"), 5, "both are", 0.05)
    assert served_by() == {"chat", "chat-2"}
    stage.tell(chat={"suspect": True}, **{"chat-2": {"state": "restarting"}})
    stage.run("chat-2", "exited")
    wait_until(lambda: marked("chat") and not stage.replicas()[1]["serving"], 5, "one is left", 0.05)
    assert served_by() == {"chat"}  # better than none
    stage.tell()
    stage.run("chat-2", "serving")
    wait_until(lambda: marked() and all(one["serving"] for one in stage.replicas()), 5, "nothing is suspected", 0.05)
    assert served_by() == {"chat", "chat-2"}


def test_a_suspicion_that_nobody_repeats_ends(make: Make) -> None:
    """The supervisor went away in the middle: what it thought then holds for half a minute."""
    stage = make("chat", "chat-2")
    stage.tell(chat={"suspect": True})
    wait_until(lambda: stage.replicas()[0]["suspect"], 5, "it is suspected", 0.05)
    stage.gateway.fleet_at = time.time() - 31.0
    stage.tell(chat={"suspect": True})
    wait_until(lambda: not stage.replicas()[0]["suspect"], 5, "that was long ago", 0.05)
