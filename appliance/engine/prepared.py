"""A start as configuration, runtime, rung and GPUs have it now: read anew for each run of vLLM."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

from appliance import names
from appliance.config import source
from appliance.config.model import Engine
from appliance.config.placement import own_gpus
from appliance.host import places
from appliance.host.journal import WARNING
from appliance.policy import compilecaches
from appliance.policy.ladder import Place
from appliance.units.render import engine_digest
from appliance.wire import vllmmodels
from appliance.wire.vllmargs import LaunchPlan, launch_plan

from . import collectives, rung
from .device import build_of, device_of, models_of, present_gpus
from .report import Start


class Refused(Exception):
    """There is nothing to start, and trying again would not help; the message says why."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A start before anything is started."""

    engine: Engine
    plan: LaunchPlan
    start: Start
    changed: rung.Rung
    compiled: str  # the name of its directory of compile caches


def prepared(given: argparse.Namespace) -> Prepared:
    """The start that the launcher's arguments name. Raises Refused."""
    effective = source.effective(given.config)
    config = effective.config
    if config is None:
        raise Refused(f"{given.config} is not valid: {_first(effective)} (llm-appliance check)")
    if effective.origin != "file":
        print(f"<{WARNING}>{given.config} is not valid; going by the last applied configuration", flush=True)
    engine = config.engine_of(given.name)
    if engine is None:
        raise Refused(f"the configuration has no engine {given.name}")
    if engine.remote:
        raise Refused(f"engine {given.name} is remote: there is nothing to run here")
    runtime = os.path.realpath(given.runtime)  # an engine keeps its runtime when `current` is switched below it
    device = device_of(runtime, config.runtime.device)
    cores = sorted(os.sched_getaffinity(0))
    gpus = own_gpus(config, given.name, present_gpus()) if device == "cuda" else ()
    place = Place(engine_digest(config, given.name), os.path.basename(runtime), gpus)
    changed = rung.read(given.name, places.from_environment(), given.run, place)
    compiled = compilecaches.key(place.runtime, models_of(gpus), vllmmodels.own(engine), build_of(runtime))
    plan = launch_plan(
        config,
        given.name,
        device=device,
        cpus=len(cores),
        cores=cores,
        gpus=gpus,
        runtime=runtime,
        run=given.run,
        cache=given.cache,
        compiled=compiled,
        change=changed.change,
    )
    if len(gpus) > 1 and (address := collectives.own_address()):
        plan.env.setdefault(collectives.VARIABLE, address)
    shown = {flag: value for flag, value in plan.flags.items() if flag in rung.SHOWN}
    expected = None
    if device == "cuda":
        from .planned import planned  # an eighth of a second of modules that no other start needs

        gpu_state = places.Places(run=given.run).under_run(names.GPU_STATE)
        expected = planned(vllmmodels.own(engine), plan.argv[2], plan.flags, gpus, gpu_state)
    return Prepared(engine, plan, Start(place, device == "cuda", shown, changed.told, expected), changed, compiled)


class Following:
    """What would follow a run in the same unit: `obstacle` looks, and `start` is what it found."""

    def __init__(self, given: argparse.Namespace, before: Prepared) -> None:
        self._given, self._before = given, before
        self.start = before

    def obstacle(self) -> str:
        """Why only a start of the whole unit gives the next run what it needs; empty where this unit does as well.

        The unit's own settings, its set-up and the modules that are imported already are those of the run before.
        """
        try:
            self.start = prepared(self._given)
        except Refused as refusal:
            return str(refusal)
        if self.start.start.place != self._before.start.place:
            return "its configuration, its runtime or its GPUs have changed"
        if self.start.changed != self._before.changed:
            return "what is changed about its starts is not what it was"
        if address := self._before.plan.env.get(collectives.VARIABLE):
            self.start.plan.env[collectives.VARIABLE] = address  # the environment of what stands by
        return ""


def _first(effective: source.Effective) -> str:
    errors = [problem for problem in effective.problems if problem.severity == "error"]
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    return f"{errors[0]}{more}" if errors else "no reason is known"
