"""`llm-appliance engine NAME`: one engine of the configuration, in the foreground of its unit."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable

from appliance import names
from appliance.config import fleet
from appliance.host import notify, places
from appliance.host.device import Device
from appliance.host.journal import ERR, WARNING
from appliance.wire import vllmmodels
from appliance.wire.vllmargs import shutdown_s

from . import caches, readahead, weights
from .launcher import Launcher, Limits, environment
from .prepared import Following, Prepared, Refused, prepared
from .report import Identity, Report
from .standby import READY_S, Standby
from .verdict import Ending, verdict_of
from .wake import Wake

StandbyOf = Callable[[Prepared, Limits], "Standby | None"]
STOP_MARGIN_S = 15.0  # from the end of vLLM's own grace to SIGKILL: its workers' 9 s and the driver's


def standby_of(start: Prepared, limits: Limits) -> Standby | None:
    """The process that vLLM's are forked from, its imports begun; None where each is to import for itself."""
    device: Device = "cuda" if start.start.cuda else "cpu"
    wanted = device == "cpu" if start.engine.standby == "auto" else start.engine.standby
    if not wanted or start.plan.flags.get("numa_bind"):  # binds by the executable
        return None
    return Standby.begin(start.plan.argv[0], environment(start.plan), device, min(READY_S, limits.start / 2))


def main(arguments: list[str], limits: Limits | None = None, standby: StandbyOf = standby_of) -> int:
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
    try:
        start = prepared(given)
    except Refused as refusal:
        return _refuse(str(refusal))
    with Wake.listening() as wake, contextlib.ExitStack() as stack:
        below: Standby | None = None
        again = 0
        while True:  # run after run, for as long as the supervisor wants the next one in this unit
            report = _report(start, given, again)
            report.begun()
            if start.changed.told:
                report.log(WARNING, f"started with a change: {start.changed.told}", event="engine-changed")
            caches.settle(f"{given.cache}/{given.name}", start.compiled, start.changed.caches, report.log)
            fault = weights.fault_of(vllmmodels.own(start.engine), start.plan.argv[2], start.plan.flags)
            if fault is not None:
                verdict = verdict_of(Ending(None, False, False), (), fault)
                report.ended(verdict, None, requested=False, served=False)
                return verdict.exit_status
            own = limits or Limits(start.engine.startup_timeout, stop=shutdown_s(start.engine) + STOP_MARGIN_S)
            if again == 0 and (below := standby(start, own)) is not None:
                stack.callback(below.close)
            readahead.begin(start.plan.argv[2], report.log)
            following = Following(given, start)
            launcher = Launcher(start.plan, report, own, wake, below, following.obstacle)
            status = launcher.run()
            if not launcher.again:
                return status
            start, again = following.start, again + 1


def _report(start: Prepared, given: argparse.Namespace, again: int) -> Report:
    os.makedirs(names.engine_directory(given.name, given.run), mode=0o750, exist_ok=True)
    unit = os.environ.get("INVOCATION_ID", "")
    served = fleet.served_names(start.engine)
    identity = Identity(given.name, os.urandom(8).hex(), start.engine.model, served, given.run, unit, again)
    return Report(identity, start.start)


def _refuse(message: str) -> int:
    """It will not get better by itself: say so, and end with the status that keeps systemd from trying again."""
    notify.status(message)
    print(f"<{ERR}>{message}" if not sys.stderr.isatty() else message, file=sys.stderr, flush=True)
    return names.LAUNCHER_CONFIG
