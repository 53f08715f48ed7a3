"""Orders over the control socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stage import CHAT, EMBED, LIMIT, Stage, staged, unit


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, CHAT + EMBED) as made:
        made.start()
        made.serving("chat")
        made.serving("embed")
        yield made


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One for those who change nothing."""
    with staged(tmp_path_factory.mktemp("still"), CHAT + EMBED) as made:
        made.start()
        made.serving("chat")
        made.serving("embed")
        yield made


class Order:
    """An order that runs beside the test."""

    def __init__(self, stage: Stage, op: str, **fields: object) -> None:
        self.lines: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=lambda: self.lines.extend(stage.ask(op, **fields)))
        self._thread.start()

    def done(self) -> dict[str, Any]:
        self._thread.join(LIMIT)
        assert not self._thread.is_alive(), "the order has not ended"
        return self.lines[-1] if self.lines else {}  # a supervisor that was killed had no time for a word


def test_status_is_the_fleet(still: Stage) -> None:
    fleet, done = still.ask("status")
    assert done["ok"] is True
    assert {name: entry["state"] for name, entry in fleet["engines"].items()} == {"chat": "serving", "embed": "serving"}
    assert fleet["mode"] == "act"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"op": "explode"}, "no op"),
        ({"op": "hold"}, "no local engine"),
        ({"op": "hold", "engine": "chta"}, "has: chat, embed"),
        ({"op": "restart", "engine": ["chat"]}, "no local engine"),
    ],
)
def test_wrong_orders_are_refused(still: Stage, fields: dict[str, Any], message: str) -> None:
    done = still.ask(**fields)[-1]
    assert done["ok"] is False
    assert message in done["message"]


@pytest.mark.parametrize("sent", [b"nonsense\n", b"\n", b"[1]\n", b"x" * 100_000 + b"\n", b"\xff\n", b""])
def test_garbage_is_answered_and_the_next_order_too(still: Stage, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LIMIT)
        connection.connect(str(still.run / "supervisor/control.sock"))
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile("rb").readline()
        except ConnectionError:  # closed on us in the middle of too long a line
            answer = b""
    if answer:
        assert json.loads(answer)["ok"] is False
    assert still.ask("status")[-1]["ok"] is True


@pytest.mark.slow
def test_restart_waits_until_it_serves(stage: Stage) -> None:
    order = Order(stage, "restart", engine="chat", wait=True)
    stage.wait_started(2)
    stage.serve("chat")
    assert order.done() == {"done": True, "ok": True, "message": "chat: settled"}
    states = [line["state"] for line in order.lines if line.get("event") == "state"]
    assert states[0] == "restarting" and states[-1] == "serving"
    assert stage.starts("embed") == 1


@pytest.mark.slow
def test_what_was_ordered_is_shown_when_it_is_answered(stage: Stage) -> None:
    """Who asks for the status next is not told how it was before."""
    stage.ask("drain", engine="chat")
    assert stage.fleet("chat")["state"] == "draining"
    stage.ask("undrain", engine="chat")
    assert stage.fleet("chat")["state"] == "serving"
    stage.ask("restart", engine="embed")
    assert stage.fleet("embed")["state"] in ("restarting", "starting")
    stage.ask("hold", engine="chat")
    assert stage.fleet("chat")["state"] == "held"
    stage.ask("resume", engine="chat")
    assert stage.fleet("chat")["state"] in ("starting", "waiting")


@pytest.mark.slow
def test_what_was_applied_is_no_edit_any_more(stage: Stage) -> None:
    stage.write("[gateway]\nmax_connections = 4000\n" + CHAT + EMBED)
    stage.wait(lambda: stage.drift, "the edit is shown")
    assert stage.ask("apply")[-1]["message"] == "no engine had to be touched"
    assert stage.drift == []


@pytest.mark.slow
@pytest.mark.parametrize("op", ["restart", "apply"])
def test_an_engine_that_gets_no_calls_settles_too(stage: Stage, op: str) -> None:
    stage.ask("drain", engine="chat")
    if op == "apply":
        stage.write(CHAT + 'memory_max = "8GiB"\n' + EMBED)
        order = Order(stage, "apply")
    else:
        order = Order(stage, "restart", engine="chat", wait=True)
    stage.wait_started(2, "chat")
    stage.serve("chat")
    assert order.done() == {"done": True, "ok": True, "message": "chat: settled"}
    assert stage.fleet("chat")["state"] == "draining"


