"""nginx and Caddy, by the examples of the package, between clients and the gateway: each token alone and in time."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from appliance.config.model import Config
from appliance.gateway.server import KEEPALIVE
from appliance.quantity import parse_duration
from tests.support.gatewayprocess import MODEL, FakeEngine, Gateway, Response, config, dict_of, fault, remote
from tests.support.waiting import wait_until
from tests.support.webserver import EXAMPLES, WebServer

CHAT = "/v1/chat/completions"
KINDS = ("nginx", pytest.param("caddy", marks=pytest.mark.slow))
TRUST = 'trusted_proxies = ["127.0.0.1"]\n[gateway.stream]\nkeepalive = "200ms"\n'


@pytest.fixture(scope="module")
def gateway(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("behind"), config(remote(engine.url), gateway=TRUST))
    yield made
    made.kill()


@pytest.fixture(scope="module", params=KINDS)
def server(
    request: pytest.FixtureRequest, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WebServer]:
    made = WebServer(request.param, tmp_path_factory.mktemp(request.param), gateway.port)
    yield made
    made.close()


@contextlib.contextmanager
def asked(
    server: WebServer, method: str, path: str, body: Any = None, *, limit: float = 30, **fields: Any
) -> Iterator[http.client.HTTPResponse]:
    """The answer to a call; a body that is not bytes goes as JSON, and in chunks.

    Caddy (Go's HTTP client in it) looks once more behind a body with a length, and fails the call where it has begun to
    pass on the answer before that look. A fake engine can be so quick. A body in chunks is whole only after its end.
    """
    connection = http.client.HTTPSConnection("localhost", server.port, timeout=limit, context=server.context)
    data = body if body is None or isinstance(body, bytes) else [json.dumps(body).encode()]
    with contextlib.closing(connection):
        connection.request(method, path, data, {name.replace("_", "-"): value for name, value in fields.items()})
        with connection.getresponse() as response:
            yield response


def ask(server: WebServer, method: str, path: str, body: Any = None, **fields: str) -> Response:
    with asked(server, method, path, body, **fields) as response:
        return Response(response.status, dict_of(response), response.read())


def next_event(response: http.client.HTTPResponse) -> bytes:
    """The next event or comment, its blank line left out; empty at the end.

    `readline` of http.client has taken a chunk that was not whole yet for the end of the answer.
    """
    rest: bytes = getattr(response, "rest", b"")
    while b"\n\n" not in rest and (more := response.read1(65536)):
        rest += more
    event, _, rest = rest.partition(b"\n\n")
    response.rest = rest  # type: ignore[attr-defined]
    return event + b"\n" if event else b""


def test_each_event_arrives_before_the_next_is_sent(server: WebServer, engine: FakeEngine) -> None:
    """The engine sends an event only after the client has read the one before it: behind a buffer nothing comes."""
    body = fault("gate,tokens=5", stream=True, stream_options={"include_usage": True})
    engine.release()
    events = []
    with asked(server, "POST", CHAT, body, Accept_Encoding="gzip, br") as response:
        assert response.status == 200 and response.getheader("content-encoding") is None
        while event := next_event(response):
            if not event.startswith(b":"):
                events.append(event)
                if len(events) < 8:
                    engine.release()
    assert events[-1] == b"data: [DONE]\n" and len(events) == 8


def test_keep_alive_comments_pass(server: WebServer) -> None:
    with asked(server, "POST", CHAT, fault("stall=2", stream=True)) as response:
        while not next_event(response).startswith(b"data:"):
            pass
        assert next_event(response).startswith(b"data:")
        assert [next_event(response) for _ in range(3)] == [b": keep-alive\n"] * 3


def test_a_client_that_leaves_ends_the_engine_s_work(server: WebServer, engine: FakeEngine, gateway: Gateway) -> None:
    mark = f"left-{server.kind}"
    with asked(server, "POST", CHAT, fault("stall=2", stream=True), X_Request_Id=mark) as response:
        assert next_event(response)
    wait_until(lambda: (engine.marked(mark) or {}).get("aborted"), 10, "the engine's work is ended", 0.02)
    assert wait_until(gateway.idle, 5, "nothing runs", 0.02)


def test_a_client_that_leaves_before_the_first_byte(server: WebServer, engine: FakeEngine, gateway: Gateway) -> None:
    mark = f"early-{server.kind}"
    connection = http.client.HTTPSConnection("localhost", server.port, timeout=30, context=server.context)
    connection.request("POST", CHAT, json.dumps(fault("first=60")), {"X-Request-Id": mark})
    wait_until(lambda: engine.marked(mark), 10, "the call is at the engine", 0.02)
    connection.close()
    wait_until(lambda: (engine.marked(mark) or {}).get("aborted"), 10, "the engine's work is ended", 0.02)


@pytest.mark.slow
def test_the_largest_body_passes_and_a_larger_one_gets_the_gateways_answer(
    server: WebServer, engine: FakeEngine
) -> None:
    limit = Config().gateway.max_body
    head, tail = f'{{"model":"{MODEL}","max_tokens":2,"messages":[{{"role":"user","content":"'.encode(), b'"}]}'
    body = head + b"x" * (limit - len(head) - len(tail)) + tail
    answer = ask(server, "POST", CHAT, body, X_Request_Id=f"large-{server.kind}")
    assert answer.status == 200 and (engine.marked(f"large-{server.kind}") or {})["size"] == limit
    # Only the length is too large: a client that sends on would find the connection closed.
    with contextlib.suppress(OSError), asked(server, "POST", CHAT, body + b" ") as response:
        assert response.status == 413 and json.loads(response.read())["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("script", "status"), [("status=400", 400), ("status=429", 429), ("status=500", 500), ("status=503", 503)]
)
def test_statuses_and_bodies_of_errors_pass(server: WebServer, script: str, status: int) -> None:
    answer = ask(server, "POST", CHAT, fault(script))
    assert answer.status == status and answer.json["error"]["message"] == f"scripted status {status}"


def test_a_refusal_keeps_what_clients_obey(server: WebServer) -> None:
    answer = ask(server, "POST", CHAT, {"model": "no"})
    assert answer.status == 404 and answer.code == "model_not_found" and answer.headers["x-request-id"]


def test_an_answer_that_breaks_does_not_look_whole(server: WebServer) -> None:
    answer = ask(server, "POST", CHAT, fault("reset=3", stream=True))
    assert b'"code":"engine_died"' in answer.body and b"[DONE]" not in answer.body


def test_the_client_s_address_is_believed_from_this_proxy(server: WebServer, gateway: Gateway) -> None:
    """The client sits at 127.0.0.2, and claims to pass on a call of somebody else's: that claim counts nothing."""
    mark = f"address-{server.kind}"
    fields = {"X-Request-Id": mark, "X-Forwarded-For": "192.0.2.9"}
    connection = http.client.HTTPSConnection(
        "localhost", server.port, timeout=30, context=server.context, source_address=("127.0.0.2", 0)
    )
    with contextlib.closing(connection):
        connection.request("POST", CHAT, json.dumps(fault("tokens=1")), fields)
        assert connection.getresponse().read()
    line = wait_until(lambda: re.search(rf".*request={mark}\b.*", gateway.text()), 5, "the call's line", 0.05)
    assert line and "client=127.0.0.2 " in line[0], line


@pytest.mark.slow
def test_calls_share_connections_to_the_gateway(server: WebServer, gateway: Gateway) -> None:
    """Kept alive behind the proxy: not one socket in TIME_WAIT for each call."""

    def ports() -> set[int]:
        found = psutil.Process(gateway.process.pid).net_connections("tcp")
        return {one.raddr.port for one in found if one.raddr and one.laddr.port == gateway.port}

    assert ask(server, "GET", "/healthz").status == 200
    before = ports()
    for _ in range(5):
        assert ask(server, "POST", CHAT, fault("tokens=1")).status == 200
    assert ports() <= before


def test_silences_are_within_the_example_s_limits() -> None:
    """An answer that is no stream is silent while it waits and is made; nothing of the examples cuts it."""
    gateway = Config().gateway
    silence = gateway.timeouts.first_token + gateway.admission.queue_timeout
    text = (EXAMPLES / "nginx.conf").read_text()
    for name in ("proxy_read_timeout", "proxy_send_timeout"):
        found = re.search(rf"^\s*{name} (\S+);", text, re.MULTILINE)
        assert found and parse_duration(found[1]) > max(silence, 600)
    caddy = (EXAMPLES / "Caddyfile").read_text()
    assert "timeout" not in caddy and "flush_interval" not in re.sub(r"#.*", "", caddy)  # none by default


def test_the_example_s_idle_connections_end_before_the_gateway_ends_them() -> None:
    found = re.search(r"^\s*keepalive (\S+)", (EXAMPLES / "Caddyfile").read_text(), re.MULTILINE)
    assert found and parse_duration(found[1]) < KEEPALIVE


def test_without_the_example_s_line_tokens_are_held_back(gateway: Gateway, tmp_path: Path) -> None:
    """The test above can fail: nginx as it is by default keeps events that no `X-Accel-Buffering` frees."""
    server = WebServer(
        "nginx", tmp_path, gateway.port,
        ("proxy_buffering off;", "proxy_buffering on; proxy_ignore_headers X-Accel-Buffering;"),
    )  # fmt: skip
    try:
        with (
            pytest.raises(TimeoutError),
            asked(server, "POST", CHAT, fault("stall=3", stream=True), limit=2) as response,
        ):
            while next_event(response):
                pass
    finally:
        server.close()
