"""What is run: through each proxy in turn, or on gateways of our own that are made for it.

A scenario leaves one row for each repetition, proxy and size. Its name is what the command line takes.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.support.provisions import ROOT
from tests.support.waiting import wait_until

from . import proctree
from .engine import Engine
from .gateway import Gateway, gateway, learn, write_keys
from .load import Load, Report, load
from .proxies import Proxy, scratch

DIRECT, NGINX, ROUTER, GATEWAY = "direct", "nginx", "vllm-router", "gateway"
OTHERS = (NGINX, ROUTER, GATEWAY)
ALL = (DIRECT, *OTHERS)
USUAL_KEYS = 100
SPINNERS = 5
AFTER = 0.4  # seconds in which a proxy does what is left to do, as ledger lines, before its time is read
GONE = 0.5  # seconds after which clients leave in the middle of a prefill
PREFILL = 6.0  # seconds that this prefill takes
UNIT = ROOT / "systemd/llm-gateway.service"


@dataclass
class Row:
    """One scenario, once, through one proxy. `error` says why there is nothing, or that the proxy is not here."""

    rep: int
    proxy: str
    scenario: str
    size: int = 0
    cpu: float = 0.0  # seconds of all its processes
    work: int = 0  # tokens or requests that they were spent on
    resident: int = 0  # bytes, the most that was seen
    load: Report = field(default_factory=dict)
    beside: Report = field(default_factory=dict)  # of clients that ran meanwhile
    engine: dict[str, int] = field(default_factory=dict)
    here: bool = True
    error: str = ""

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Scenario:
    """`pace` of the engine, `load` options, and the proxies that it is run through."""

    name: str
    words: str
    pace: Mapping[str, Any]
    load: Mapping[str, int]
    through: tuple[str, ...] = OTHERS
    streams: int = 64  # that run at once

    def run(self, proxy: Proxy, engine: Engine, row: Row) -> None:
        """Fill the row."""
        engine.pace(**self.pace)
        engine.reset()
        pids = proxy.family()
        before = proctree.spent(pids)
        seen = [proctree.resident(pids)]
        with Load(proxy.port, proxy.keys, **self.load) as running:
            row.load = running.wait(120, lambda: seen.append(proctree.resident(pids)))
        wait_until(lambda: engine.stats()["active"] == 0, 30, "the engine works for nobody", 0.05)
        time.sleep(AFTER)
        row.cpu = proctree.spent(pids).since(before)
        row.resident = max(seen)
        row.engine = engine.stats()


class Starved(Scenario):
    """New clients come while many streams run and all processors are wanted by others.

    The one scenario in which it matters which process goes first: the gateway has the priority that its unit gives it.
    """

    def run(self, proxy: Proxy, engine: Engine, row: Row) -> None:
        engine.pace(**self.pace)
        engine.reset()
        many = {"clients": self.streams, "tokens": 400, "ramp_ms": 1000}
        with proctree.niced(proxy.family(), unit_nice()), Load(proxy.port, proxy.keys, **many) as running:
            wait_until(lambda: engine.stats()["active"] > 0.95 * self.streams, 20, f"{self.streams} streams run", 0.05)
            with _spinning(), Load(proxy.port, proxy.keys, **self.load) as coming:
                row.load = coming.wait(60)
            row.beside = running.wait(60)
        row.engine = engine.stats()


def unit_nice() -> int:
    """The niceness of the gateway's unit."""
    found = re.search(r"^Nice=(-?\d+)$", UNIT.read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


@contextmanager
def _spinning() -> Iterator[None]:
    """Processes that want a processor each, all the time; they end by themselves if nobody ends them."""
    with ExitStack() as stack:
        for _ in range(SPINNERS):
            spinner = subprocess.Popen(["timeout", "60", "sh", "-c", "while :; do :; done"])
            stack.callback(spinner.wait)
            stack.callback(spinner.terminate)
        yield


USUAL: tuple[Scenario, ...] = (
    Scenario("many", "1,000 streams x 20 tokens/s", {"first_ms": 100, "gap_ms": 50},
             {"clients": 1000, "tokens": 100, "ramp_ms": 1000}, ALL, 1000),
    Scenario("streams", "64 streams x 50 tokens/s", {"first_ms": 100, "gap_ms": 20},
             {"clients": 64, "tokens": 200, "ramp_ms": 500}, ALL),
    Scenario("step", "64 streams in step, as an engine's batch", {"first_ms": 100, "gap_ms": 20, "in_step": True},
             {"clients": 64, "tokens": 200, "ramp_ms": 500}),
    Scenario("json", "JSON requests, 64 at once", {}, {"clients": 64, "requests": 3000, "stream": 0, "tokens": 16}),
    Scenario("short", "streams of one token, 64 at once", {}, {"clients": 64, "requests": 3000, "tokens": 1}),
    Scenario("prompt", "the same with prompts of 32 kB", {},
             {"clients": 64, "requests": 2000, "tokens": 1, "prompt": 32 << 10}),
    Scenario("large", "the same with prompts of 1 MB", {},
             {"clients": 64, "requests": 256, "tokens": 1, "prompt": 1 << 20}),
    Scenario("leave", "200 clients leave after 5 tokens", {"first_ms": 100, "gap_ms": 20},
             {"clients": 200, "tokens": 500, "ramp_ms": 500, "leave_after": 5}, OTHERS, 200),
    Scenario("prefill", "20 clients leave in a prefill of 6 s", {"first_ms": PREFILL * 1000, "gap_ms": 20},
             {"clients": 20, "tokens": 20, "leave_ms": int(GONE * 1000)}),
    Starved("starved", "new clients beside 5 spinning processes and 1,000 streams", {"first_ms": 100, "gap_ms": 50},
            {"clients": 400, "rate": 40, "seconds": 5, "tokens": 1, "fresh": 1}, (GATEWAY,), 1000),
)  # fmt: skip


@dataclass(frozen=True)
class Own:
    """A scenario on gateways that are made for it, one row for each of `sizes`."""

    name: str
    words: str
    sizes: tuple[int, ...]

    def rows(self, rep: int) -> Iterator[Row]:
        """Run it. A row that cannot be had says why."""
        raise NotImplementedError

    def row(self, rep: int, size: int) -> Row:
        return Row(rep, GATEWAY, self.name, size)


class Idle(Own):
    """Connections that are kept alive after a request each."""

    def rows(self, rep: int) -> Iterator[Row]:
        for size in self.sizes:
            row = self.row(rep, size)
            with _fresh() as (engine, proxy):
                engine.pace()
                with Load(
                    proxy.port, proxy.keys, clients=size, stream=0, tokens=1, ramp_ms=size * 6 // 5, hold=1
                ) as held:
                    row.load = held.report()
                    row.resident = proctree.resident(proxy.family())
                row.engine = engine.stats()
            yield row


class Streams(Own):
    """More and more streams that give as many tokens a second in all; looked at for a while in which all run.

    The limit of requests is a fixed one here: thousands begin, whatever the machine makes of their first tokens.
    """

    RATE = 20_000
    WHILE = 3.0

    def rows(self, rep: int) -> Iterator[Row]:
        with _fresh(limit=2 * max(self.sizes)) as (engine, proxy):
            warm(proxy, engine)
            for size in self.sizes:
                row = self.row(rep, size)
                self._run(proxy, engine, row)
                yield row

    def _run(self, proxy: Proxy, engine: Engine, row: Row) -> None:
        gap, ramp = 1000 * row.size / self.RATE, max(1000, row.size * 3 // 2)
        tokens = int((ramp + 2000 + self.WHILE * 1000) / gap)
        engine.pace(100, gap)
        engine.reset()
        with Load(proxy.port, proxy.keys, clients=row.size, tokens=tokens, ramp_ms=ramp) as running:
            wait_until(lambda: engine.stats()["active"] == row.size, 60, f"{row.size} streams run", 0.05)
            pids = proxy.family()
            before, made = proctree.spent(pids), engine.stats()["tokens"]
            time.sleep(self.WHILE)
            row.cpu = proctree.spent(pids).since(before)
            row.work = engine.stats()["tokens"] - made
            row.resident = proctree.resident(pids)
            row.load = running.wait(120)


class Keys(Own):
    """The same requests by more and more keys."""

    def rows(self, rep: int) -> Iterator[Row]:
        for size in self.sizes:
            with _fresh(keys=size) as (engine, proxy):
                yield _requests(self.row(rep, size), proxy, engine)


class Engines(Own):
    """The same requests to more and more engines."""

    def rows(self, rep: int) -> Iterator[Row]:
        for size in self.sizes:
            with _fresh(engines=size) as (engine, proxy):
                yield _requests(self.row(rep, size), proxy, engine)


def _requests(row: Row, proxy: Gateway, engine: Engine) -> Row:
    make_room(proxy, engine, 64)
    warm(proxy, engine)
    requests = {"clients": 64, "requests": 4000, "stream": 0, "tokens": 16}
    Scenario(row.scenario, "", {}, requests).run(proxy, engine, row)
    row.work = row.load["requests"]
    return row


@contextmanager
def _fresh(keys: int = USUAL_KEYS, engines: int = 1, limit: int | None = None) -> Iterator[tuple[Engine, Gateway]]:
    with ExitStack() as stack:
        engine, directory = stack.enter_context(Engine(engines)), stack.enter_context(scratch())
        secrets = write_keys(directory, keys)
        yield engine, stack.enter_context(gateway(engine.ports, directory, secrets, limit))


OWN: tuple[Own, ...] = (
    Idle("idle", "10,000 idle connections", (10_000,)),
    Streams("growth-streams", "100 to 4,000 streams", (100, 1000, 2000, 4000)),
    Keys("growth-keys", "10 to 10,000 keys", (10, 2500, 5000, 10_000)),
    Engines("growth-engines", "1 to 64 engines", (1, 16, 32, 64)),
)
NAMES = {**{one.name: one.words for one in USUAL}, **{one.name: one.words for one in OWN}}


def warm(proxy: Proxy, engine: Engine) -> None:
    """Before the first scenario."""
    engine.pace(1, 1)
    load(proxy.port, proxy.keys, clients=64, requests=128, tokens=20)
    engine.pace()
    load(proxy.port, proxy.keys, clients=64, requests=500, stream=0)


def make_room(proxy: Proxy, engine: Engine, streams: int) -> None:
    """Before a scenario: so many streams can run at once, and some more."""
    if isinstance(proxy, Gateway):
        learn(proxy, engine, streams + streams // 20)
