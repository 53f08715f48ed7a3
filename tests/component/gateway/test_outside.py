"""TLS, browsers, proxies in front, and a gateway without a configuration."""

from __future__ import annotations

import json
import select
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.gateway.conftest import Start
from tests.component.gateway.test_life import Activated
from tests.support.certificates import certificate, trusting
from tests.support.gatewayprocess import FakeEngine, Gateway, chat, config, fault, remote
from tests.support.rawclient import connect, read_all
from tests.support.rawengine import RawEngine
from tests.support.rawrequests import get, post
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"


def peer_name(port: int, request: bytes = b"") -> tuple[str, bytes]:
    """Whose certificate is shown, and what a request brings."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw, context.wrap_socket(raw) as wrapped:
        shown = wrapped.getpeercert(binary_form=True) or b""
        wrapped.sendall(request)
        data = b"".join(iter(lambda: wrapped.recv(65536), b"")) if request else b""
    return ("first" if b"first" in shown else "second" if b"second" in shown else "?"), data


def test_tls_and_a_renewed_certificate(engine: FakeEngine, start: Start, tmp_path: Path) -> None:
    certificate(tmp_path, "first")
    files = f'tls_certificate = "{tmp_path}/cert.pem"\ntls_key = "{tmp_path}/key.pem"'
    gateway = start(config(remote(engine.url), gateway=files))
    body = json.dumps(chat(stream=True)).encode()
    ask = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    name, data = peer_name(gateway.port, ask)
    assert name == "first" and data.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in data
    certificate(tmp_path, "second")
    gateway.reload()
    assert peer_name(gateway.port)[0] == "second"
    (tmp_path / "cert.pem").write_text("broken")
    gateway.reload()
    assert peer_name(gateway.port)[0] == "second"
    assert "the certificate stays as it was" in gateway.text()


@pytest.mark.slow
def test_a_slow_client_of_tls_gets_all_of_its_last_answer(start: Start, tmp_path: Path) -> None:
    shown = certificate(tmp_path, "first")
    raw, body = RawEngine(), b"[" + b"1," * 3_000_000 + b"1]"
    raw.answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    files = f'tls_certificate = "{tmp_path}/cert.pem"\ntls_key = "{tmp_path}/key.pem"'
    gateway = start(config(remote(raw.url), gateway=files))
    data = b""
    with (
        connect(gateway.port, receive=4096) as plain,
        trusting(shown).wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(post(b"Connection: close\r\n"))
        while not (data and gateway.idle()):
            data += client.recv(1 << 20)
        with pytest.raises(subprocess.TimeoutExpired):  # it takes its time
            gateway.process.wait(3)
        data += read_all(client).data
    assert data.endswith(b"\r\n\r\n" + body)
    raw.close()


def test_a_client_of_tls_that_says_no_last_word_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    shown = certificate(tmp_path, "first")
    files = f'tls_certificate = "{tmp_path}/cert.pem"\ntls_key = "{tmp_path}/key.pem"'
    gateway = start(config(remote("http://127.0.0.1:1"), gateway=files))
    with (
        connect(gateway.port) as plain,
        trusting(shown).wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(get(b"/healthz", b"Connection: close\r\n"))
        assert read_all(client).statuses == [200]  # up to the gateway's last word; ours is not said
        ended = select.poll()
        ended.register(client, select.POLLRDHUP)
        assert ended.poll(20_000)


def test_browsers_of_configured_origins_only(engine: FakeEngine, start: Start) -> None:
    gateway = start(config(remote(engine.url), gateway='cors_origins = ["https://chat.example"]'))
    ask = {"Access_Control_Request_Method": "POST"}
    allowed = gateway.request("OPTIONS", CHAT, Origin="https://chat.example", **ask)
    assert allowed.status == 204 and allowed.headers["access-control-allow-origin"] == "https://chat.example"
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    refused = gateway.request("OPTIONS", CHAT, Origin="https://evil.example", **ask)
    assert refused.status == 405 and "access-control-allow-origin" not in refused.headers
    for stream in (True, False):
        answer = gateway.request("POST", CHAT, chat(stream=stream), Origin="https://chat.example")
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
    answer = gateway.request("POST", CHAT, {"model": "no"}, Origin="https://chat.example")
    assert answer.status == 404 and answer.headers["access-control-allow-origin"] == "https://chat.example"


def test_forwarded_addresses_are_believed_from_trusted_proxies_only(engine: FakeEngine, start: Start) -> None:
    gateway = start(config(remote(engine.url), gateway='trusted_proxies = ["127.0.0.0/8", "10.0.0.0/8"]'))
    gateway.request("POST", CHAT, chat(), X_Forwarded_For="6.6.6.6, 192.0.2.7, 10.1.1.1")
    wait_until(lambda: "client=192.0.2.7 " in gateway.text(), 3, "the client's address", 0.05)
    gateway.request("POST", CHAT, chat(), X_Forwarded_For="6.6.6.6, nonsense, 10.1.1.1")
    wait_until(lambda: "client=10.1.1.1 " in gateway.text(), 3, "the last that is one", 0.05)


def test_a_remote_engines_own_key(engine: FakeEngine, start: Start, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-of-the-engine\n")
    gateway = start(config(remote(engine.url, remote_api_key_file=str(tmp_path / "key"))))
    answer = gateway.request("POST", CHAT, chat(), Authorization="Bearer sk-of-the-client", X_Request_Id="own-key")
    seen = engine.marked("own-key")
    assert answer.status == 200 and seen and seen["headers"]["authorization"] == "Bearer sk-of-the-engine"


def test_without_trust_nobody_is_believed(gateway: Gateway) -> None:
    gateway.request("POST", CHAT, chat(), X_Forwarded_For="6.6.6.6", X_Request_Id="untrusted")
    wait_until(lambda: "request=untrusted" in gateway.text(), 3, "the line", 0.05)
    assert "6.6.6.6" not in gateway.text()


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway whose configuration is broken, with no last good one."""
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in ("admin", "public")}
    made = Activated(
        tmp_path / "g", f"[auth]\nrequired = false\nkeys_file = '{tmp_path}/keys.toml'\n[nonsense]\n", sockets
    )
    yield made
    made.kill()
    for one in sockets.values():
        one.close()