@pytest.mark.slow
def test_resume_leaves_an_engine_that_runs_alone(stage: Stage) -> None:
    calls = stage.systemd.calls
    assert stage.ask("resume", engine="chat", wait=True)[-1] == {
        "done": True,
        "ok": True,
        "message": "chat is not held and runs",
    }
    assert stage.systemd.calls == calls


@pytest.mark.slow
def test_restart_tells_of_a_death(stage: Stage) -> None:
    order = Order(stage, "restart", engine="chat", wait=True)
    stage.wait_started(2)
    stage.die("chat", 78, "config-error", "bad flag")
    done = order.done()
    assert done["ok"] is False
    assert "bad flag" in done["message"]


@pytest.mark.slow
def test_a_caller_that_leaves_changes_nothing(stage: Stage) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(stage.run / "supervisor/control.sock"))
        connection.sendall(b'{"op": "restart", "engine": "chat", "wait": true}\n')
        stage.wait_started(2)
    stage.serving("chat")
    assert stage.ask("status")[-1]["ok"] is True


@pytest.mark.slow
def test_apply_restarts_the_changed_engine_alone(stage: Stage) -> None:
    stage.write(CHAT + 'memory_max = "8GiB"\n' + EMBED)
    order = Order(stage, "apply")
    stage.wait_started(2, "chat")
    stage.serve("chat")
    assert order.done()["ok"] is True
    assert (stage.starts("chat"), stage.starts("embed")) == (2, 1)
    assert [line["engine"] for line in order.lines if line.get("event") == "change"] == ["chat"]


@pytest.mark.slow
def test_apply_of_nothing_new_touches_nothing(stage: Stage) -> None:
    calls = stage.systemd.calls
    stage.write("\n# a remark\n" + CHAT + EMBED)
    assert stage.ask("apply")[-1] == {"done": True, "ok": True, "message": "no engine had to be touched"}
    assert stage.systemd.calls == calls


@pytest.mark.slow
def test_apply_stops_what_is_gone_and_starts_what_is_new(stage: Stage) -> None:
    stage.write(EMBED + CHAT.replace('"chat"', '"talk"'))
    order = Order(stage, "apply")
    stage.wait_started(1, "talk")
    stage.serve("talk")
    assert order.done() == {"done": True, "ok": True, "message": "talk, chat: settled"}
    assert stage.systemd.get(unit("chat"))["ActiveState"] == "inactive"
    assert stage.starts("embed") == 1
    assert stage.fleet("chat") == {}


@pytest.mark.slow
def test_apply_survives_the_supervisor(stage: Stage) -> None:
    """Killed after the order was taken: the changed engine is restarted all the same, once."""
    stage.systemd.refuse("restart", "Transport endpoint is not connected")
    stage.write(CHAT + 'memory_max = "8GiB"\n' + EMBED)
    order = Order(stage, "apply")
    stage.wait(lambda: stage.ledger("chat").get("wanted"), "the wish is on record")
    stage.kill()
    order.done()
    stage.systemd.refuse("restart", "")
    before = stage.starts("chat")
    stage.start()
    stage.wait_started(before + 1, "chat")
    stage.serving("chat")
    assert (stage.starts("chat"), stage.starts("embed")) == (before + 1, 1)


@pytest.mark.slow
def test_an_engine_name_stands_for_its_replicas(tmp_path: Path) -> None:
    with staged(tmp_path, CHAT + "replicas = 2\n") as stage:
        stage.start()
        stage.serving("chat")
        stage.serving("chat-2")
        order = Order(stage, "restart", engine="chat", wait=True)
        stage.wait_started(2, "chat")
        assert stage.starts("chat-2") == 1  # one after the other
        stage.serve("chat")
        stage.wait_started(2, "chat-2")
        stage.serve("chat-2")
        assert order.done()["ok"] is True
        assert stage.ask("hold", engine="chat-2")[-1]["ok"] is True
        assert stage.fleet("chat")["state"] == "serving"
