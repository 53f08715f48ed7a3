"""Lines of the kernel, of systemd on our units and of systemd-oomd, as they come: journalctl is followed in a child.

/dev/kmsg is root's; the journal is readable to its group. A child that ends is replaced and goes on after the last
entry that was seen, so that no line is lost or told twice; the first one looks back a little, for what happened while
nobody looked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from appliance.samples import Line
from appliance.wire.journalrecord import FIELDS, MATCHES, entry_of

from . import children
from .deadline import within

PROGRAM = "journalctl"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
BOOT_VARIABLE = "LLM_APPLIANCE_BOOT"  # set by the unit
LOOK_BACK_S = 15.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # between two children
DEATH_S = 2.0
LINE_LIMIT = 1 << 16


class KernelLog:
    """Tells each line to `tell`; `run` is its one task. `fault` says why there are none, empty while it follows."""

    def __init__(self, tell: Callable[[Line], None], *, program: str = PROGRAM, pause_s: float = FIRST_PAUSE_S) -> None:
        self._tell = tell
        self._program = program
        self._first_pause_s = self._pause_s = pause_s
        self._cursor = ""
        self._boot = boot_id()
        self.fault = ""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._follow()
            except OSError as error:
                self.fault = f"cannot run {self._program}: {error.strerror}"
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)

    async def _follow(self) -> None:
        """One child from its start to its end."""
        since = f"--after-cursor={self._cursor}" if self._cursor else f"--since=-{LOOK_BACK_S:.0f}s"
        boot = [f"--boot={self._boot}"] if self._boot else []  # --follow means this boot, by the id that is seen here
        options = (
            "--follow",
            "--no-tail",
            "--quiet",
            "--no-pager",
            "--output=json",
            f"--output-fields={','.join(FIELDS)}",
        )
        child = await asyncio.create_subprocess_exec(
            self._program,
            *options,
            since,
            *boot,
            *MATCHES,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
        )
        assert child.stdout is not None and child.stderr is not None
        try:
            while True:
                try:
                    raw = await child.stdout.readline()
                except ValueError:  # longer than any line of ours
                    continue
                if not raw:
                    break
                self._take(raw)
            said = (await within(DEATH_S, child.stderr.read(LINE_LIMIT))).decode(errors="replace").strip()
            self.fault = said.rpartition("\n")[2] or f"{self._program} ended"
            if "cursor" in said:  # the journal that it pointed into is gone
                self._cursor = ""
        except asyncio.TimeoutError:
            self.fault = f"{self._program} closed its output and stays"
        finally:
            if child.returncode is None:
                children.kill(child)
                await asyncio.wait({asyncio.ensure_future(child.wait())}, timeout=DEATH_S)

    def _take(self, raw: bytes) -> None:
        entry = entry_of(raw)
        if entry is None:
            return
        self._cursor, self.fault, self._pause_s = entry.cursor, "", self._first_pause_s
        # Another boot's clock is another clock.
        if entry.line is not None and entry.line.boot in ("", self._boot):
            self._tell(entry.line)


def boot_id() -> str:
    """This boot's id as the journal writes it; empty when it cannot be told.

    systemd says it where it can: a container's own boot id is mounted over the kernel's, and a unit whose /proc/sys is
    protected sees the kernel's again, which the container's journal does not know.
    """
    given = os.environ.get(BOOT_VARIABLE, "")
    if given:
        return given
    try:
        return Path(BOOT_ID).read_text().strip().replace("-", "")
    except OSError:
        return ""
