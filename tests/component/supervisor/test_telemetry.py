"""Telemetry of real processes and sockets: an engine, a gateway's ledger, a driver, a journal."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance import clock, names
from appliance.host import files
from appliance.host.places import Places
from appliance.samples import Cgroup, Health, Lag, Ledger, Metrics, Milestone, Nvml, Sample
from appliance.supervisor.nvmlwatch import NvmlWatch
from appliance.supervisor.telemetry import VERDICT_S, Telemetry
from tests.support.fakenvml import TWO_GPUS, FakeNvml
from tests.support.gatewayprocess import FakeEngine

LIMIT = 60.0
INTERVAL = 0.1
GROUP = "/system.slice/llm-engine@chat.service"  # that does not exist


class Stage:
    """An engine `chat` that serves, and telemetry that has not begun."""

    def __init__(self, directory: Path) -> None:
        self.run = directory / "run"
        (self.run / "engines/chat").mkdir(parents=True)
        (self.run / "gateway").mkdir()
        self.places = Places(run=str(self.run), state=str(directory / "state"))
        self.engine = FakeEngine(uds=self.run / "engines/chat/vllm.sock")
        self.nvml = FakeNvml(directory)
        self.interval = INTERVAL
        self.ends: list[float] = []
        self.telemetry = Telemetry(
            self.places,
            lambda: self.interval,
            ended=lambda: self.ends.append(clock.monotonic()),
            nvml=lambda tell: NvmlWatch(tell, environment=self.nvml.environment),
        )
        self.says("serving")

    def says(self, phase: str) -> None:
        files.replace_json(names.engine_state("chat", str(self.run)), {"start": "s", "phase": phase})

    async def gateway(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A gateway that has one call in flight."""
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"engines": {"chat": {"inflight": 1, "oldest_silent_s": 0.5}}}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    async def until(self, what: str, condition: Callable[[list[Sample]], Any]) -> Any:
        """The first true value of a condition of what is kept of `chat`."""
        end = clock.monotonic() + LIMIT
        while not (value := condition(self.telemetry.samples("chat"))):
            assert clock.monotonic() < end, f"not within {LIMIT:g} s: {what}: {self.telemetry.samples('chat')[-5:]}"
            await asyncio.sleep(0.02)
        return value


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.engine.close()


def of(samples: list[Sample], kind: type) -> list[Any]:
    return [sample for sample in samples if isinstance(sample, kind)]


def test_all_sources_of_an_engine_that_serves(stage: Stage) -> None:
    async def story() -> None:
        server = await asyncio.start_unix_server(stage.gateway, names.GATEWAY_SOCKET.replace(names.RUN, str(stage.run)))
        async with stage.telemetry.running():
            assert stage.telemetry.samples("chat") == []
            stage.telemetry.follow({"chat": GROUP})
            kinds = {Metrics, Health, Nvml, Ledger, Cgroup, Milestone}
            samples = await stage.until("each source", lambda seen: kinds <= {type(each) for each in seen} and seen)
        server.close()
        assert [each.t for each in samples] == sorted(each.t for each in samples)
        assert of(samples, Milestone) == [Milestone(t=of(samples, Milestone)[0].t, phase="serving", start="s")]
        metrics, ledger, nvml = (of(samples, kind)[-1] for kind in (Metrics, Ledger, Nvml))
        assert metrics.http == 200 and metrics.values["vllm:kv_cache_usage_perc"] == 0.125
        assert (ledger.inflight, ledger.oldest_silent_s) == (1, 0.5)
        assert [gpu.uuid for gpu in nvml.gpus] == ["GPU-aaaa", "GPU-bbbb"]
        assert of(samples, Cgroup)[0].error == "cannot read memory.events: No such file or directory"
        shown = files.read_json(names.GPU_STATE.replace(names.RUN, str(stage.run)))
        assert shown is not None and shown["driver"] == "580.95.05"

    asyncio.run(story())


