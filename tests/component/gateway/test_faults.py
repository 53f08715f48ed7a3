"""Engines that break: the client gets an honest status or an error event, never half an answer that looks whole."""

from __future__ import annotations

import http.client
import json

import pytest

from tests.component.gateway.conftest import QUICK, Start
from tests.support.gatewayprocess import FakeEngine, Gateway, chat, config, fault, remote
from tests.support.rawclient import send
from tests.support.rawrequests import post
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"


def error_of(event: bytes) -> dict[str, object]:
    """What an error event says."""
    data = next(line[5:] for line in event.split(b"\n") if line.startswith(b"data:"))
    value = json.loads(data)
    return dict(value.get("error") if isinstance(value.get("error"), dict) else value)


@pytest.mark.parametrize(
    ("script", "code", "delivered"),
    [("reset=4", "engine_died", 4), ("eof=4", "engine_died", 4), ("stall=4", "stream_stalled", 4),
     ("stall=4,comments=0.2", "stream_stalled", 4), ("reset=1", "engine_died", 1)],
)  # fmt: skip
def test_a_stream_that_breaks_ends_in_an_error_event(gateway: Gateway, script: str, code: str, delivered: int) -> None:
    answer = gateway.request("POST", CHAT, fault(script, stream=True))
    assert answer.status == 200
    assert error_of(answer.events[-1])["code"] == code
    assert len(answer.events) == delivered + 1
    assert b"[DONE]" not in answer.body


@pytest.mark.parametrize(
    ("path", "kind"), [("/v1/messages", "event: error"), ("/v1/responses", "event: error"), (CHAT, 'data: {"error"')]
)
def test_the_error_event_takes_the_apis_shape(gateway: Gateway, path: str, kind: str) -> None:
    answer = gateway.request("POST", path, fault("reset=3", stream=True))
    assert answer.events[-1].startswith(kind.encode())
    value = json.loads(answer.events[-1].split(b"data: ")[1])
    if path == "/v1/messages":
        assert value["type"] == "error" and value["error"]["type"] == "api_error"
    elif path == "/v1/responses":
        assert value["type"] == "error" and value["code"] == "engine_died" and value["message"]
    else:
        assert value["error"]["code"] == "engine_died"


def test_done_after_an_error_event_is_withheld_and_the_connection_ends(gateway: Gateway) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
    connection.request("POST", CHAT, json.dumps(fault("error=3", stream=True)))
    body = connection.getresponse().read()
    assert b"EngineCore encountered" in body and b"[DONE]" not in body
    assert connection.sock is None or connection.sock.recv(1) == b""
    connection.close()


@pytest.mark.parametrize("script", ["reset=3", "eof=3", "stall=3", "error=3"])
def test_the_request_behind_a_stream_that_breaks_is_answered_as_the_last_one(gateway: Gateway, script: str) -> None:
    """The head has announced no end of the connection, so a proxy sends the next call on it at once."""
    calls = post(body=json.dumps(fault(script, stream=True)).encode()) + 2 * post()
    reply = send(gateway.port, calls)
    assert reply.statuses == [200, 200] and reply.data.count(b"\r\nConnection: close\r\n") == 1
    assert reply.seconds is not None and reply.seconds < 10, "and the connection ends"


def test_an_error_event_before_any_token_keeps_its_status(gateway: Gateway) -> None:
    answer = gateway.request("POST", CHAT, fault("error=0", stream=True))
    assert answer.status == 502 and answer.code == "engine_error"
    assert "EngineCore" in answer.json["error"]["message"]


@pytest.mark.slow
def test_a_remote_engine_that_is_late_twice_is_away_and_busy_while_it_writes(start: Start) -> None:
    engine = FakeEngine()
    gateway = start(config(remote(engine.url), gateway=QUICK))
    try:
        engine.engine.fault = {"late": 30.0}
        before = engine.engine.probed
        with gateway.open("POST", CHAT, fault("gap=0.1,tokens=5000", stream=True)):
            wait_until(lambda: engine.engine.probed - before > 3, 30, "three looks have ended", 0.02)
            assert gateway.serves("default")
        wait_until(lambda: not gateway.serves("default"), 30, "it counts as away", 0.02)
        answer = gateway.request("POST", CHAT, chat())
        assert answer.status == 503 and "does not answer" in answer.json["error"]["message"]
        engine.engine.fault = {}
        wait_until(lambda: gateway.request("POST", CHAT, chat()).status == 200, 30, "it serves again", 0.05)
    finally:
        gateway.kill()  # first: an engine that closes must meet no new connection
        engine.close()


def test_garbage_is_502_and_not_sent_again(gateway: Gateway, engine: FakeEngine) -> None:
    for stream in (False, True):
        before = len(engine.log)
        answer = gateway.request("POST", CHAT, fault("garbage", stream=stream))
        assert (answer.status, answer.code) == (502, "engine_error")
        assert len(engine.log) == before + 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", ["refuse", "reset=0"])
