"""What is seen of engines, GPUs and the kernel, all the time, each source by a task of its own; kept for ten minutes.

    of an engine   Metrics Health (its socket), Proc Cgroup (its control group), Milestone Notice (its launcher's file)
    of the host    Nvml (a process of its own), Line (the journal), Ledger (the gateway; kept with the engine), Lag

Nothing is judged here. A source that fails tells so in a sample; one that is slow holds up itself alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from appliance import clock, names
from appliance.host import cgroup
from appliance.host.kernellog import KernelLog
from appliance.host.places import Places
from appliance.samples import Cgroup, Lag, Line, Nvml, Sample
from appliance.wire.journalrecord import concerns

from . import looks
from .gpuboard import GpuBoard
from .nvmlwatch import ABSENT, NvmlWatch
from .processes import Processes
from .ring import Ring

UNSETTLED_S = 15.0  # a driver may be slow for a while before anybody is told
VERDICT_S = 0.2  # between two looks whether a launcher has told an end
MOST_LINES, LINE_BYTES = 2000, 1 << 20  # a firewall that logs into the kernel's log must not drive out the rest


class Watched:
    """One engine: its samples, and the tasks that take them."""

    def __init__(self, instance: str, places: Places, telemetry: Telemetry) -> None:
        self.ring = Ring()
        self.control_group = ""
        self._socket = names.engine_socket(instance, places.run)
        self._state = looks.StateSource(
            names.engine_state(instance, places.run), names.engine_verdict(instance, places.run)
        )
        self._processes = Processes()
        self._looking: asyncio.Future[list[Sample]] | None = None
        kinds = {"/metrics": self._metrics, "/health": self._health, "files": self._files}
        self.tasks = {
            f"{what} of {instance}": asyncio.ensure_future(telemetry.repeat(look)) for what, look in kinds.items()
        }

    def add(self, sample: Sample) -> None:
        self.ring.add(sample, clock.monotonic())

    async def _metrics(self) -> None:
        if self._is_up():
            self.add(await looks.metrics(self._socket))

    async def _health(self) -> None:
        if self._is_up():
            self.add(await looks.health(self._socket))

    def _is_up(self) -> bool:
        """Whether there is somebody to ask: before, the socket's absence says nothing that the state does not."""
        return bool(self.control_group) and Path(self._socket).exists()

    async def _files(self) -> None:
        """What lies in /proc, the control group and the state file, read by a thread: the kernel may take its time."""
        if self._looking is None:
            self._looking = asyncio.ensure_future(asyncio.to_thread(self._look, self.control_group))
        await asyncio.wait({self._looking}, timeout=looks.DEADLINE_S)
        if not self._looking.done():
            self.add(Cgroup(t=clock.monotonic(), error=f"not read within {looks.DEADLINE_S:g} s"))
            return
        looked, self._looking = self._looking, None
        for sample in looked.result():
            self.add(sample)

    def _look(self, group: str) -> list[Sample]:
        now = clock.monotonic()
        found: list[Sample] = [*self._state.look(now, clock.wall()), *self._processes.look(group, now)]
        if group:
            found.append(cgroup.read(group, now))
        return found


