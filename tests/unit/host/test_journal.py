from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.host.journal import DATAGRAM, ERR, INFO, Journal, encode, message_id, under_journal


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.settimeout(5.0)
        yield listener


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal("llm-test", path=str(tmp_path / "socket"))
    yield made
    made.close()


def test_a_line_with_its_fields(daemon: socket.socket, journal: Journal) -> None:
    journal.log(ERR, "it died", LLM_ENGINE="chat", LLM_CAUSE="engine-died", LLM_INCIDENT=None)
    assert daemon.recv(4096).decode().splitlines() == [
        "PRIORITY=3", "SYSLOG_IDENTIFIER=llm-test", "MESSAGE=it died", "LLM_ENGINE=chat", "LLM_CAUSE=engine-died",
    ]  # fmt: skip


def test_many_lines_come_in_few_datagrams_an_empty_line_between_two(daemon: socket.socket, journal: Journal) -> None:
    daemon.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    journal.log_all(INFO, [("x" * 600, {"N": number}) for number in range(300)])
    datagrams = [daemon.recv(1 << 18) for _ in range(3)]
    daemon.setblocking(False)
    with pytest.raises(BlockingIOError):
        daemon.recv(1)
    assert all(len(datagram) <= DATAGRAM for datagram in datagrams)
    entries = [entry for datagram in datagrams for entry in datagram.removesuffix(b"\n").split(b"\n\n")]
    assert [entry.splitlines()[-1] for entry in entries] == [b"N=%d" % number for number in range(300)]


def test_a_value_with_a_newline_has_its_length() -> None:
    assert encode({"MESSAGE": "a\nb"}) == b"MESSAGE\n" + struct.pack("<Q", 3) + b"a\nb\n"


def test_a_large_record_comes_as_a_file(daemon: socket.socket, journal: Journal) -> None:
    journal.log(INFO, "x" * 3_000_000)
    data, descriptors, _, _ = socket.recv_fds(daemon, 4096, 1)
    assert data == b""
    with os.fdopen(descriptors[0], "rb") as file:
        file.seek(0)
        assert file.read().endswith(b"x" * 3_000_000 + b"\n")


def test_without_a_journal_the_line_goes_to_standard_error(
    journal: Journal, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    journal.log(INFO, "a\nb", LLM_ENGINE="chat")
    assert capsys.readouterr().err == "llm-test: a\nllm-test: b\n"


def test_a_journal_that_comes_back_is_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "socket"
    journal = Journal("llm-test", path=str(path))
    journal.log(INFO, "nobody listens")
    for text in ("first", "second"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(str(path))
            journal.log(INFO, text)
            assert f"MESSAGE={text}".encode() in listener.recv(4096)
        path.unlink()
    journal.close()


def test_the_journal_stream_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    assert under_journal(2)
    monkeypatch.setenv("JOURNAL_STREAM", "1:1")
    assert not under_journal(2)
    assert not under_journal(9999)


def test_message_ids_are_ids_of_the_journal() -> None:
    assert len(message_id("engine-died")) == 32
    assert int(message_id("engine-died"), 16) > 0
    assert message_id("engine-died") != message_id("worker-died")
