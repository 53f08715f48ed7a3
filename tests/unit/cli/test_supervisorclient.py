"""What the supervisor says of engines is made of their own last lines."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from appliance import names
from appliance.cli import supervisorclient
from appliance.host import places

HOSTILE = "exit\x1b]0;title\x07\r\x1b[8m\nengine chat: serving"


def answer(listening: socket.socket, events: list[dict[str, object]]) -> None:
    """Take one order and say how it went."""
    connection, _ = listening.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"".join(json.dumps(event).encode() + b"\n" for event in events))


@pytest.mark.parametrize("good", [True, False])
def test_an_engines_words_do_not_reach_the_terminal_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], good: bool
) -> None:
    monkeypatch.setenv("LLM_APPLIANCE_RUN", str(tmp_path))
    path = places.from_environment().under_run(names.SUPERVISOR_SOCKET)
    Path(path).parent.mkdir(parents=True)
    events: list[dict[str, object]] = [
        {"event": "state", "engine": "chat", "state": "failed", "message": HOSTILE},
        {"event": "ended", "engine": "chat", "cause": "unknown", "message": HOSTILE},
        {"event": "change", "engine": "chat", "message": HOSTILE},
        {"done": True, "ok": good, "message": HOSTILE},
    ]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1)
        thread = threading.Thread(target=answer, args=(listening, events))
        thread.start()
        supervisorclient.follow("restart", engine="chat")
        thread.join(10)
    printed = capsys.readouterr()
    made = printed.out + printed.err
    assert made.count("exit") == len(events)
    assert not any(control in made for control in "\x1b\x07\r")
    assert len(printed.out.splitlines()) == len(events) - (not good)
