"""`llm-appliance status`: what serves, what does not and why, and what to do next; 80 columns.

Exit status: 0 all serve or are starting, 1 something failed or is held, 3 the gateway is not reachable; then what the
files of the other processes say is shown. `--json` is the object of the gateway's `GET /status`. `--watch` prints one
page below the other, with `--json` an object a line; a gateway that goes away in the meantime does not end it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from appliance import __version__, clock, names
from appliance.config import source
from appliance.errors import EXIT_FOUND, EXIT_OK, Unreachable
from appliance.host import files, places
from appliance.wire import gpustate

from . import gatewayclient, output, statuspage
from .statuspage import replicas

WATCH_S = 2.0
SHORTEST_S, LONGEST_S = 0.1, 86400.0
BAD = frozenset({"held", "failed", "stopped"})
_OF_FLEET = ("state", "since", "cause", "reason", "next", "changed", "restarts", "load_s", "incident")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`[--watch [SECONDS]]`."""
    text = f"show it anew every so many seconds, {WATCH_S:.0f} if not given, until Ctrl-C"
    parser.add_argument("--watch", nargs="?", type=seconds, const=WATCH_S, metavar="SECONDS", help=text)


def seconds(text: str) -> float:
    """A pause between two looks. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not SHORTEST_S <= value <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, {SHORTEST_S:g} to {LONGEST_S:g}")
    return value


def run(args: argparse.Namespace) -> int:
    """Show the status once, or until interrupted."""
    if args.watch is not None:
        return watch(args.config, args.watch, as_json=args.json)
    value, fault = look(args.config)
    if args.json:
        output.print_json(value)
    else:
        for line in page(args.config, value, output.width()):
            print(line)
    if fault is not None:
        raise fault
    return judged(value)


def watch(config: str, pause: float, *, as_json: bool) -> int:
    """One look below the other until Ctrl-C."""
    try:
        while True:
            value, fault = look(config)
            if as_json:
                print(json.dumps(value, ensure_ascii=False), flush=True)
            else:
                told = [] if fault is None else [fault.message]
                stamp = output.paint(f"--- {output.when(clock.wall())}", "grey")
                print("\n".join([stamp, *told, *page(config, value, output.width()), ""]), flush=True)
            time.sleep(pause)
    except KeyboardInterrupt:
        return EXIT_OK


def look(config: str) -> tuple[dict[str, Any], Unreachable | None]:
    """The status now, and why the gateway did not tell it, where it did not."""
    try:
        return gatewayclient.read_status(config), None
    except Unreachable as error:
        return from_files(config), error


def page(config: str, value: Mapping[str, Any], columns: int | None) -> Iterator[str]:
    """What people are shown: the page, and the file on disk as it is now."""
    yield from statuspage.lines(value, clock.wall(), columns or statuspage.WIDE)
    yield from unapplied(config, value)


def judged(value: Mapping[str, Any]) -> int:
    """1 when something failed, is held or was stopped; a start that is under way is good."""
    states = {replica.get("state") for _, replica in replicas(value)}
    phase = (value.get("runtime") or {}).get("phase")
    return EXIT_FOUND if states & BAD or phase == "failed" or value.get("state") == "invalid" else EXIT_OK


def from_files(config_path: str) -> dict[str, Any]:
    """What the supervisor, the launchers and the runtime last wrote, in the same shape, with state "unreachable"."""
    where = places.from_environment()
    found = source.effective(config_path)
    fleet = files.read_json(where.under_run(names.FLEET_STATE)) or {}
    told: Any = fleet.get("engines")
    runtime = files.read_json(where.under_run(names.RUNTIME_STATE))
    gpus = files.read_json(where.under_run(names.GPU_STATE)) or {}
    engines = []
    for engine in found.config.engines if found.config is not None else ():
        replicas = []
        for instance in engine.instances:
            entry = told.get(instance, {}) if isinstance(told, dict) else {}
            state = files.read_json(names.engine_state(instance, where.run)) or {}
            replicas.append(
                {
                    "name": instance,
                    **{key: entry.get(key) for key in _OF_FLEET},
                    **{
                        key: state.get(key)
                        for key in ("phase", "message", "pid", "ready", "digest", "planned", "measured", "phases")
                    },
                }
            )
        engines.append(
            {"name": engine.name, "model": engine.model, "served_names": list(engine.served), "replicas": replicas}
        )
    return {
        "v": 1,
        "at": clock.wall(),
        "state": "unreachable",
        "versions": {"appliance": __version__},
        "config": {
            "file": config_path,
            "origin": found.origin,
            "valid": not found.errors,
            "problems": [{"message": str(problem), "severity": problem.severity} for problem in found.problems],
        },
        "runtime": None if runtime is None else {key: runtime.get(key) for key in ("phase", "message", "percent")},
        "supervisor": {key: fleet.get(key) for key in ("at", "mode", "version")} if fleet else None,
        "driver": gpustate.driver(gpus),
        "gpus": gpustate.gpus(gpus),
        "engines": engines,
        "incidents": fleet.get("incidents"),
        "drift": fleet.get("drift"),
    }


def unapplied(path: str, value: Mapping[str, Any]) -> Iterator[str]:
    """The file on disk as it is now, where the gateway has read another one and the supervisor has not told it."""
    config = value.get("config") or {}
    told = {one.get("kind") for one in value.get("drift") or () if isinstance(one, Mapping)}
    if config.get("valid") is not True or told & {"settings", "invalid", "rolled-back"}:
        return
    found = source.load(path)
    if found.config is None:
        yield ""
        yield "the configuration file is invalid; what runs goes on with the one it has:"
        yield f"    {names.check_command(path)}"
    elif config.get("digest") and config["digest"] != found.text_digest:
        yield ""
        yield "the configuration file was changed and not applied:"
        yield "    llm-appliance apply"
