from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance import clock
from appliance.errors import ApiError
from appliance.gateway.finish import End, Finish
from appliance.gateway.quarantine import Quarantines, Watch
from tests.support.journalsocket import Listener

BODY = b'{"model": "m", "prompt": "secret words"}'


class World:
    """One engine with one replica, and what fleet.json tells of it."""

    def __init__(self, directory: Path) -> None:
        self.listener = Listener(directory / "journal")
        self.quarantines = Quarantines(self.listener.journal)
        self.replica: Any = SimpleNamespace(name="chat", start="")
        self.told: dict[str, object] = {}
        self.engines: Any = SimpleNamespace(
            groups={"chat": SimpleNamespace(replicas={"chat": self.replica})}, told=lambda _: self.told
        )

    def call(self, body: bytes = BODY, path: str = "/v1/completions") -> Watch:
        """A call that was sent to the engine."""
        watch = self.quarantines.check("chat", path, body, "the-request", "the-key")
        watch.check()
        watch.sent(self.replica)
        return watch

    def crash(self, run: str, *watches: Watch) -> None:
        """The engine's run ends under these, and the supervisor tells."""
        for watch in watches:
            watch.ended(Finish(End.LOST), 0)
            watch.close()
        death = {"start": run, "at": clock.wall(), "cause": "cuda-fault"}
        self.told = {"death": death}
        self.quarantines.look(self.engines)
        self.quarantines.look(self.engines)  # which is no news


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    yield made
    made.listener.close()


def test_the_journal_names_request_and_key_and_nothing_else(world: World) -> None:
    for run in ("one", "two"):
        world.replica.start = run
        watch = world.call()
        assert world.quarantines.suspects("chat", world.replica) == (run == "two")
        world.crash(run, watch)
    with pytest.raises(ApiError) as refused:
        world.call()
    assert (refused.value.code, refused.value.status, refused.value.final) == ("request_quarantined", 422, True)
    assert world.call(path="/v1/chat/completions").suspect is False  # the same bytes are another request there
    (entry,) = world.listener.entries()
    assert (entry["LLM_EVENT"], entry["LLM_ENGINE"]) == ("request-quarantined", "chat")
    assert (entry["LLM_REQUEST_ID"], entry["LLM_KEY_ID"]) == ("the-request", "the-key")
    assert not any(str(hash(("/v1/completions", BODY))) in value or "secret" in value for value in entry.values())
    assert world.quarantines.counts() == {"suspected": 0, "refused": 1}


def test_one_that_waited_is_refused_when_its_turn_comes(world: World) -> None:
    """The same request twice at once: one kills, the other one waits in the queue meanwhile."""
    waiting = world.quarantines.check("chat", "/v1/completions", BODY, "second", "the-key")
    for run in ("one", "two"):
        world.replica.start = run
        world.crash(run, world.call())
    with pytest.raises(ApiError):
        waiting.check()
    waiting.close()


def test_what_is_not_local_and_what_is_answered_is_nobodys_fault(world: World) -> None:
    for status, finish in ((200, End.COMPLETE), (400, End.COMPLETE), (0, End.LEFT)):
        world.replica.start = "run"
        watch = world.call()
        watch.ended(Finish(finish), status)
        watch.close()
        world.crash("run")
    for _ in range(3):
        world.replica.start = ""  # a remote engine has no launcher
        world.crash("", world.call())
    assert world.quarantines.counts() == {"suspected": 0, "refused": 0}


def test_the_bytes_of_a_call_are_not_kept_when_others_let_them_go(world: World) -> None:
    body = BODY * 100
    held = sys.getrefcount(body)
    world.replica.start = "one"
    runs, fails, ends = (world.call(body, f"/v1/{n}") for n in range(3))
    numbers = [watch.body for watch in (runs, fails, ends)]
    runs.let_go()
    fails.ended(Finish(End.LOST), 0)
    fails.close()
    assert [runs.body, fails.body, ends.body] == numbers
    ends.ended(Finish(End.COMPLETE), 200)
    ends.close()
    del ends
    assert sys.getrefcount(body) == held
    assert world.quarantines.suspects("chat", world.replica) == 0


def test_an_engine_that_is_gone_from_the_configuration_is_forgotten(world: World) -> None:
    world.replica.start = "one"
    running = world.call(b"{}")
    world.crash("one", world.call())
    assert world.quarantines.counts()["suspected"] == 2
    world.engines.groups = {}
    world.quarantines.look(world.engines)
    assert world.quarantines.counts()["suspected"] == 2  # its last call is not over
    running.close()
    world.quarantines.look(world.engines)
    assert world.quarantines.counts()["suspected"] == 0