def test_a_source_that_fails_says_so_and_holds_up_no_other(stage: Stage) -> None:
    async def story() -> None:
        stage.nvml.say(TWO_GPUS + "init=!18\n")
        async with stage.telemetry.running():
            stage.telemetry.follow({"chat": GROUP})
            await stage.until("a mismatch", lambda seen: [each for each in of(seen, Nvml) if each.code == 18])
            await stage.until(
                "no gateway", lambda seen: [each for each in of(seen, Ledger) if "no such file" in each.error]
            )
            assert stage.telemetry.faults["NVML"] == "RM has detected an NVML/RM version mismatch."
            before = len(of(stage.telemetry.samples("chat"), Metrics))
            await stage.until("metrics go on", lambda seen: len(of(seen, Metrics)) > before + 2)
            stage.engine.down()
            (stage.run / "engines/chat/vllm.sock").touch()
            await stage.until("nobody listens", lambda seen: of(seen, Metrics)[-1].error == "connection refused")

    asyncio.run(story())


def test_an_end_is_news_when_its_launcher_tells_it(stage: Stage) -> None:
    verdict = names.engine_verdict("chat", str(stage.run))

    async def story() -> None:
        stage.interval = 1000.0
        files.replace_json(verdict, {"start": "before"})
        async with stage.telemetry.running():
            stage.telemetry.follow({"chat": GROUP})
            await stage.until("it is watched", lambda seen: of(seen, Milestone))
            await asyncio.sleep(2 * VERDICT_S)  # nothing is to come of an older end: there is no condition to wait for
            assert stage.ends == []
            files.replace_json(verdict, {"start": "s"})
            await stage.until("its end", lambda seen: stage.ends)

    asyncio.run(story())


def test_an_engine_that_is_down_is_not_asked(stage: Stage) -> None:
    async def story() -> None:
        async with stage.telemetry.running():
            stage.telemetry.follow({"chat": ""})
            stage.says("exited")
            await stage.until("its end", lambda seen: [m for m in of(seen, Milestone) if m.phase == "exited"])
            seen = stage.telemetry.samples("chat")
            assert not of(seen, Metrics) and not of(seen, Health) and not of(seen, Cgroup)
            stage.telemetry.follow({"chat": GROUP})
            await stage.until("it is asked", lambda seen: of(seen, Metrics) and of(seen, Health))
            stage.telemetry.follow({})
            assert stage.telemetry.samples("chat") == []

    asyncio.run(story())


def test_a_reader_gets_each_sample_once(stage: Stage) -> None:
    async def story() -> list[Sample]:
        place, got = (0, 0, 0), []
        async with stage.telemetry.running():
            stage.telemetry.follow({"chat": GROUP})
            while len(got) < 30:
                await asyncio.sleep(0.05)
                new, place = stage.telemetry.after("chat", place)
                got += new
            assert stage.telemetry.after("chat", place)[1] == place
        return got

    got = asyncio.run(asyncio.wait_for(story(), LIMIT))
    assert len(got) == len({id(sample) for sample in got})


def test_a_loop_that_was_held_up_says_so(stage: Stage) -> None:
    async def story() -> None:
        async with stage.telemetry.running():
            stage.telemetry.follow({"chat": ""})
            await stage.until("it runs", lambda seen: of(seen, Ledger))
            time.sleep(1.0)  # noqa: ASYNC251 (the fault under test)
            long = 1.0 - 2 * INTERVAL  # a loaded machine has lags of its own
            lags = await stage.until("the lag", lambda seen: [lag for lag in of(seen, Lag) if lag.late_s > long])
            assert lags[0].late_s < LIMIT and clock.monotonic() - lags[0].t < LIMIT

    asyncio.run(story())


def test_nothing_is_left_behind(stage: Stage) -> None:
    def children() -> set[str]:
        found = set()
        for task in Path("/proc/self/task").iterdir():
            found |= set((task / "children").read_text().split())
        return found

    before = children()

    async def story() -> int:
        async with stage.telemetry.running():
            stage.telemetry.follow({"chat": GROUP})
            await stage.until("a reading", lambda seen: of(seen, Nvml))
            assert children() > before
        return len(asyncio.all_tasks())

    assert asyncio.run(story()) == 1
    assert {pid for pid in children() - before if os.path.exists(f"/proc/{pid}/exe")} == set()
