"""The kernel's lines by a journalctl that is a script: it tells what a file holds, then waits or ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from appliance import clock
from appliance.host.kernellog import BOOT_VARIABLE, KernelLog
from appliance.samples import Line

LIMIT = 20.0
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
SCRIPT = """#!/bin/sh
cd "$(dirname "$0")"
echo $$ "$@" >>calls
cat entries
cat errors >&2
[ -e stay ] && exec sleep 1000
exit 1
"""


class Journal:
    """The script's directory, and what the log tells."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = directory / "journalctl"
        self.program.write_text(SCRIPT)
        self.program.chmod(0o755)
        self.lines: list[Line] = []
        self.log = KernelLog(self.lines.append, program=str(self.program), pause_s=0.01)
        self.says()

    def says(self, *messages: str, errors: str = "", stay: bool = True, boot: str = BOOT) -> None:
        entries = [
            {"__CURSOR": f"c-{message}", "__MONOTONIC_TIMESTAMP": "5000000", "_BOOT_ID": boot, "_TRANSPORT": "kernel",
             "MESSAGE": message}
            for message in messages
        ]  # fmt: skip
        (self.directory / "entries").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        (self.directory / "errors").write_text(errors)
        (self.directory / "stay").write_text("") if stay else (self.directory / "stay").unlink(missing_ok=True)

    @property
    def calls(self) -> list[list[str]]:
        try:
            return [line.split() for line in (self.directory / "calls").read_text().splitlines()]
        except OSError:
            return []

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.log.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        end = clock.monotonic() + LIMIT
        while not condition():
            assert clock.monotonic() < end, f"not within {LIMIT:g} s: {what}; {self.lines} {self.log.fault!r}"
            await asyncio.sleep(0.01)


def test_it_looks_back_and_then_goes_on_where_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path)

    async def story() -> None:
        journal.says("first", "second")
        async with journal.followed():
            await journal.until("both lines", lambda: len(journal.lines) == 2)
            assert journal.log.fault == ""
            journal.says("third")
            os.kill(int(journal.calls[0][0]), 9)
            await journal.until("the line behind", lambda: len(journal.lines) == 3)

    asyncio.run(story())
    assert journal.lines == [Line(t=5.0, src="kernel", msg=msg, boot=BOOT) for msg in ("first", "second", "third")]
    first, second = journal.calls
    assert "--since=-15s" in first and "--follow" in first and "_TRANSPORT=kernel" in first
    assert "--after-cursor=c-second" in second
    assert not any(Path(f"/proc/{call[0]}").exists() for call in journal.calls)  # no child is left behind


def test_another_boot_is_not_told_but_passed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)

    async def story() -> None:
        journal.says("old", boot="0" * 32, stay=False)
        async with journal.followed():
            await journal.until("it is asked again", lambda: len(journal.calls) > 1)

    asyncio.run(story())
    assert journal.lines == []
    assert "--after-cursor=c-old" in journal.calls[1]


def test_the_boot_is_the_one_that_systemd_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may show another one than the journal's."""
    monkeypatch.setenv(BOOT_VARIABLE, "1" * 32)
    journal = Journal(tmp_path)

    async def story() -> None:
        journal.says("of the machine below")
        async with journal.followed():
            await journal.until("it is asked", lambda: len(journal.calls) == 1)
            journal.says("ours", boot="1" * 32)
            os.kill(int(journal.calls[0][0]), 9)
            await journal.until("our line", lambda: len(journal.lines) == 1)

    asyncio.run(story())
    assert [line.msg for line in journal.lines] == ["ours"]
    assert all(f"--boot={'1' * 32}" in call for call in journal.calls)  # journalctl cannot know better by itself


def test_a_journal_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path)

    async def story() -> None:
        journal.says(errors="Hint: x\nNo journal files were opened due to insufficient permissions.\n", stay=False)
        async with journal.followed():
            await journal.until("why", lambda: "insufficient permissions" in journal.log.fault)
            journal.says("now")
            await journal.until("it can be read", lambda: journal.log.fault == "" and len(journal.lines) == 1)

    asyncio.run(story())


def test_a_lost_cursor_is_given_up(tmp_path: Path) -> None:
    journal = Journal(tmp_path)

    async def story() -> None:
        journal.says("first", errors="Failed to seek to cursor: Invalid argument\n", stay=False)
        async with journal.followed():
            await journal.until("it is asked again", lambda: len(journal.calls) > 1)

    asyncio.run(story())
    assert "--since=-15s" in journal.calls[1]


def test_without_a_journal(tmp_path: Path) -> None:
    log = KernelLog([].append, program=str(tmp_path / "none"))  # type: ignore[arg-type]

    async def story() -> None:
        task = asyncio.ensure_future(log.run())
        end = clock.monotonic() + LIMIT
        while not log.fault and clock.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert log.fault == f"cannot run {tmp_path}/none: No such file or directory"
