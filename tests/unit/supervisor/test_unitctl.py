from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from appliance.supervisor import unitctl
from appliance.supervisor.unitctl import Refused, parse, read_request

ENGINE = "llm-engine@chat-2.service"


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("request_", "arguments"),
    [
        (line(verb="start", unit=ENGINE), ("start", "--no-ask-password", "--no-block", "--", ENGINE)),
        (line(verb="stop", unit=ENGINE), ("stop", "--no-ask-password", "--no-block", "--", ENGINE)),
        (line(verb="restart", unit=ENGINE), ("restart", "--no-ask-password", "--no-block", "--", ENGINE)),
        (line(verb="reset-failed", unit=ENGINE), ("reset-failed", "--no-ask-password", "--", ENGINE)),
        (
            line(verb="kill", unit=ENGINE, signal="SIGKILL"),
            ("kill", "--signal=SIGKILL", "--kill-who=all", "--", ENGINE),
        ),
        (
            line(verb="kill", unit="llm-gateway.service", signal="SIGHUP"),
            ("kill", "--signal=SIGHUP", "--kill-who=main", "--", "llm-gateway.service"),
        ),
        (
            line(verb="start", unit="llm-runtime.service"),
            ("start", "--no-ask-password", "--no-block", "--", "llm-runtime.service"),
        ),
        (line(verb="daemon-reload"), ("daemon-reload",)),
        (line(v=1, verb="daemon-reload", unit=None, signal=None), ("daemon-reload",)),
    ],
)
def test_what_is_carried_out(request_: bytes, arguments: tuple[str, ...]) -> None:
    assert parse(request_).command.arguments == arguments


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (line(verb="restart", unit="../../dbus"), "not a unit of the appliance"),
        (line(verb="restart", unit="dbus.service"), "not a unit of the appliance"),
        (line(verb="restart", unit="llm-engine@chat.service\ndbus.service"), "not a unit of the appliance"),
        (line(verb="restart", unit="llm-engine@chat\n.service"), "not a unit of the appliance"),
        (line(verb="restart", unit="llm-engine@../x.service"), "not a unit of the appliance"),
        (line(verb="restart", unit="llm-engine@.service"), "not a unit of the appliance"),
        (line(verb="restart", unit="llm-engine@*.service"), "not a unit of the appliance"),
        (line(verb="restart", unit="llm-engine@chat.service dbus.service"), "not a unit of the appliance"),
        (line(verb="restart", unit="--help"), "not a unit of the appliance"),
        (line(verb="restart", unit="llm-engine@INSTANCE"), "not a unit of the appliance"),
        (line(verb="restart", unit="llm-engine@"), "not a unit of the appliance"),
        (line(verb="restart"), "not a unit of the appliance"),
        (line(verb="enable", unit=ENGINE), "'enable' is not allowed"),
        (line(verb="--root=/", unit=ENGINE), "is not allowed"),
        (line(verb="start", unit="llm-gateway.service"), "'start' is not allowed"),
        (line(verb="stop", unit="llm-runtime.service"), "'stop' is not allowed"),
        (line(verb="kill", unit="llm-gateway.service", signal="SIGKILL"), "signal 'SIGKILL' is not allowed"),
        (line(verb="kill", unit=ENGINE, signal="SIGSTOP"), "signal 'SIGSTOP' is not allowed"),
        (line(verb="kill", unit=ENGINE), "signal '' is not allowed"),
        (line(verb="restart", unit=ENGINE, signal="SIGKILL"), "takes no signal"),
        (line(verb="daemon-reload", unit=ENGINE), "takes no unit"),
        (line(verb=["start"], unit=ENGINE), "are strings"),
        (line(verb="start", unit={"a": 1}), "are strings"),
        (line(verb="start", unit=ENGINE, options="--force"), "unknown field 'options'"),
        (b'["start"]', "not a JSON object"),
        (b"", "not one line of JSON"),
        (b"\xff\xfe\x00", "not one line of JSON"),
        (b"[" * 4000, "nested too deeply|not one line of JSON"),
        (b"start " + ENGINE.encode(), "not one line of JSON"),
    ],
)
def test_what_is_refused(request_: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=reason.replace("(", r"\(")):
        parse(request_)


def test_nothing_refused_reaches_systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = tmp_path / "called"
    program = tmp_path / "systemctl"
    program.write_text(f"#!/bin/sh\ntouch {witness}\n")
    program.chmod(0o755)
    monkeypatch.setenv("LLM_APPLIANCE_SYSTEMCTL", str(program))
    assert unitctl.answer(line(verb="restart", unit="../../dbus"))["ok"] is False
    assert not witness.exists()
    assert unitctl.answer(line(verb="restart", unit=ENGINE)) == {"ok": True, "rc": 0, "message": ""}
    assert witness.exists()


def test_systemds_refusal_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\necho 'Unit not found.' >&2\nexit 5\n")
    program.chmod(0o755)
    monkeypatch.setenv("LLM_APPLIANCE_SYSTEMCTL", str(program))
    assert unitctl.answer(line(verb="start", unit=ENGINE)) == {"ok": False, "rc": 5, "message": "Unit not found."}


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            pass


def test_a_slow_asker_is_not_waited_for(pipe) -> None:
    reading, writing = pipe
    os.write(writing, b'{"verb": "sta')
    with pytest.raises(Refused, match="no whole request"):
        read_request(reading, deadline_s=0.05)


def test_a_huge_request_is_not_kept(pipe) -> None:
    reading, writing = pipe

    def flood() -> None:
        try:
            os.write(writing, b"x" * 65536)
        except OSError:
            return

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        with pytest.raises(Refused, match="longer than 4096"):
            read_request(reading, deadline_s=5)
    finally:
        os.close(reading)
        thread.join(5)


@pytest.mark.parametrize(
    ("sent", "read"),
    [(b'{"a": 1}\n', b'{"a": 1}'), (b'{"a": 1}', b'{"a": 1}'), (b"", b""), (b"one\n  \n", b"one")],
)
def test_one_line_is_read(pipe, sent: bytes, read: bytes) -> None:
    reading, writing = pipe
    os.write(writing, sent)
    os.close(writing)
    assert read_request(reading, deadline_s=5) == read


def test_a_second_line_is_refused(pipe) -> None:
    reading, writing = pipe
    os.write(writing, b'{"verb":"daemon-reload"}\n{"verb":"start"}\n')
    with pytest.raises(Refused, match="more than one line"):
        read_request(reading, deadline_s=5)
