"""The process that asks NVML, watched: a reading or an UNKNOWN with its reason, never a wait without end.

    asked ── answered ──────────────────────────> reading
      │                                              ^
      ├── `answer` seconds: UNKNOWN, still waiting ──┘ (a slow driver is not yet a sick one)
      └── `patience` seconds: killed ── gone ──> another one after a backoff
                                   └─ stays ──> counted; at `most_stuck` no other is started until one is gone

Killing a process in the middle of a driver call can make a sick driver worse (NVIDIA/dcgm-exporter#84), and one that
waits uninterruptibly stays for ever: so it is done late, rarely, and only a few times.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from appliance import clock
from appliance.host import children, ownprogram
from appliance.host.deadline import within
from appliance.samples import Nvml
from appliance.wire.nvmlline import decode

Process = asyncio.subprocess.Process
LINE_LIMIT = 1 << 20  # eight GPUs with many processes have about 20 KiB
ABSENT = frozenset({9, 12})  # NVML's numbers for a driver that is not loaded, a library that is not installed
SIGN = "/proc/driver/nvidia/version"  # there as soon as the driver is loaded


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, but for `most_stuck`."""

    answer: float = 3.0
    start: float = 30.0  # the first answer: without persistence mode each GPU takes seconds to wake
    patience: float = 10.0
    death: float = 1.0  # from SIGKILL to the end of a process that can be killed
    backoff: float = 5.0  # doubles up to backoff_max
    backoff_max: float = 300.0
    absent: float = 300.0  # between two looks for a driver that is not there and gives no sign
    most_stuck: int = 3


class NvmlWatch:
    """Tells each reading to `tell`; `run` is its one task. `kill` ends a process, or fails to."""

    def __init__(
        self,
        tell: Callable[[Nvml], None],
        *,
        argv: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        sign: str = SIGN,
        kill: Callable[[Process], None] = children.kill,
    ) -> None:
        self._tell = tell
        self._argv = tuple(argv) or (*ownprogram.python(), "-m", "appliance", "nvml-probe")
        # The packaged program finds its modules by itself; a child of it is told where they are.
        self._environment = {**(os.environ if environment is None else environment), **ownprogram.modules()}
        self._limits = limits or Limits()
        self._sign = sign
        self._signless = False  # the driver was absent, and there was no sign of it
        self._kill = kill
        self._child: Process | None = None
        self._asked: float | None = None  # when the question was put that is not answered yet
        self._answered = False  # whether this child has answered at all
        self._failures = 0
        self._not_before = 0.0
        self._stuck: list[Process] = []

    async def run(self, interval: Callable[[], float]) -> None:
        """Read each `interval()` seconds until cancelled; no child that can be ended is left behind."""
        try:
            while True:
                started = clock.monotonic()
                await self._turn()
                await asyncio.sleep(max(started + interval() - clock.monotonic(), 0.0))
        finally:
            if self._child is not None:
                await self._end(self._child)

    async def _turn(self) -> None:
        """One question, or its continuation."""
        self._stuck = [process for process in self._stuck if process.returncode is None]
        now = clock.monotonic()
        if self._child is None:
            if len(self._stuck) >= self._limits.most_stuck:
                self._failed("driver-unresponsive: no answer from NVML")
                return
            if self._signless and os.path.exists(self._sign):
                self._signless, self._not_before = False, now
            if now < self._not_before:
                if self._stuck:
                    self._failed("no answer from NVML")
                return
            await self._start()
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            return
        if self._asked is None:
            self._asked = now
            child.stdin.write(b"\n")
        try:
            limit = self._limits.answer if self._answered else self._limits.start
            line = await within(limit, child.stdout.readline())
        except asyncio.TimeoutError:
            await self._late(child, clock.monotonic() - self._asked)
            return
        except ValueError:  # a line without an end
            line = b""
        await self._heard(child, line)

    async def _start(self) -> None:
        try:
            self._child = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=self._environment,
                limit=LINE_LIMIT,
            )
        except OSError as error:
            self._back_off()
            self._failed(f"cannot ask NVML: {error.strerror}")
        self._asked, self._answered = None, False

    async def _heard(self, child: Process, line: bytes) -> None:
        """A line came, or the end of the output."""
        self._asked = None
        try:
            reading = decode(line)
        except ValueError:
            await self._end(child)
            self._back_off()
            self._failed(f"what asks NVML gave no reading and ended with status {child.returncode}")
            return
        self._answered = True
        if not reading.error:
            self._failures = 0
        else:  # its last word
            await self._end(child)
            self._back_off(absent=reading.code in ABSENT)
        self._tell(replace(reading, t=clock.monotonic()))

    async def _late(self, child: Process, waited: float) -> None:
        if waited >= (self._limits.patience if self._answered else self._limits.start):
            await self._end(child)
            self._back_off()
        self._failed("no answer from NVML")

    async def _end(self, child: Process) -> None:
        """Kill it; one that stays is kept in mind. Blocks up to `death` seconds."""
        self._child = self._asked = None
        if child.stdin is not None:
            child.stdin.close()
        if child.returncode is None:
            self._kill(child)
        try:
            await within(self._limits.death, child.wait())
        except asyncio.TimeoutError:
            self._stuck.append(child)

    def _back_off(self, *, absent: bool = False) -> None:
        limits = self._limits
        self._signless = absent and not os.path.exists(self._sign)
        wait = limits.absent if absent else min(limits.backoff * 2**self._failures, limits.backoff_max)
        self._failures = min(self._failures + 1, 16)
        self._not_before = clock.monotonic() + wait

    def _failed(self, why: str) -> None:
        stuck = len(self._stuck)
        held = f"; {stuck} processes wait in the driver and cannot be killed" if stuck else ""
        self._tell(Nvml(t=clock.monotonic(), error=why + held, stuck=stuck))
