"""A step of a ladder: so many clients, each sending its next request as soon as it has its answer.

Before a step is measured each client sends one short request, which opens its connection and fills the engine's batch.
Bodies are made before the clock starts, where their number is known. A client that was refused waits a little before it
asks again: a refusal costs nothing, and would be repeated thousands of times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field

from appliance import clock
from appliance.policy.loadfigures import Request

from .benchclient import Client, Endpoint
from .benchprompts import Prompts, Shape

WARM_TOKENS = 8
TICK = 0.005
PAUSE = 0.25  # seconds after a failure
HOPELESS = 16  # failures without one answer, for each client: the rest of the step would be the same
PREPARED = 4096  # bodies made beforehand at most


@dataclass(frozen=True, slots=True)
class Extent:
    """When a step ends: after so many requests, or when none is begun any more; None: not for that reason."""

    requests: int | None
    seconds: float | None


@dataclass(slots=True)
class Measured:
    """What a step has so far; `seconds` and `busy` are set at its end."""

    concurrency: int
    requests: list[Request] = field(default_factory=list)
    began: float = 0.0
    seconds: float = 0.0
    busy: float = 0.0
    lags: list[float] = field(default_factory=list)  # how late the loop came to its tasks
    sentence: str = ""  # what the other side last said about a failure

    @property
    def answered(self) -> int:
        """Whole answers."""
        return sum(not request.failure for request in self.requests)


class Load:
    """The clients of one endpoint, kept over the steps."""

    def __init__(self, endpoint: Endpoint, prompts: Prompts, shape: Shape) -> None:
        self._endpoint, self._prompts, self._shape = endpoint, prompts, shape
        self._clients: list[Client] = []

    async def step(self, concurrency: int, extent: Extent, started: Callable[[Measured], None]) -> Measured:
        """Measure with `concurrency` clients; `started` gets what fills while it runs, also when this is cancelled."""
        self._clients += [Client(self._endpoint) for _ in range(concurrency - len(self._clients))]
        clients = self._clients[:concurrency]
        await self._gather(self._warm(client) for client in clients)
        measured = Measured(concurrency)
        bodies = self._bodies(concurrency, extent)
        measured.began, processor = clock.monotonic(), time.process_time()
        started(measured)
        end = None if extent.seconds is None else measured.began + extent.seconds
        watch = asyncio.ensure_future(self._watch(measured.lags))
        gc.disable()  # a collection among a million gaps would be seen as a gap
        try:
            await self._gather(self._work(client, bodies, end, measured) for client in clients)
        finally:
            gc.enable()
            watch.cancel()
            measured.seconds = clock.monotonic() - measured.began
            measured.busy = (time.process_time() - processor) / max(measured.seconds, 1e-9)
        return measured

    def close(self) -> None:
        """End all connections, and with them what the engine still does for them."""
        for client in self._clients:
            client.close()

    async def _warm(self, client: Client) -> None:
        await client.ask(self._prompts.body(self._shape, output_tokens=min(WARM_TOKENS, self._shape.output_tokens)))

    @staticmethod
    async def _watch(lags: list[float]) -> None:
        """Note how late this loop wakes: events that wait meanwhile are timed as late."""
        while True:
            due = clock.monotonic() + TICK
            await asyncio.sleep(TICK)
            lags.append(max(clock.monotonic() - due, 0.0))

    async def _work(self, client: Client, bodies: Iterator[bytes], end: float | None, measured: Measured) -> None:
        for body in bodies:
            answer = await client.ask(body)
            request = answer.as_request()
            measured.requests.append(request)
            if request.failure:
                measured.sentence = answer.message or measured.sentence
                if not measured.answered and len(measured.requests) >= HOPELESS * measured.concurrency:
                    return
                await asyncio.sleep(PAUSE)
            if end is not None and clock.monotonic() >= end:
                return

    def _bodies(self, concurrency: int, extent: Extent) -> Iterator[bytes]:
        count = extent.requests
        ready = [self._prompts.body(self._shape) for _ in range(min(count or concurrency * 2, PREPARED))]

        def supply() -> Iterator[bytes]:
            made = 0
            while count is None or made < count:
                made += 1
                yield ready.pop() if ready else self._prompts.body(self._shape)

        return supply()

    @staticmethod
    async def _gather(works: Iterable[Coroutine[object, object, None]]) -> None:
        """All of them to their end; none is left running when one fails or this is cancelled."""
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)