class Telemetry:
    """Takes samples while `running`; `follow` says of which engines. GPUs are shown in a file for others; `ended` is
    called when a launcher has told how a run ended."""

    def __init__(
        self,
        places: Places,
        interval: Callable[[], float],
        *,
        ended: Callable[[], None] = lambda: None,
        nvml: Callable[[Callable[[Nvml], None]], NvmlWatch] = NvmlWatch,
    ) -> None:
        self._places = places
        self._interval = interval
        self._ended = ended
        self._nvml = nvml(self._read_nvml)
        self._host = Ring()
        self._lines = Ring(most=MOST_LINES, most_bytes=LINE_BYTES)
        self._engines: dict[str, Watched] = {}
        self._log = KernelLog(self._read_line)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._read_at: float | None = None  # the last whole reading of NVML
        self.board = GpuBoard(places.under_run(names.GPU_STATE))
        self.nvml: Nvml | None = None
        self.late_s = 0.0  # of the last turn of the loop

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Samples are taken inside; leaving ends every task and every child."""
        works = {
            "NVML": self._nvml.run(self._interval),
            "kernel log": self._log.run(),
            "loop": self._watch_the_loop(),
            "ledger": self.repeat(self.ask_gateway),
            "verdicts": self._watch_verdicts(),
        }
        self._tasks = {what: asyncio.ensure_future(work) for what, work in works.items()}
        try:
            yield
        finally:
            self.follow({})
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), *self._leaving, return_exceptions=True)

    def follow(self, groups: Mapping[str, str]) -> None:
        """From now on these instances are watched, each with its control group (empty while it is down)."""
        for instance in [name for name in self._engines if name not in groups]:
            for task in self._engines.pop(instance).tasks.values():
                task.cancel()
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        for instance, group in groups.items():
            if instance not in self._engines:
                self._engines[instance] = Watched(instance, self._places, self)
            self._engines[instance].control_group = group

    def add(self, instance: str, sample: Sample) -> None:
        """What somebody else has learned of an engine; nothing for an instance that is not watched."""
        if (watched := self._engines.get(instance)) is not None:
            watched.add(sample)

    def samples(self, instance: str) -> list[Sample]:
        """All that is kept of an engine and of the host, ordered by time; none for an instance that is not watched.

        Of the lines of other units it gets those that name it.
        """
        return self.after(instance, (0, 0, 0))[0]

    def after(self, instance: str, place: tuple[int, int, int]) -> tuple[list[Sample], tuple[int, int, int]]:
        """What came since `place`, ordered by time, and the place to go on from; (0, 0, 0) is the beginning."""
        watched = self._engines.get(instance)
        if watched is None:
            return [], place
        own, host, lines = watched.ring.after(place[0]), self._host.after(place[1]), self._lines.after(place[2])
        unit = names.engine_unit(instance)
        said = [line for line in lines[0] if isinstance(line, Line) and concerns(line, unit, instance)]
        found = sorted([*own[0], *host[0], *said], key=lambda sample: sample.t)
        return found, (own[1], host[1], lines[1])

    @property
    def faults(self) -> dict[str, str]:
        """Sources that give nothing, and why; a machine without a GPU lacks nothing."""
        found = {"kernel log": self._log.fault, "GPUs": self.board.fault}
        reading = self.nvml
        settled = self._read_at is None or clock.monotonic() - self._read_at > UNSETTLED_S
        if reading is not None and reading.error and reading.code not in ABSENT and settled:
            found["NVML"] = reading.error
        tasks = dict(self._tasks)
        for engine in self._engines.values():
            tasks |= engine.tasks
        for what, task in tasks.items():
            if task.done() and not task.cancelled():
                found[what] = f"given up: {task.exception()!r}"
        return {what: fault for what, fault in found.items() if fault}

    async def repeat(self, look: Callable[[], Awaitable[None]]) -> None:
        """Look each interval, and at once when the last look took longer; until cancelled."""
        while True:
            began = clock.monotonic()
            await look()
            await asyncio.sleep(max(began + self._interval() - clock.monotonic(), 0.01))

    async def ask_gateway(self) -> None:
        """Look at the gateway's ledger now, whenever the next look is due; blocks up to its deadline."""
        watched = dict(self._engines)
        if not watched:
            return
        found = await looks.ledgers(self._places.under_run(names.GATEWAY_SOCKET), watched)
        for instance, engine in watched.items():
            engine.add(found[instance])

    async def _watch_the_loop(self) -> None:
        """A supervisor or a machine that was stopped has seen nothing meanwhile: that is evidence as well."""
        while True:
            interval, began = self._interval(), clock.monotonic()
            await asyncio.sleep(interval)
            now = clock.monotonic()
            self.late_s = max(now - began - interval, 0.0)
            if self.late_s > interval:
                self._host.add(Lag(t=now, late_s=round(self.late_s, 3)), now)

    async def _watch_verdicts(self) -> None:
        """An end is acted on when it is told, not at the next look's turn."""
        known: dict[str, int] = {}
        while True:
            for instance in self._engines:
                written = _written(names.engine_verdict(instance, self._places.run))
                if known.setdefault(instance, written) != written:
                    known[instance] = written
                    self._ended()
            await asyncio.sleep(VERDICT_S)

    def _read_nvml(self, reading: Nvml) -> None:
        now = clock.monotonic()
        self.nvml = reading
        if not reading.error:
            self._read_at = now
        self._host.add(reading, now)
        self.board.show(reading)

    def _read_line(self, line: Line) -> None:
        self._lines.add(line, clock.monotonic())


def _written(path: str) -> int:
    """When a file was written last; 0 where there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
