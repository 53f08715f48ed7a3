"""The hand, over a root helper and a launcher that are sockets of the test."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance import names
from appliance.host.places import Places
from appliance.policy.reconcile import Seen, UnitState
from appliance.supervisor.act import Hand, Requests

TAKEN = b'{"done": true, "ok": true, "message": ""}\n'
REFUSED = b'{"done": true, "ok": false, "message": "its configuration has changed"}\n'


def said_to(answer: bytes | None) -> tuple[str, list[dict[str, object]], list[dict[str, object]]]:
    """What became of the word, what the launcher heard and what systemd was asked. None: no launcher listens."""
    heard: list[dict[str, object]] = []
    asked: list[dict[str, object]] = []

    def listener(to: list[dict[str, object]], reply: bytes) -> Callable[..., object]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            to.append(json.loads(await reader.readline()))
            writer.write(reply)
            writer.close()

        return serve

    async def say(directory: str) -> str:
        places = Places(run=directory, state=directory)
        helper = await asyncio.start_unix_server(listener(asked, b'{"ok": true}\n'), f"{directory}/unitctl.sock")  # type: ignore[arg-type]
        async with helper:
            if answer is None:
                return await Hand(places).again("chat", "s1")
            path = Path(names.engine_evidence("chat", places.run))
            path.parent.mkdir(parents=True)
            launcher = await asyncio.start_unix_server(listener(heard, answer), str(path))  # type: ignore[arg-type]
            async with launcher:
                return await Hand(places).again("chat", "s1")

    with tempfile.TemporaryDirectory() as directory:  # a socket's path may have 107 bytes
        return asyncio.run(say(directory)), heard, asked


@pytest.mark.parametrize(
    ("answer", "told", "restarted"),
    [
        (TAKEN, "", False),
        (REFUSED, "its configuration has changed", True),
        (None, "its launcher does not listen", True),
        (b"", "", False),  # it may have begun before it ended: who restarts its unit now would start twice
        (b"{broken\n", "", False),
        (b"[" * 60_000 + b"\n", "", False),
        (b"x" * 200_000 + b"\n", "", False),
    ],
    ids=["taken", "refused", "nobody there", "hung up", "no answer of ours", "too deep", "too long"],
)
def test_the_word_or_a_restart_never_both(answer: bytes | None, told: str, restarted: bool) -> None:
    refusal, heard, asked = said_to(answer)
    assert refusal.startswith(told) and bool(refusal) is restarted
    assert heard == ([{"verb": "again", "start": "s1"}] if answer is not None else [])
    assert asked == ([{"verb": "restart", "unit": "llm-engine@chat.service"}] if restarted else [])


def test_a_request_is_remembered_until_it_shows_an_effect() -> None:
    requests = Requests(300.0)
    over, begun = Seen(UnitState.OVER, "r1"), Seen(UnitState.STARTING, "r1.1")
    requests.made("chat", over)
    requests.made("", Seen())
    assert 0.0 <= requests.ages({"chat": over})["chat"] < 20.0
    assert set(requests.ages({"chat": begun})) == {""}
    assert requests.ages({})[""] == 0.0  # the runtime's takes long to show one
    requests.forget()
    assert requests.ages({}) == {}
