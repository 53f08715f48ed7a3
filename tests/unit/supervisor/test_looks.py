from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from appliance.host import files
from appliance.quantity import UNKNOWN
from appliance.samples import Ledger, Milestone, Notice
from appliance.supervisor import looks
from appliance.wire.vllmlog import JOINING

Look = Callable[[str], Coroutine[Any, Any, Any]]
LIMIT = looks.METRICS_LIMIT


def answered(directory: Path, answer: bytes, look: Look) -> Any:
    """What a look makes of a server that says `answer` and hangs up."""
    path = str(directory / "sock")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def story() -> Any:
        server = await asyncio.start_unix_server(serve, path)
        try:
            return await look(path)
        finally:
            server.close()
            await server.wait_closed()

    return asyncio.run(story())


def http(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


async def _chat(path: str) -> Ledger:
    return (await looks.ledgers(path, ["chat"]))["chat"]


def test_metrics(tmp_path: Path) -> None:
    found = answered(tmp_path, http(b'vllm:num_requests_running{engine="0"} 2.0\nother 1\n'), looks.metrics)
    assert (found.http, found.values, found.error) == (200, {"vllm:num_requests_running": 2.0}, "")
    assert found.latency_ms >= 0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (http(b"vllm:num_requests_running 2.0\n", 500), "HTTP status 500"),
        (b"", "an answer that is not HTTP"),
        (b"SSH-2.0-x\r\n\r\n", "an answer that is not HTTP"),
        (http(b"x" * (LIMIT + 1)), f"an answer of more than {LIMIT} bytes"),
    ],
)
def test_metrics_that_are_none(tmp_path: Path, answer: bytes, error: str) -> None:
    found = answered(tmp_path, answer, looks.metrics)
    assert (found.values, found.error) == ({}, error)


@pytest.mark.parametrize("status", [200, 503])
def test_any_health_is_an_answer(tmp_path: Path, status: int) -> None:
    found = answered(tmp_path, http(b"", status), looks.health)
    assert (found.http, found.error) == (status, "")


def test_a_ledger(tmp_path: Path) -> None:
    told = {
        "inflight": 3,
        "oldest_silent_s": 1.5,
        "since_any_byte_s": None,
        "structured": 1,
        "largest_prompt_tokens": 90,
        "suspects": 2,
    }
    found = answered(tmp_path, http(json.dumps({"engines": {"chat": told}}).encode()), _chat)
    expected = Ledger(t=found.t, inflight=3, oldest_silent_s=1.5, structured=1, largest_prompt_tokens=90, suspects=2)
    assert found == expected


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (http(b'{"engines": {}}'), "the gateway does not know this engine"),
        (http(b'{"engines": {"chat": 3}}'), "the gateway does not know this engine"),
        (http(b'{"engines": [1]}'), "the gateway does not know this engine"),
        (http(b"{}"), "an answer that is no ledger"),
        (http(b"[]"), "an answer that is no ledger"),
        (http(b"{"), "an answer that is no ledger"),
        (http(b"", 404), "HTTP status 404"),
        (b"", "an answer that is not HTTP"),
    ],
)
def test_a_ledger_that_is_none(tmp_path: Path, answer: bytes, error: str) -> None:
    found = answered(tmp_path, answer, _chat)
    assert found == Ledger(t=found.t, error=error)
    assert found.inflight is UNKNOWN


@pytest.mark.parametrize("look", [looks.metrics, looks.health, _chat])
def test_nobody_listens(tmp_path: Path, look: Look) -> None:
    missing = asyncio.run(look(str(tmp_path / "sock")))
    assert missing.error == "no such file or directory"
    (tmp_path / "file").touch()
    assert asyncio.run(look(str(tmp_path / "file"))).error == "connection refused"


