"""A ladder from its trial to its last step, on an event loop of its own; Ctrl-C ends it with what there is by then."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal

import uvloop

from appliance.config.model import Config, Engine
from appliance.errors import Failed, UsageError
from appliance.policy import loadladder
from appliance.policy.admission import limit_of
from appliance.policy.flagnumbers import batch_limit
from appliance.policy.loadfigures import Step, figures, percentile

from . import output
from .benchclient import Endpoint
from .benchload import Load, Measured
from .benchoptions import Options
from .benchpage import Progress
from .benchprompts import Prompts, Shape
from .benchtrial import Trial, model_of, trial

TICK = 0.3
SPARE_FILES = 64


class Bench:
    """One run. `steps` holds what was measured, `stopped` why the ladder ended, `engine` whose it was, if ours."""

    def __init__(self, endpoint: Endpoint, options: Options, config: Config | None, *, tune: bool) -> None:
        self.endpoint, self.options, self._config, self._tune = endpoint, options, config, tune
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.stopped = ""
        self.engine: Engine | None = None
        self._trial: Trial | None = None
        self._running: Measured | None = None

    def measure(self) -> bool:
        """Climb; whether Ctrl-C ended it. Raises ApplianceError where there can be no ladder."""
        loop = uvloop.new_event_loop()
        task = loop.create_task(self._climb())
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            if self._running is not None and self._running.answered:
                self._keep(self._running, cut=True)
            if not self.steps:
                raise KeyboardInterrupt from None
            return True
        finally:
            loop.run_until_complete(asyncio.sleep(0))  # connections that were aborted end
            loop.close()
        return False

    def title(self) -> str:
        """What was measured, on a line."""
        shape, tokens = self._shape(), self._trial.input_tokens if self._trial else None
        shared = f", {self.options.shared} of them shared" if self.options.shared else ""
        place = self.endpoint.place
        return (
            f"{shape.model} at {place.host}:{place.port}{self.endpoint.path}: "
            f"{tokens or f'about {shape.words}'} tokens in{shared}, {self.options.output_tokens} out, "
            f"seed {self.options.seed}"
        )

    def head(self) -> dict[str, object]:
        """What was measured, for a program."""
        place, shape = self.endpoint.place, self._shape()
        return {
            "url": f"{'https' if place.tls else 'http'}://{place.host}:{place.port}{place.prefix}{self.endpoint.path}",
            "model": shape.model,
            "input_tokens": self._trial.input_tokens if self._trial else None,
            "output_tokens": self.options.output_tokens,
            "shared_prefix": self.options.shared,
            "ignore_eos": shape.ignore_eos,
            "seed": self.options.seed,
            "stopped": self.stopped,
        }

    def _shape(self) -> Shape:
        assert self._trial is not None
        return self._trial.shape

    async def _climb(self) -> None:
        options = self.options
        model = await model_of(self.endpoint, options.model)
        if self._config is not None:
            self.engine = next((one for one in self._config.engines if model in one.served), None)
        if self._tune and (self.engine is None or self.engine.remote):
            raise UsageError(f"{model} is served by no engine of this machine, so there are no settings to derive")
        prompts = Prompts(options.seed)
        shape = Shape(model, self.endpoint.path.endswith("/chat/completions"), options.output_tokens,
                      options.input_tokens)  # fmt: skip
        self._trial = await trial(self.endpoint, prompts, shape, options.input_tokens, options.shared)
        self.notes += self._trial.notes
        load = Load(self.endpoint, prompts, self._trial.shape)
        limit = min(self._limit(), _files())
        try:
            concurrency = self._next(limit)
            while concurrency is not None:
                await self._step(load, concurrency)
                concurrency = self._next(limit)
        finally:
            load.close()

    def _next(self, limit: int) -> int | None:
        given = self.options.concurrency
        if not given:
            concurrency, self.stopped = loadladder.following(self.steps, limit)
            return concurrency
        if self.steps and not self.steps[-1].completed:
            self.stopped = f"no request was answered with {self.steps[-1].concurrency} at once"
            return None
        return given[len(self.steps)] if len(self.steps) < len(given) else None

    def _limit(self) -> int:
        """Requests at once that the engine works on; more would wait."""
        if self._config is None or self.engine is None:
            return loadladder.HIGHEST
        configured = self._config.gateway.admission.max_in_flight
        return limit_of(configured, batch_limit(self.engine.vllm)) * len(self.engine.instances)

    async def _step(self, load: Load, concurrency: int) -> None:
        if concurrency > _files():
            raise Failed(f"{concurrency} connections need more open files than are allowed", hint="ulimit -n 65536")
        extent = self.options.extent(concurrency)
        progress = Progress(extent.requests, extent.seconds)
        ticker = asyncio.ensure_future(self._tell(progress))
        try:
            measured = await load.step(concurrency, extent, self._began)
        finally:
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker
            progress.clear()
        self._keep(measured)
        progress.ended(self.steps[-1])

    def _began(self, measured: Measured) -> None:
        self._running = measured

    def _keep(self, measured: Measured, *, cut: bool = False) -> None:
        self._running = None
        self.steps.append(
            figures(measured.requests, measured.concurrency, measured.seconds, self.options.target,
                    busy=measured.busy,
                    late=percentile(sorted(measured.lags), 99) if measured.lags else 0.0, cut=cut)
        )  # fmt: skip
        if measured.sentence and self.steps[-1].failures:
            self.notes.append(f"{measured.concurrency} at once, one that failed: {output.clean(measured.sentence)}")

    async def _tell(self, progress: Progress) -> None:
        while True:
            await asyncio.sleep(TICK)
            if self._running is not None:
                progress.show(self._running)


def _files() -> int:
    """Connections that this process may hold, its limit raised as far as it may be."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard - SPARE_FILES if hard != resource.RLIM_INFINITY else loadladder.HIGHEST * 64
