"""What users of gateways complain of: each complaint as a test of the kind of fault behind it."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.component.gateway.conftest import QUICK
from tests.support.gatewayprocess import FakeEngine, Gateway, chat, config, fault, remote
from tests.support.rawclient import connect
from tests.support.rawengine import RawEngine
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def post(body: object, mark: str = "x") -> bytes:
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nHost: x\r\nX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        CHAT.encode(), mark.encode(), len(data), data,
    )  # fmt: skip


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        piece = connection.recv(65536)
        assert piece, f"the stream ended before {mark!r}: {data[-300:]!r}"
        data += piece
    return data


class Forgetful(RawEngine):
    """Answers the first request of a connection; with the second it closes, as one whose idle time was just over."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[socket.socket] = Counter()

    def _one(self, connection: socket.socket) -> bool:
        self.then_close = False
        self.seen[connection] += 1
        if self.seen[connection] == 2:
            with contextlib.suppress(OSError):
                connection.recv(1)
            return False
        return super()._one(connection)


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Forgetful]:
    made = Forgetful()
    yield made
    made.close()


@pytest.fixture(scope="module")
def behind(forgetful: Forgetful, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("behind"), config(remote(forgetful.url), gateway=QUICK))
    yield made
    made.kill()


@pytest.fixture(scope="module")
def wide(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Room for many, default deadlines."""
    made = Gateway(
        tmp_path_factory.mktemp("wide"), config(remote(engine.url), gateway="[gateway.admission]\nmax_in_flight = 400")
    )
    yield made
    made.kill()


def test_an_answer_that_takes_longer_than_every_limit_on_silence_is_whole(gateway: Gateway) -> None:
    """No limit is on the whole of an answer: each is one second here."""
    answer = gateway.request("POST", CHAT, fault("first=0.5,gap=0.25,tokens=7", stream=True))
    assert answer.status == 200 and len(answer.events) == 9 and answer.events[-1] == b"data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_the_first_request_after_a_pause_is_no_502(behind: Gateway, forgetful: Forgetful, stream: bool) -> None:
    body = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n' if stream else b'{"choices":[]}'
    forgetful.answer = (
        STREAM_HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        if stream
        else b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    before = len(forgetful.requests)
    for number in range(1, 5):
        answer = behind.request("POST", CHAT, chat(stream=stream))
        assert (answer.status, answer.body) == (200, body)
        assert len(forgetful.requests) == before + number  # what the closed connection swallowed was not served twice
    assert max(forgetful.seen.values()) == 2  # connections were used again, and closed in that moment
    assert behind.request("GET", "/readyz").status == 200  # no fault of the engine


def test_a_success_that_holds_an_error_is_counted_as_a_failure(gateway: Gateway) -> None:
    def broken() -> int:
        text = gateway.request("GET", "/metrics", port=gateway.admin_port).body.decode()
        lines = [line for line in text.splitlines() if "requests_total{" in line and 'outcome="broken"' in line]
        return sum(int(float(line.split()[-1])) for line in lines)

    before = broken()
    answer = gateway.request("POST", CHAT, fault("error=3", stream=True))
    assert answer.status == 200 and b'"error"' in answer.events[-1]
    wait_until(lambda: broken() == before + 1, 3, "it is counted", 0.02)


@pytest.mark.parametrize("events", [1, 2, 5])
def test_every_token_is_passed_on_before_the_next_one_comes(gateway: Gateway, engine: FakeEngine, events: int) -> None:
    mark = f"one-by-one-{events}"
    with connect(gateway.port) as connection:
        connection.sendall(post(fault(f"stall={events}", stream=True), mark))
        data = b""
        while data.count(b"data: ") < events:
            data += connection.recv(65536)
        entry = engine.marked(mark)
        assert entry and entry["ended"] is None
        wait_until(lambda: entry["events"] == events, 5, "the engine has counted them", 0.01)


def test_an_engines_refusal_keeps_its_status_its_body_and_its_hint(behind: Gateway, forgetful: Forgetful) -> None:
    body = b'{"error":{"message":"overloaded","type":"x","param":null,"code":503}}'
    forgetful.answer = (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 7\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    for stream in (False, True):
        answer = behind.request("POST", CHAT, chat(stream=stream))
        assert (answer.status, answer.body, answer.headers["retry-after"]) == (503, body, "7")
        assert answer.headers["content-type"] == "application/json"


def test_a_prompt_of_many_megabytes_passes_by_default(wide: Gateway, engine: FakeEngine) -> None:
    size = 12 << 20
    answer = wide.request("POST", CHAT, chat("x" * size), X_Request_Id="large")
    assert answer.status == 200
    entry = engine.marked("large")
    assert entry and entry["size"] > size


def test_the_hundred_and_first_stream_does_not_wait_for_the_others(wide: Gateway) -> None:
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(connect(wide.port)) for _ in range(150)]
        for one in streams:
            one.sendall(post(fault("gap=2,tokens=50", stream=True)))
        for one in streams:
            read_until(one, b"data: ")
        assert wide.admin("/status")["gateway"]["running"] == 150
        assert wide.request("GET", "/readyz").status == 200
        text = wide.request("GET", "/metrics", port=wide.admin_port).body
        assert re.search(rb"^vllm:num_requests_running\S* 150", text, re.MULTILINE)
    wait_until(wide.idle, 10, "all have left", 0.05)


def test_an_answer_that_broke_is_never_asked_for_again(gateway: Gateway, engine: FakeEngine) -> None:
    """What was in flight when the engine went may be what made it go."""
    for script in ("reset=2", "eof=3", "error=2"):
        before = len(engine.log)
        assert gateway.request("POST", CHAT, fault(script, stream=True)).status == 200
        assert len(engine.log) == before + 1


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
def test_no_letter_breaks_however_the_engine_cuts_its_bytes(behind: Gateway, forgetful: Forgetful, size: int) -> None:
    texts = ["北京", "🚀", "é", "\u2028"]
    events = b"".join(
        b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False).encode()
        for text in texts
    )
    body = events + b"data: [DONE]\n\n"
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    wire = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)  # chunks end inside letters and events
    forgetful.answer = [STREAM_HEAD, *(wire[start : start + 7] for start in range(0, len(wire), 7)), b"0\r\n\r\n"]
    answer = behind.request("POST", CHAT, chat(stream=True))
    assert answer.body == body
    told = [json.loads(event[6:])["choices"][0]["delta"]["content"] for event in answer.events[:-1]]
    assert told == texts
