from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from appliance.errors import Unreachable
from appliance.host import systemd
from appliance.host.systemd import Command, Completed, Unit, ask, ask_async, parse_show, show, unit_of

# As systemd 252 prints them: an engine waiting for its own restart, and one that has never run.
SHOWN = """Id=llm-engine@chat.service
LoadState=loaded
ActiveState=activating
SubState=auto-restart
Result=exit-code
ExecMainCode=1
ExecMainStatus=71
MainPID=0
NRestarts=2
InvocationID=0f2c6a1de0c94f5d8e0ad0a38d4b1f6e
ControlGroup=
ConditionResult=yes
ConditionTimestampMonotonic=1000000
StateChangeTimestampMonotonic=93500000
ExecMainStartTimestampMonotonic=61250000
StatusText=serving = well

Id=llm-engine@embed.service
LoadState=loaded
ActiveState=inactive
SubState=dead
Result=success
ExecMainCode=0
ExecMainStatus=0
MainPID=[not set]
NRestarts=0
InvocationID=
ControlGroup=
ConditionResult=no
ConditionTimestampMonotonic=0
StateChangeTimestampMonotonic=0
ExecMainStartTimestampMonotonic=0
StatusText=
Job=1234
"""


def test_units_as_shown() -> None:
    chat, embed = map(unit_of, parse_show(SHOWN))
    assert chat == Unit(
        name="llm-engine@chat.service",
        load="loaded",
        active="activating",
        sub="auto-restart",
        result="exit-code",
        exit_code=1,
        exit_status=71,
        restarts=2,
        invocation="0f2c6a1de0c94f5d8e0ad0a38d4b1f6e",
        condition=True,
        since=93.5,
        started=61.25,
        status_text="serving = well",
    )
    assert (embed.condition, embed.since, embed.main_pid, embed.job) == (None, None, 0, True)


@pytest.mark.parametrize("text", ["", "\n\n\n", "nonsense\n", "=\n", "Id\nFoo"])
def test_other_text_gives_no_unit(text: str) -> None:
    assert not any(unit_of(block).name for block in parse_show(text))


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for systemctl; a test writes it."""
    path = tmp_path / "systemctl"
    monkeypatch.setenv(systemd.PROGRAM_VARIABLE, str(path))
    return path


def write(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def both(command: Command[Completed], deadline_s: float = 10.0) -> Completed:
    """The answer, the same from both ways of asking."""
    answer = ask(command, deadline_s)
    assert asyncio.run(ask_async(command, deadline_s)) == answer
    return answer


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (systemd.change("restart", "a.service"), "restart --no-ask-password --no-block -- a.service"),
        (
            systemd.change("restart", "a.service", "b.socket", block=True),
            "restart --no-ask-password -- a.service b.socket",
        ),
        (systemd.change("reset-failed", "a.service"), "reset-failed --no-ask-password -- a.service"),
        (systemd.kill("a.service", "SIGHUP", main=True), "kill --signal=SIGHUP --kill-who=main -- a.service"),
        (systemd.daemon_reload(), "daemon-reload"),
    ],
)
def test_what_is_asked(program: Path, command: Command[Completed], words: str) -> None:
    write(program, 'echo "$@"; echo "pager=$SYSTEMD_PAGER" >&2; exit 4')
    assert both(command) == Completed(4, f"{words}\n", "pager=\n")


def test_show_reads_all_units(program: Path, tmp_path: Path) -> None:
    (tmp_path / "shown").write_text(SHOWN)
    write(program, f"cat {tmp_path}/shown")
    assert list(ask(show(["llm-engine@*.service"]))) == ["llm-engine@chat.service", "llm-engine@embed.service"]


@pytest.mark.parametrize(
    ("script", "message"),
    [("sleep 30", "did not answer within"), ("echo 'Connection timed out' >&2; exit 1", "Connection timed out")],
)
def test_no_answer_is_unreachable(program: Path, script: str, message: str) -> None:
    write(program, f"echo $$ > {program}.pid; exec {script}" if script.startswith("sleep") else script)
    with pytest.raises(Unreachable, match=message):
        ask(show(["a.service"]), 0.5)
    with pytest.raises(Unreachable, match=message):
        asyncio.run(ask_async(show(["a.service"]), 0.5))
    pid = Path(f"{program}.pid")
    if pid.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


def test_no_program_is_unreachable(program: Path) -> None:
    with pytest.raises(Unreachable, match="cannot run"):
        ask(systemd.daemon_reload())
    with pytest.raises(Unreachable, match="cannot run"):
        asyncio.run(ask_async(systemd.daemon_reload()))