def test_without_a_valid_configuration_it_says_so(lost: Gateway, engine: FakeEngine) -> None:
    assert "nonsense" in lost.text()
    assert lost.request("GET", "/healthz").status == 200
    ready = lost.request("GET", "/readyz")
    assert (ready.status, ready.code) == (503, "config_invalid")
    assert 60 <= int(ready.headers["retry-after"]) <= 70 and "x-should-retry" not in ready.headers
    assert lost.request("POST", CHAT, chat()).status == 401  # nobody said that keys are not needed
    assert lost.admin("/status")["state"] == "invalid"
    lost.config_file.write_text(config(remote(engine.url)))
    lost.reload()
    wait_until(lambda: lost.request("POST", CHAT, chat()).status == 200, 5, "it serves", 0.05)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_http_is_a_clean_400(gateway: Gateway, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as raw:
        raw.sendall(head)
        raw.shutdown(socket.SHUT_WR)
        try:
            data = b"".join(iter(lambda: raw.recv(65536), b""))
        except ConnectionResetError:
            data = b""
    assert data == b"" or data.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), data[:300]
    assert "Traceback" not in gateway.text()


def test_a_client_that_asks_before_it_sends(gateway: Gateway) -> None:
    body = json.dumps(chat()).encode()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as raw:
        raw.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        assert raw.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(body)
        assert raw.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_a_stream_by_head_and_by_pipeline(gateway: Gateway) -> None:
    """Two calls sent at once on one connection are answered one after the other."""
    body = json.dumps(fault("tokens=2", stream=True)).encode()
    one = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as raw:
        raw.sendall(one + one)
        data = b""
        while data.count(b"data: [DONE]") < 2:
            piece = raw.recv(65536)
            assert piece
            data += piece
    assert data.count(b"HTTP/1.1 200 OK") == 2
