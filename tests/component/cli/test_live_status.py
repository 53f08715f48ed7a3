"""`top` on a terminal of its own, and `status --watch` in a pipe."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.cli.top import ENTER, HOME, LEAVE
from tests.support.command import call
from tests.support.stage import LIMIT, ROOT, Stage
from tests.support.toldstatus import Gateway, replica, told
from tests.support.waiting import wait_until


class Terminal:
    """A command with a terminal of its own, of 80 columns and 24 rows, and what it has written there."""

    def __init__(self, stage: Stage, *words: str) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(24, 80)
        self.before = termios.tcgetattr(self._slave)
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "appliance", "--config", str(stage.config), *words],
            env=stage.environment | {"TERM": "xterm"}, cwd=ROOT, start_new_session=True,
            stdin=self._slave, stdout=self._slave, stderr=self._slave,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    @property
    def rows(self) -> list[str]:
        """The last whole screen, without colours; the program writes a screen at once."""
        while select.select([self._master], [], [], 0)[0]:
            self.text += os.read(self._master, 65536).decode()
        screen = self.text.split(LEAVE)[0].rpartition(HOME)[2]
        if not screen.endswith("\x1b[J"):
            return []
        return [row.rstrip("\r") for row in re.sub(r"\x1b\[[0-9;]*[mKJ]", "", screen).split("\n")]

    def wait(self, words: str) -> list[str]:
        return wait_until(lambda: any(words in row for row in self.rows) and self.rows, LIMIT, words, 0.02)

    def ended(self) -> int:
        status = self.process.wait(LIMIT)
        assert self.rows is not None and LEAVE in self.text
        return status

    @property
    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._slave) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@contextlib.contextmanager
def terminal(stage: Stage, *words: str) -> Iterator[Terminal]:
    made = Terminal(stage, *words)
    try:
        yield made
    finally:
        made.close()


def many(state: str, count: int = 1, **more: Any) -> dict[str, Any]:
    return told(*(replica(f"chat-{number}", state, **more) for number in range(count)))


def test_top_follows_what_happens_and_the_terminals_size(still: Stage, gateway: Gateway) -> None:
    gateway.tell(many("serving", 30))
    with terminal(still, "top", "--interval", "0.1") as screen:
        first = screen.wait("chat-5")
        assert len(first) == 24 and max(map(len, first)) <= 80 and "q quit" in first[-1] and "more lines" in first[-1]
        assert screen.text.startswith(ENTER) and not screen.is_as_before
        screen.type("G")
        screen.wait("chat-29")
        screen.resize(10, 40)
        small = wait_until(lambda: len(screen.rows) == 10 and screen.rows, LIMIT, "it is as small", 0.02)
        assert max(map(len, small)) <= 40
        gateway.tell(many("held", cause="config-error", reason="bad flag"))
        screen.resize(24, 80)
        screen.wait("config-error: bad flag")
        screen.type("\x1b[Aq")
        assert screen.ended() == 0
        assert screen.is_as_before


def test_top_goes_on_while_the_gateway_is_away(still: Stage, gateway: Gateway) -> None:
    gateway.tell(many("serving"))
    with terminal(still, "top", "--interval", "0.1") as screen:
        screen.wait("chat-0")
        gateway.body = b"<html>another program</html>"
        screen.wait("the gateway does not answer")
        gateway.tell(many("serving"))
        wait_until(lambda: "the gateway" not in screen.rows[0], LIMIT, "it is back", 0.02)
        screen.type("\x03")
        assert screen.ended() == 0 and screen.is_as_before


def test_a_signal_ends_top_and_the_terminal_is_as_before(still: Stage, gateway: Gateway) -> None:
    gateway.tell(many("serving"))
    with terminal(still, "top") as screen:
        screen.wait("chat-0")
        screen.process.send_signal(signal.SIGTERM)
        assert screen.ended() == 128 + signal.SIGTERM and screen.is_as_before


def watched(stage: Stage, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "appliance", "--config", str(stage.config), *words],
        env=stage.environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_status_watch_is_plain_and_outlives_the_gateway(still: Stage, gateway: Gateway) -> None:
    gateway.tell(many("serving"))
    with watched(still, "status", "--watch", "0.1") as process:
        assert process.stdout is not None and process.stderr is not None
        seen: list[str] = []

        def until(words: str) -> None:
            while words not in (line := process.stdout.readline()):  # type: ignore[union-attr]
                assert line, (seen, process.stderr.read())  # type: ignore[union-attr]
                seen.append(line)

        until("llm-appliance 0.1.0")
        until("chat-0")
        gateway.body = b"gone"
        until("the gateway does not answer")
        until("unreachable")
        gateway.tell(many("held"))
        until("held")
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, errors) == (0, "")
        assert "\x1b" not in "".join([*seen, rest])


@pytest.mark.parametrize("words", [("status", "--watch", "0.1"), ("top", "--interval", "0.1")])
def test_json_is_an_object_a_line(still: Stage, gateway: Gateway, words: tuple[str, ...]) -> None:
    gateway.tell(many("serving"))
    with watched(still, *words, "--json") as process:
        assert process.stdout is not None
        for _ in range(2):
            assert json.loads(process.stdout.readline()) == many("serving")
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0


@pytest.mark.parametrize("pause", ["0", "-1", "nan", "1e9", "soon"])
def test_a_pause_that_is_none(still: Stage, pause: str) -> None:
    done = call(still, "status", f"--watch={pause}")
    assert done.returncode == 2 and "--watch" in done.stderr