class State:
    """A state file and its reader; wall-clock time is 1000 s ahead of monotonic."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "state.json"
        self.verdict = directory / "verdict.json"
        self.source = looks.StateSource(str(self.path), str(self.verdict))

    def says(self, now: float, **state: object) -> list[Milestone | Notice]:
        files.replace_json(self.path, state)
        return self.source.look(now, now + 1000.0)


def test_a_phase_is_told_once(tmp_path: Path) -> None:
    state = State(tmp_path)
    assert state.says(1.0, start="a", phase="starting") == [Milestone(t=1.0, phase="starting", start="a")]
    assert state.says(2.0, start="a", phase="starting", message="more") == []
    joining = Milestone(t=3.0, phase="starting", start="a", joining=True)
    assert state.says(3.0, start="a", phase="starting", message=JOINING) == [joining]
    assert state.says(4.0, start="a", phase="loading") == [Milestone(t=4.0, phase="loading", start="a")]
    assert state.says(5.0, start="b", phase="loading") == [Milestone(t=5.0, phase="loading", start="b")]


def test_a_notice_is_told_when_it_comes_again_at_its_own_time(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.says(1.0, start="a", phase="serving")
    notices = {"jit": {"at": 1002.5, "count": 1}, "shm-wait": {"at": 1002.0, "count": 4}}
    assert state.says(3.0, start="a", phase="serving", notices=notices) == [
        Notice(t=2.0, kind="shm-wait"),
        Notice(t=2.5, kind="jit"),
    ]
    assert state.says(4.0, start="a", phase="serving", notices=notices) == []
    notices["jit"] = {"at": 1004.5, "count": 7}
    assert state.says(5.0, start="a", phase="serving", notices=notices) == [Notice(t=4.5, kind="jit")]
    ahead = {"jit": {"at": 1099.0, "count": 8}}  # the wall clock was set
    assert state.says(6.0, start="a", phase="serving", notices=ahead) == [Notice(t=6.0, kind="jit")]


@pytest.mark.parametrize(("start", "requested"), [("a", True), ("a", False), ("b", True), ("b", False)])
def test_an_end_that_was_asked_for_comes_after_a_stop(tmp_path: Path, start: str, requested: bool) -> None:
    """However short that was; what a verdict says of another run does not count."""
    state = State(tmp_path)
    state.says(1.0, start="a", phase="serving")
    files.replace_json(state.verdict, {"start": start, "requested": requested})
    phases = [found.phase for found in state.says(2.0, start="a", phase="exited") if isinstance(found, Milestone)]
    assert phases == (["stopping", "exited"] if (start, requested) == ("a", True) else ["exited"])


def test_another_run_begins_with_its_phase(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.says(1.0, start="a", phase="serving", notices={"line": {"at": 1000.5, "count": 3}})
    assert state.says(9.0, start="b", phase="starting", notices={"line": {"at": 1008.0, "count": 3}}) == [
        Milestone(t=8.0, phase="starting", start="b"),
        Notice(t=8.0, kind="line"),
    ]


def test_old_notices_are_no_news_to_a_new_supervisor(tmp_path: Path) -> None:
    notices = {"line": {"at": 1005.0, "count": 3}, "jit": {"at": 8900.0, "count": 1}}
    assert State(tmp_path).says(8000.0, start="a", phase="serving", notices=notices) == [
        Milestone(t=7900.0, phase="serving", start="a"),
        Notice(t=7900.0, kind="jit"),
    ]


@pytest.mark.parametrize(
    "state",
    [{}, {"start": "a"}, {"start": "a", "phase": "dancing"}, {"start": "", "phase": "serving"}],
)
def test_a_state_that_is_none(tmp_path: Path, state: dict[str, object]) -> None:
    assert State(tmp_path).says(1.0, **state) == []


def test_notices_that_are_none(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.says(1.0, start="a", phase="serving")
    for notices in ([], {"jit": 3}, {"jit": {"at": "soon", "count": 1}}, {"jit": {}}):
        assert state.says(2.0, start="a", phase="serving", notices=notices) == []
