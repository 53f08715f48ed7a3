"""Clients of the TLS listener that speak no TLS, half of it, or too much: closed in time, unanswered, nothing kept."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.component.gateway.hostile.conftest import QUICKER
from tests.support.certificates import certificate, trusting
from tests.support.gatewaylook import rss, settle
from tests.support.gatewayprocess import FakeEngine, Gateway, config, fault, remote
from tests.support.rawclient import connect, read_all, send
from tests.support.rawrequests import CHAT, get, post
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls"), "localhost")


@pytest.fixture(scope="module")
def secure(engine: FakeEngine, trusted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    files = f'tls_certificate = "{trusted}"\ntls_key = "{trusted.parent}/key.pem"\n'
    made = Gateway(tmp_path_factory.mktemp("secure"), config(remote(engine.url), gateway=files + QUICKER))
    yield made
    assert made.process.poll() is None, made.text()[-2000:]
    log = made.text()
    made.kill()
    assert "Traceback" not in log and "failed: " not in log, log[-3000:]


def wrapped(gateway: Gateway, trusted: Path, *, receive: int = 0) -> ssl.SSLSocket:
    raw = connect(gateway.port, receive=receive)
    return trusting(trusted).wrap_socket(raw, server_hostname="localhost")


def serves(gateway: Gateway, trusted: Path) -> bool:
    with wrapped(gateway, trusted) as connection:
        connection.sendall(get(b"/healthz", b"Connection: close\r\n"))
        return read_all(connection).statuses == [200]


OWN = 6  # descriptors that the gateway's own looks at its engine may take and give back at any moment


def descriptors(gateway: Gateway) -> int:
    return len(os.listdir(f"/proc/{gateway.process.pid}/fd"))


def let_go(gateway: Gateway, before: int) -> None:
    """Well before the thirty seconds that uvloop by itself would wait for a farewell."""
    wait_until(lambda: descriptors(gateway) <= before + OWN, 25, "their descriptors are closed", 0.05)


def hello() -> bytes:
    """The first flight of a real client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


HELLO = hello()
GARBAGE = {
    "HTTP": get(b"/healthz"),
    "a call in HTTP": post(),
    "zeros": b"\0" * 5000,
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an alert": b"\x15\x03\x01\x00\x02\x02\x28",
    "data before the handshake": b"\x17\x03\x03\x00\x05hello",
    "a record of 64 KiB": b"\x16\x03\x01\xff\xff" + b"a" * 70_000,
    "a hello with a broken length": HELLO[:6] + b"\xff\xff\xff" + HELLO[9:],
    "a hello and garbage": HELLO + b"garbage" * 100,
    "two hellos": HELLO + HELLO,
    "SSL 2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + b"a" * 37,
}


@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_no_tls_is_closed_and_never_answered(secure: Gateway, trusted: Path, name: str) -> None:
    reply = send(secure.port, GARBAGE[name])
    assert reply.seconds is not None and reply.seconds < 6  # a record that never ends meets the deadline
    assert b"HTTP/" not in reply.data
    assert serves(secure, trusted)
    settle(secure)


@given(st.binary(min_size=1, max_size=200), st.integers(0, len(HELLO)), st.booleans())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_in_a_handshake(secure: Gateway, data: bytes, place: int, replaced: bool) -> None:
    wire = HELLO[:place] + data + HELLO[place + len(data) * replaced :]
    with connect(secure.port) as connection:
        connection.sendall(wire)
        connection.shutdown(socket.SHUT_WR)
        assert b"HTTP/" not in read_all(connection, 5).data
    settle(secure)


def test_half_handshakes_that_are_held_open_are_let_go(secure: Gateway, trusted: Path) -> None:
    assert serves(secure, trusted)
    before, memory = descriptors(secure), rss(secure)
    held = [connect(secure.port) for _ in range(200)]
    begun = time.monotonic()
    try:
        for number, connection in enumerate(held):
            connection.sendall(HELLO[: number % len(HELLO)])
        assert serves(secure, trusted)  # meanwhile
        assert time.monotonic() - begun < 10
        for connection in held:
            assert read_all(connection, 20).seconds is not None
    finally:
        for connection in held:
            connection.close()
    let_go(secure, before)
    assert rss(secure) - memory < 60


def test_a_client_that_leaves_in_the_handshake(secure: Gateway, trusted: Path) -> None:
    assert serves(secure, trusted)
    before = descriptors(secure)
    for size in range(0, len(HELLO), 16):
        with connect(secure.port) as connection:
            connection.sendall(HELLO[:size])
    let_go(secure, before)


def test_old_versions_are_refused(secure: Gateway) -> None:
    said = _s_client(secure, "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0")
    assert "Cipher is (NONE)" in said, said


def test_nobody_negotiates_anew(secure: Gateway, trusted: Path) -> None:
    """`R` asks for it: TLS 1.2 only, and expensive for a server that obeys."""
    said = _s_client(secure, "-tls1_2", type_="R\n")
    assert "RENEGOTIATING" in said and "no renegotiation" in said, said
    assert serves(secure, trusted)


def _s_client(gateway: Gateway, *options: str, type_: str = "") -> str:
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{gateway.port}", *options],
        input=type_, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_garbage_behind_a_good_handshake(secure: Gateway, trusted: Path) -> None:
    connection = wrapped(secure, trusted)
    raw = socket.socket(fileno=connection.detach())
    with raw:
        raw.settimeout(20)
        raw.sendall(b"\x17\x03\x03\x00\x20" + b"x" * 32 + post())
        assert b"HTTP/" not in read_all(raw).data
    settle(secure)


@pytest.mark.slow
def test_deadlines_hold_within_tls(secure: Gateway, trusted: Path) -> None:
    for wire in (b"GET /heal", post(b"Content-Length: 100\r\n", b"x")):
        with wrapped(secure, trusted) as connection:
            connection.sendall(wire)
            reply = read_all(connection)
        assert reply.statuses == [400] and reply.seconds is not None, reply.data
    settle(secure)


def test_a_client_that_is_cut_off_ends_the_engine_s_work(secure: Gateway, trusted: Path, engine: FakeEngine) -> None:
    """No close_notify: the connection just ends."""
    connection = wrapped(secure, trusted)
    connection.sendall(post(b"X-Request-Id: cut\r\n", json.dumps(fault("stall=2", stream=True)).encode()))
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    raw = socket.socket(fileno=connection.detach())
    raw.close()
    wait_until(lambda: (engine.marked("cut") or {}).get("aborted"), 10, "the engine is told", 0.02)
    settle(secure)


@pytest.mark.slow
def test_a_client_that_never_reads_is_ended_within_tls(secure: Gateway, trusted: Path) -> None:
    before, memory = descriptors(secure), rss(secure)
    held = [wrapped(secure, trusted, receive=4096) for _ in range(16)]
    try:
        for connection in held:
            # A slow engine refuses a few with 504; those connections end as well.
            body = json.dumps(fault("tokens=4000,pad=4096", stream=True)).encode()
            connection.sendall(post(b"Connection: close\r\n", body, path=CHAT))
        wait_until(lambda: secure.admin("/status")["gateway"]["running"] > 0, 60, "they run", 0.01)
        wait_until(secure.idle, 60, "nothing runs", 0.05)
        assert rss(secure) - memory < 100
        let_go(secure, before)
    finally:
        for connection in held:
            connection.close()
