"""`llm-appliance engine NAME`: one engine of the configuration, in the foreground of its unit."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Literal

from appliance import names
from appliance.config import fleet, source
from appliance.config.model import Config
from appliance.config.placement import own_gpus
from appliance.host import notify, places
from appliance.host.device import Device
from appliance.host.journal import ERR, WARNING
from appliance.policy import compilecaches
from appliance.policy.ladder import Place
from appliance.units.render import engine_digest
from appliance.wire import vllmmodels
from appliance.wire.vllmargs import LaunchPlan, launch_plan, shutdown_s

from . import caches, collectives, readahead, rung, weights
from .device import device_of, models_of, present_gpus
from .launcher import Launcher, Limits, environment
from .report import Identity, Report, Start
from .standby import READY_S, Standby
from .verdict import Ending, verdict_of

STOP_MARGIN_S = 15.0  # from the end of vLLM's own grace to SIGKILL: its workers' 9 s and the driver's


def main(arguments: list[str], limits: Limits | None = None) -> int:
    """Run the engine until it ends; the exit statuses are `names.LAUNCHER_*`. `limits` replace the configured ones."""
    where = places.from_environment()
    parser = argparse.ArgumentParser(prog="llm-appliance engine", description="Run one engine in the foreground.")
    parser.add_argument("name", help="the instance, e.g. chat or chat-2")
    parser.add_argument("--config", default=names.CONFIG_FILE, metavar="FILE")
    parser.add_argument("--run", default=where.run, metavar="DIRECTORY", help="live state and sockets")
    parser.add_argument("--cache", default=names.CACHE, metavar="DIRECTORY", help="what vLLM compiles and keeps")
    parser.add_argument("--runtime", default=where.under_state(names.CURRENT_RUNTIME), metavar="DIRECTORY",
                        help="the vLLM environment")  # fmt: skip
    given = parser.parse_args(arguments)

    effective = source.effective(given.config)
    config = effective.config
    if config is None:
        return _refuse(f"{given.config} is not valid: {_first(effective)} (llm-appliance check)")
    if effective.origin != "file":
        print(f"<{WARNING}>{given.config} is not valid; going by the last applied configuration", flush=True)
    engine = config.engine_of(given.name)
    if engine is None:
        return _refuse(f"the configuration has no engine {given.name}")
    if engine.remote:
        return _refuse(f"engine {given.name} is remote: there is nothing to run here")
    return _launch(config, given, limits)


def _launch(config: Config, given: argparse.Namespace, limits: Limits | None) -> int:
    engine = config.engine_of(given.name)
    assert engine is not None
    runtime = os.path.realpath(given.runtime)  # an engine keeps its runtime when `current` is switched below it
    device = device_of(runtime, config.runtime.device)
    cores = sorted(os.sched_getaffinity(0))
    gpus = own_gpus(config, given.name, present_gpus()) if device == "cuda" else ()
    digest = engine_digest(config, given.name)
    place = Place(digest, os.path.basename(runtime), gpus)
    changed = rung.read(given.name, places.from_environment(), given.run, place)
    compiled = compilecaches.key(place.runtime, models_of(gpus), vllmmodels.own(engine))
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
    os.makedirs(names.engine_directory(given.name, given.run), mode=0o750, exist_ok=True)
    served = (*engine.served, *fleet.lora_names(engine))
    start = os.urandom(8).hex()
    shown = {flag: value for flag, value in plan.flags.items() if flag in rung.SHOWN}
    expected = None
    if device == "cuda":
        from .planned import planned  # an eighth of a second of modules that no other start needs

        gpu_state = places.Places(run=given.run).under_run(names.GPU_STATE)
        expected = planned(vllmmodels.own(engine), plan.argv[2], plan.flags, gpus, gpu_state)
    told = Start(place, device == "cuda", shown, changed.told, expected)
    report = Report(Identity(given.name, start, engine.model, served, given.run), told)
    if changed.told:
        report.log(WARNING, f"started with a change: {changed.told}", event="engine-changed")
    caches.settle(f"{given.cache}/{given.name}", compiled, changed.caches, report.log)
    fault = weights.fault_of(vllmmodels.own(engine), plan.argv[2])
    if fault is not None:
        verdict = verdict_of(Ending(None, False, False), (), fault)
        report.ended(verdict, None, requested=False, served=False)
        return verdict.exit_status
    if limits is None:
        limits = Limits(start=engine.startup_timeout, stop=shutdown_s(engine) + STOP_MARGIN_S)
    readahead.begin(plan.argv[2], report.log)
    standby = _standby(engine.standby, plan, device, limits)
    try:
        return Launcher(plan, report, limits, standby).run()
    finally:
        if standby is not None:
            standby.close()


def _standby(wanted: bool | Literal["auto"], plan: LaunchPlan, device: Device, limits: Limits) -> Standby | None:
    """The process that vLLM's are forked from, its imports begun; None where each is to import for itself."""
    if not (device == "cpu" if wanted == "auto" else wanted) or plan.flags.get("numa_bind"):  # binds by the executable
        return None
    return Standby.begin(plan.argv[0], environment(plan), device, min(READY_S, limits.start / 2))


def _refuse(message: str) -> int:
    """It will not get better by itself: say so, and end with the status that keeps systemd from trying again."""
    notify.status(message)
    print(f"<{ERR}>{message}" if not sys.stderr.isatty() else message, file=sys.stderr, flush=True)
    return names.LAUNCHER_CONFIG


def _first(effective: source.Effective) -> str:
    errors = [problem for problem in effective.problems if problem.severity == "error"]
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    return f"{errors[0]}{more}" if errors else "no reason is known"
