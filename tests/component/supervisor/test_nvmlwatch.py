"""The watch over the process that asks NVML: real processes, a driver that answers late or never."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from appliance import clock
from appliance.host import children
from appliance.quantity import UNKNOWN
from appliance.samples import Nvml
from appliance.supervisor.nvmlwatch import Limits, NvmlWatch, Process
from tests.support.fakenvml import TWO_GPUS, FakeNvml

LIMIT = 60.0
INTERVAL = 0.02
QUICK = Limits(answer=0.1, start=LIMIT, patience=0.3, death=5.0, backoff=0.05, backoff_max=0.2, absent=0.4)


class Watched:
    """Readings as they come, and the processes that the watch wanted dead."""

    def __init__(self, directory: Path, limits: Limits, *, immortal: bool = False) -> None:
        self.nvml = FakeNvml(directory)
        self.readings: list[Nvml] = []
        self.condemned: list[Process] = []
        self.immortal = immortal
        self.watch = NvmlWatch(
            self.readings.append,
            environment=self.nvml.environment,
            limits=limits,
            sign=str(directory / "sign"),
            kill=self._condemn,
        )

    def _condemn(self, process: Process) -> None:
        """A process that waits uninterruptibly in a driver takes no notice of SIGKILL."""
        self.condemned.append(process)
        if not self.immortal:
            children.kill(process)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Watched]:
        task = asyncio.ensure_future(self.watch.run(lambda: INTERVAL))
        try:
            yield self
        finally:
            self.immortal = False
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            for process in self.condemned:
                children.kill(process)
                await process.wait()

    async def until(self, what: str, condition: Callable[[Nvml], bool]) -> Nvml:
        """The next reading that meets the condition."""
        after, end = len(self.readings), clock.monotonic() + LIMIT
        while clock.monotonic() < end:
            for reading in self.readings[after:]:
                if condition(reading):
                    return reading
            await asyncio.sleep(INTERVAL)
        raise AssertionError(f"not within {LIMIT:g} s: {what}; last: {self.readings[-1:]}")


def whole(reading: Nvml) -> bool:
    return len(reading.gpus) == 2 and not reading.error


def late(reading: Nvml) -> bool:
    return reading.error.startswith("no answer from NVML") and reading.code is UNKNOWN


async def _one_process_reads_on(directory: Path) -> None:
    async with Watched(directory, replace(QUICK, patience=LIMIT)).running() as seen:
        first = await seen.until("a reading", whole)
        seen.nvml.say(TWO_GPUS + "gpu1.util=0\n")
        second = await seen.until("what it says now", lambda reading: whole(reading) and reading.gpus[1].util == 0.0)
        assert second.t > first.t
        assert seen.condemned == []
    assert [process.returncode for process in seen.condemned] == [-9]  # none is left behind


async def _slow_is_told_and_waited_for(directory: Path) -> None:
    async with Watched(directory, replace(QUICK, patience=LIMIT)).running() as seen:
        await seen.until("a reading", whole)
        seen.nvml.say(TWO_GPUS + "gpu0.power=~0.5 97000\n")
        await seen.until("no answer yet", late)
        await seen.until("the answer", lambda reading: whole(reading) and reading.gpus[0].power_w == 97.0)
        assert seen.condemned == []


async def _never_is_killed_and_asked_anew(directory: Path) -> None:
    async with Watched(directory, replace(QUICK, start=6.0)).running() as seen:
        await seen.until("a reading", whole)
        seen.nvml.say(TWO_GPUS + "gpu1.temp=...\n")
        await seen.until("no answer", late)
        seen.nvml.say(TWO_GPUS)
        await seen.until("a reading of another process", whole)
        assert {process.returncode for process in seen.condemned} == {-9}
        assert seen.readings[-1].stuck == 0


async def _what_cannot_be_killed_is_counted(directory: Path) -> None:
    limits = replace(QUICK, start=6.0, death=0.05, most_stuck=2)
    async with Watched(directory, limits).running() as seen:
        await seen.until("a reading", whole)
        seen.condemned.clear()
        seen.immortal = True
        seen.nvml.say(TWO_GPUS + "gpus=...\n")
        given_up = await seen.until("it gives up", lambda reading: "driver-unresponsive" in reading.error)
        assert (given_up.stuck, given_up.code, len(seen.condemned)) == (2, UNKNOWN, 2)
        assert "2 processes wait in the driver and cannot be killed" in given_up.error
        told = len(seen.readings)
        await seen.until("it goes on saying so", lambda reading: len(seen.readings) > told + 20)
        assert len(seen.condemned) == 2  # and starts no other
        seen.nvml.say(TWO_GPUS)
        seen.immortal = False
        seen.condemned[0].kill()
        recovered = await seen.until("a reading, since one is gone", whole)
        assert recovered.gpus[0].uuid == "GPU-aaaa"


async def _an_error_of_the_whole_is_retried(directory: Path) -> None:
    async with Watched(directory, QUICK).running() as seen:
        seen.nvml.say(TWO_GPUS + "init=!18\n")
        assert (await seen.until("a mismatch", lambda reading: reading.code == 18)).gpus == ()
        await seen.until("it is asked again", lambda reading: reading.code == 18)
        seen.nvml.say(TWO_GPUS)
        await seen.until("the driver fits again", whole)


async def _an_absent_driver_is_quiet(directory: Path) -> None:
    async with Watched(directory, QUICK).running() as seen:
        seen.nvml.say("init=!9\n")
        first = await seen.until("no driver", lambda reading: reading.code == 9)
        second = await seen.until("it is looked for again", lambda reading: reading.code == 9)
        assert second.t - first.t >= QUICK.absent
        assert len(seen.readings) <= 3  # and nothing is said in between
        seen.nvml.say(TWO_GPUS)
        await seen.until("the driver that was installed", whole)


async def _a_driver_that_shows_up_is_met_at_once(directory: Path) -> None:
    async with Watched(directory, replace(QUICK, absent=1000.0)).running() as seen:
        seen.nvml.say("init=!9\n")
        await seen.until("no driver", lambda reading: reading.code == 9)
        seen.nvml.say(TWO_GPUS)
        (directory / "sign").touch()
        await seen.until("the driver that was loaded", whole)


async def _a_killed_process_is_replaced(directory: Path) -> None:
    async with Watched(directory, replace(QUICK, patience=LIMIT, death=LIMIT)).running() as seen:
        await seen.until("a reading", whole)
        running = [process for process in psutil.Process().children() if process.status() != psutil.STATUS_ZOMBIE]
        (child,) = [process for process in running if "nvml-probe" in process.cmdline()]
        child.kill()
        await seen.until("its end", lambda reading: "ended with status -9" in reading.error)
        await seen.until("another process", whole)


@pytest.mark.parametrize(
    "story",
    [
        _one_process_reads_on,
        _slow_is_told_and_waited_for,
        _never_is_killed_and_asked_anew,
        _what_cannot_be_killed_is_counted,
        _an_error_of_the_whole_is_retried,
        _an_absent_driver_is_quiet,
        _a_driver_that_shows_up_is_met_at_once,
        _a_killed_process_is_replaced,
    ],
)
def test_watch(story: Callable[[Path], object], tmp_path: Path) -> None:
    asyncio.run(story(tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (["/nonexistent"], "cannot ask NVML: No such file or directory"),
        ([sys.executable, "-c", "print('hello')"], "ended with status"),
        ([sys.executable, "-c", "print('x' * 3000000)"], "gave no reading"),
    ],
)
def test_a_program_that_is_none(program: list[str], words: str) -> None:
    readings: list[Nvml] = []

    async def story() -> None:
        told = asyncio.Event()

        def tell(reading: Nvml) -> None:
            readings.append(reading)
            told.set()

        watch = NvmlWatch(tell, argv=program, limits=replace(QUICK, backoff=LIMIT, backoff_max=LIMIT))
        task = asyncio.ensure_future(watch.run(lambda: INTERVAL))
        await asyncio.wait_for(told.wait(), LIMIT)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert words in readings[0].error and readings[0].gpus == ()
