"""`llm-appliance status`: what serves, what does not and why, and what to do next; 80 columns.

Exit status: 0 all serve or are starting, 1 something failed or is held, 3 the gateway is not reachable; then what the
files of the other processes say is shown. `--json` is the object of the gateway's `GET /status`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from appliance import __version__, clock, names
from appliance.config import source
from appliance.errors import EXIT_FOUND, EXIT_OK, EXIT_UNREACHABLE, Unreachable
from appliance.host import files, places
from appliance.quantity import format_duration
from appliance.wire import gpustate

from . import gatewayclient, gpulines, output

WATCH_S = 2.0
COLOURS = {"serving": "green", "held": "red", "failed": "red", "restarting": "yellow", "stopped": "yellow"}
BAD = frozenset({"held", "failed", "stopped"})
_WIDE = 80
_DAY_S = 86400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`[--watch]`."""
    parser.add_argument("--watch", action="store_true", help=f"show it anew every {WATCH_S:.0f} s until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    """Show the status once, or until interrupted."""
    while True:
        status = _once(args)
        if not args.watch:
            return status
        time.sleep(WATCH_S)


def _once(args: argparse.Namespace) -> int:
    try:
        value, fault = gatewayclient.read_status(args.config), None
    except Unreachable as error:
        value, fault = from_files(args.config), error
    if args.watch and args.json:
        print(json.dumps(value, ensure_ascii=False), flush=True)
    elif args.json:
        output.print_json(value)
    else:
        if args.watch and output.is_terminal():
            print("\x1b[H\x1b[2J", end="")
        for line in (*lines(value, clock.wall()), *_unapplied(args.config, value)):
            print(line, flush=True)
    if fault is not None and not args.watch:
        raise fault
    return EXIT_UNREACHABLE if fault is not None else judged(value)


def judged(value: Mapping[str, Any]) -> int:
    """1 when something failed, is held or was stopped; a start that is under way is good."""
    states = {replica.get("state") for _, replica in _replicas(value)}
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
                    **{
                        key: entry.get(key)
                        for key in (
                            "state",
                            "since",
                            "cause",
                            "reason",
                            "next",
                            "changed",
                            "restarts",
                            "load_s",
                            "incident",
                        )
                    },
                    **{key: state.get(key) for key in ("phase", "message", "pid", "ready", "digest")},
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
        "driver": gpustate.driver(gpus),
        "gpus": gpustate.gpus(gpus),
        "engines": engines,
        "incidents": fleet.get("incidents"),
    }


def lines(value: Mapping[str, Any], now: float) -> Iterator[str]:
    """The status for people."""
    columns = output.width() or _WIDE
    yield output.cut(_head(value), columns)
    gateway = value.get("gateway")
    if isinstance(gateway, Mapping):
        yield output.cut(_gateway(gateway), columns)
        yield from _quarantine(gateway)
    runtime = value.get("runtime")
    if isinstance(runtime, Mapping) and runtime.get("phase") not in (None, "complete"):
        percent = runtime.get("percent")
        share = f" ({percent:.0f} %)" if isinstance(percent, (int, float)) else ""
        yield output.cut(f"runtime   {runtime['phase']}: {output.clean(runtime.get('message'))}{share}", columns)
    yield ""
    yield from _table(value, now, columns)
    yield from _reasons(value, columns)
    yield from _incidents(value, now, columns)
    yield from gpulines.lines(value, columns)
    yield from _advice(value)


def _head(value: Mapping[str, Any]) -> str:
    versions = value.get("versions") or {}
    vllm = f", vLLM {versions['vllm']} ({versions.get('device') or '?'})" if versions.get("vllm") else ""
    word = str(value.get("state"))
    colour = {"serving": "green", "failed": "red", "invalid": "red", "unreachable": "red"}.get(word, "yellow")
    return f"llm-appliance {versions.get('appliance')}{vllm}: {output.paint(word, colour)}"


def _gateway(gateway: Mapping[str, Any]) -> str:
    addresses = gateway.get("listen")
    listen = (
        ", ".join(map(str, addresses)) if isinstance(addresses, Sequence) and not isinstance(addresses, str) else ""
    )
    rate = gateway.get("tokens_per_second")
    return f"gateway   {listen or addresses}: {gateway.get('running')} running, {gateway.get('queued')} queued" + (
        f", {rate:.0f} tok/s" if isinstance(rate, (int, float)) and rate else ""
    )


def _quarantine(gateway: Mapping[str, Any]) -> Iterator[str]:
    """Requests that are refused, and how that is lifted."""
    refused = (gateway.get("quarantine") or {}).get("refused")
    if refused:
        requests = "1 request is" if refused == 1 else f"{refused} requests are"
        yield f"{requests} refused for up to an hour, in flight at two crashes of an engine:"
        yield "    journalctl LLM_EVENT=request-quarantined; systemctl restart llm-gateway lifts it"


def _replicas(value: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for engine in value.get("engines") or ():
        for replica in engine.get("replicas") or ():
            yield engine, replica


def _table(value: Mapping[str, Any], now: float, columns: int) -> Iterator[str]:
    rows = []
    for engine, replica in _replicas(value):
        state = str(replica.get("state") or "unknown")
        since, limit = replica.get("since"), replica.get("limit")
        rows.append(
            [
                replica.get("name"),
                output.paint(state, COLOURS.get(state, "blue")),
                format_duration(max(now - since, 0.0)) if isinstance(since, (int, float)) else "-",
                f"{replica.get('in_flight')}/{limit}" if limit is not None else "-",
                int(replica["restarts"]) if isinstance(replica.get("restarts"), (int, float)) else None,
                ", ".join(map(str, engine.get("served_names") or ())),
            ]
        )
    made = output.lines(rows, ("ENGINE", "STATE", "SINCE", "RUNNING", "RESTARTS", "SERVES"), columns)
    yield from made if rows else ["no engine is configured"]


def _reasons(value: Mapping[str, Any], columns: int) -> Iterator[str]:
    """Under the table: what each engine that does not serve is about, and what comes next."""
    for _, replica in _replicas(value):
        state = replica.get("state")
        cause, next_ = replica.get("cause"), replica.get("next")
        text = replica.get("reason") or replica.get("message") or ""
        if state == "serving":
            text, cause = "", ""
        if state == "starting" and isinstance(replica.get("load_s"), (int, float)):
            text = f"{text}; the last start took {format_duration(replica['load_s'])}".lstrip("; ")
        if changed := replica.get("changed"):
            yield ""
            yield from _wrapped(f"{replica.get('name')}: ", f"starts with a change: {output.clean(changed)}", columns)
        if not text and not next_:
            continue
        body = ": ".join(output.clean(part) for part in (cause if cause != state else "", text) if part)
        yield ""
        yield from _wrapped(f"{replica.get('name')}: ", body or output.clean(next_), columns)
        if body and next_:
            yield output.cut(f"    next: {output.clean(next_)}", columns if output.is_terminal() else None)


def _incidents(value: Mapping[str, Any], now: float, columns: int) -> Iterator[str]:
    """The last incidents of the last day."""
    told = [one for one in value.get("incidents") or () if isinstance(one, Mapping) and _age(one, now) < _DAY_S]
    if told:
        yield ""
    for one in told[:3]:
        times = f" ({one['count']} times)" if isinstance(one.get("count"), int) and one["count"] > 1 else ""
        text = f"{one.get('id')}{times}, {format_duration(_age(one, now))} ago"
        yield output.cut(f"incident {output.clean(text)}", columns)
    if told:
        yield f"    llm-appliance incidents {output.clean(told[0].get('id'))}"


def _age(one: Mapping[str, Any], now: float) -> float:
    at = one.get("at")
    return max(now - at, 0.0) if isinstance(at, (int, float)) else 0.0


def _wrapped(head: str, text: str, columns: int) -> Iterator[str]:
    line = head
    for word in text.split():
        if output.visible(line) + len(word) > columns and line.strip():
            yield line.rstrip()
            line = "    "
        line += word + " "
    yield line.rstrip()


def _unapplied(path: str, value: Mapping[str, Any]) -> Iterator[str]:
    """The file on disk as it is now, where the gateway has read an older or no one."""
    config = value.get("config") or {}
    if config.get("valid") is not True:
        return
    found = source.load(path)
    if found.config is None:
        yield ""
        yield "the configuration file is invalid; what runs goes on with the one it has:"
        yield "    llm-appliance check"
    elif config.get("digest") and config["digest"] != found.text_digest:
        yield ""
        yield "the configuration file was changed and not applied:"
        yield "    llm-appliance apply"


def _advice(value: Mapping[str, Any]) -> Iterator[str]:
    config, keys = value.get("config") or {}, value.get("keys") or {}
    if config.get("valid") is False:
        in_force = {"last-good": "the last good one is in force", "none": "nothing is in force"}
        yield ""
        then = in_force.get(str(config.get("origin")), "it is not in force")
        yield f"the configuration file cannot be used, {then}:"
        yield "    llm-appliance check"
    ledger = (value.get("gateway") or {}).get("ledger") or {}
    if ledger.get("problem"):
        yield ""
        yield output.clean(ledger["problem"])
        yield f"    {ledger.get('waiting')} lines wait, {ledger.get('dropped')} are lost; requests are served"
    if keys.get("problem"):
        yield ""
        yield f"API keys: {output.clean(keys['problem'])}"
    if keys.get("hint"):
        yield ""
        yield "no API key exists yet; to create one:"
        yield f"    {output.clean(keys['hint'])}"
