from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.host import notify


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5.0)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def test_all_fields_come_in_one_message_of_utf8(manager: socket.socket) -> None:
    notify.ready("läuft …\nzweite")
    assert manager.recv(4096).decode() == "READY=1\nSTATUS=läuft … zweite"


@pytest.mark.parametrize(
    ("send", "message"),
    [
        (lambda: notify.status("x"), "STATUS=x"),
        (notify.watchdog, "WATCHDOG=1"),
        (lambda: notify.extend_timeout(1.5), "EXTEND_TIMEOUT_USEC=1500000"),
        (lambda: notify.stopping("bye"), "STOPPING=1\nSTATUS=bye"),
        (lambda: notify.notify(MAINPID=7, READY=1), "MAINPID=7\nREADY=1"),
    ],
)
def test_messages(manager: socket.socket, send: object, message: str) -> None:
    assert callable(send)
    send()
    assert manager.recv(4096).decode() == message


def test_a_reload_carries_the_clock(manager: socket.socket) -> None:
    before = time.monotonic()
    notify.reloading()
    reloading, stamp = manager.recv(4096).decode().splitlines()
    assert reloading == "RELOADING=1"
    assert before * 1e6 - 1 <= int(stamp.removeprefix("MONOTONIC_USEC=")) <= time.monotonic() * 1e6


def test_a_full_queue_does_not_block_a_status(manager: socket.socket) -> None:
    begun = time.monotonic()
    for _ in range(2000):
        notify.status("x")
        notify.watchdog()
    assert time.monotonic() - begun < 2.0


def test_without_a_manager_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify.ready()
    assert notify.barrier(5.0)


def test_a_manager_that_is_gone_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert not notify.barrier(0.1)


def test_a_barrier_ends_when_the_manager_has_come_to_it(manager: socket.socket) -> None:
    def take() -> None:
        data, descriptors, _, _ = socket.recv_fds(manager, 4096, 1)
        assert data == b"BARRIER=1"
        for descriptor in descriptors:
            os.close(descriptor)

    reader = threading.Thread(target=take)
    reader.start()
    assert notify.barrier(5.0)
    reader.join()


def test_a_barrier_does_not_wait_for_ever(manager: socket.socket) -> None:
    assert not notify.barrier(0.05)


def test_watchdog_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    assert notify.watchdog_interval() is None
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    assert notify.watchdog_interval() == 10.0
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert notify.watchdog_interval() is None
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    monkeypatch.setenv("WATCHDOG_USEC", "soon")
    assert notify.watchdog_interval() is None


def test_descriptors_meant_for_another_process_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", "1")
    assert notify.listen_fds() == {}


def test_descriptors_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    try:
        monkeypatch.setattr(notify, "FIRST_DESCRIPTOR", min(ours, theirs))
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", "2" if abs(ours - theirs) == 1 else "1")
        monkeypatch.setenv("LISTEN_FDNAMES", "public:public")
        os.set_inheritable(ours, True)
        found = notify.listen_fds()
        assert found["public"][0] == min(ours, theirs)
        assert not os.get_inheritable(found["public"][0])
    finally:
        os.close(ours)
        os.close(theirs)