def test_a_loss_before_the_first_byte_is_sent_again_once(
    gateway: Gateway, engine: FakeEngine, script: str, stream: bool
) -> None:
    before = len(engine.log)
    answer = gateway.request("POST", CHAT, fault(script, stream=stream))
    if script == "reset=0" and not stream:
        assert answer.status == 200  # the script speaks of streams alone
        return
    assert (answer.status, answer.code) == (503, "engine_restarting")
    assert 1 <= int(answer.headers["retry-after"]) <= 120
    # A pooled connection that breaks costs a try of its own.
    assert len(engine.log) - before in (2, 3)


def test_a_lost_call_goes_to_the_other_replica(start: Start) -> None:
    bad, good = FakeEngine(fault="refuse"), FakeEngine()
    try:
        gateway = start(config(remote(bad.url, good.url)))
        for _ in range(6):
            answer = gateway.request("POST", CHAT, chat(stream=True))
            assert answer.status == 200 and answer.headers["x-engine"] == "default-2"
        assert bad.log and len(good.log) == 6
        assert gateway.idle()
    finally:
        bad.close()
        good.close()


def test_replicas_share_the_load(start: Start) -> None:
    engines = [FakeEngine(), FakeEngine()]
    try:
        gateway = start(config(remote(*(engine.url for engine in engines))))
        for _ in range(10):
            gateway.request("POST", CHAT, chat())
        assert [len(engine.log) for engine in engines] == [5, 5]
    finally:
        for engine in engines:
            engine.close()


@pytest.mark.slow
def test_an_engine_that_goes_and_comes_back(start: Start) -> None:
    engine = FakeEngine()
    try:
        gateway = start(config(remote(engine.url)))
        assert gateway.request("POST", CHAT, chat()).status == 200
        engine.down()
        for _ in range(2):  # the pooled connection may still answer once
            answer = gateway.request("POST", CHAT, chat(), Connection="close")
        wait_until(lambda: gateway.request("GET", "/readyz").status == 503, 8, "it is seen to be gone", 0.1)
        answer = gateway.request("POST", CHAT, chat())
        assert (answer.status, answer.code) == (503, "engine_restarting")
        engine.up()
        wait_until(lambda: gateway.request("POST", CHAT, chat()).status == 200, 8, "it is back", 0.1)
    finally:
        engine.close()


# --- comments -------------------------------------------------------------------------------------------------------
def test_silence_is_filled_with_comments(chatty: Gateway) -> None:
    answer = chatty.request("POST", CHAT, fault("first=0.9,tokens=3,gap=0.5", stream=True))
    assert answer.comments >= 4
    assert len(answer.events) == 5 and answer.events[-1] == b"data: [DONE]"
    assert "x-queue-time-ms" not in answer.headers


def test_a_client_without_stream_gets_no_comment(chatty: Gateway) -> None:
    answer = chatty.request("POST", CHAT, fault("first=0.7"))
    assert answer.status == 200 and answer.json["choices"]


def test_after_a_comment_an_error_is_an_event(chatty: Gateway, engine: FakeEngine, start: Start) -> None:
    unhurried = QUICK.replace('first_token = "1s"', 'first_token = "60s"') + 'keepalive = "200ms"\n'
    patient = start(config(remote(engine.url), gateway=unhurried))
    for gateway, script, code in (
        (chatty, "first=30", "first_token_timeout"),
        (patient, "head=0.6,status=400", "engine_error"),
    ):
        answer = gateway.request("POST", CHAT, fault(script, stream=True))
        assert answer.status == 200 and answer.comments >= 1
        assert error_of(answer.events[-1])["code"] == code and b"[DONE]" not in answer.body
    assert error_of(answer.events[-1])["message"] == "scripted status 400"


def test_a_waiting_stream_gets_comments_and_then_its_answer_or_an_error(engine: FakeEngine, start: Start) -> None:
    from concurrent.futures import ThreadPoolExecutor

    quick = QUICK.replace("max_in_flight = 64", "max_in_flight = 1").replace("500ms", "900ms")
    gateway = start(config(remote(engine.url), gateway=quick + 'keepalive = "100ms"\n'))
    with ThreadPoolExecutor() as pool:
        pool.submit(gateway.request, "POST", CHAT, fault("first=0.5"))
        wait_until(lambda: gateway.admin("/status")["gateway"]["running"] == 1, 5, "one runs", 0.02)
        served = gateway.request("POST", CHAT, chat(stream=True))
        pool.submit(gateway.request, "POST", CHAT, fault("first=0.95,tokens=2", stream=True, max_tokens=2))
        wait_until(lambda: gateway.admin("/status")["gateway"]["running"] == 1, 5, "one runs", 0.02)
        late = gateway.request("POST", CHAT, chat(stream=True))
    assert served.comments >= 1 and served.events[-1] == b"data: [DONE]"
    assert late.status == 200 and late.comments >= 3
    assert late.events[-1] == b"data: [DONE]" or error_of(late.events[-1])["code"] == "queue_timeout"


def test_comments_never_land_inside_an_event(chatty: Gateway) -> None:
    answer = chatty.request("POST", CHAT, fault("split,gap=0.25,tokens=3", stream=True))
    assert answer.comments >= 1
    for event in answer.events[:-1]:
        json.loads(event[6:])
