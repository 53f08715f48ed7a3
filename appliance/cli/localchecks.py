"""`doctor` on the appliance itself: one row of `CHECKS` is one question, one function, one or more findings.

A check that cannot look says UNKNOWN and why; none of them changes anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance import clock, names
from appliance.config import source
from appliance.config.model import Config
from appliance.config.source import Effective
from appliance.errors import ApplianceError, Unreachable
from appliance.host import keystore, places, systemd
from appliance.host.access import READ, account, allowed
from appliance.policy.finding import Finding, Verdict
from appliance.quantity import format_size

from . import gatewayclient
from .check import host_problems

ROOM_FAIL, ROOM_WARN = 256 << 20, 2 << 30  # bytes free: what logs and state need; what an engine's caches take


@dataclass(frozen=True, slots=True)
class Context:
    """What checks look at; `config` is the one in force, defaults where there is none."""

    path: str
    found: Effective
    config: Config


def findings(config_path: str) -> Iterator[Finding]:
    """All of them, one after the other."""
    found = source.effective(config_path)
    context = Context(config_path, found, found.config or Config())
    for check in CHECKS:
        yield from check(context)


def _configuration(context: Context) -> Iterator[Finding]:
    found = source.load(context.path)
    problems = [*found.problems, *(host_problems(found) if found.config is not None else ())]
    for problem in problems:
        verdict = Verdict.FAIL if problem.severity == "error" else Verdict.WARN
        where = f"{problem.file}:{problem.line or 1}: " if problem.file else ""
        yield Finding("config", verdict, f"{where}{problem.key}: {problem.message}", problem.remedy)
    if not problems:
        yield Finding("config", Verdict.OK, f"{context.path}: good")


def _gateway(context: Context) -> Iterator[Finding]:
    try:
        status = gatewayclient.read_status(context.path)
    except Unreachable as error:
        yield Finding("gateway", Verdict.FAIL, error.message, error.hint)
        return
    state = str(status.get("state"))
    if state == "serving":
        yield Finding("gateway", Verdict.OK, "answers; an engine serves")
    else:
        yield Finding("gateway", Verdict.WARN, f"answers, and is {state}", "llm-appliance status")


def _keys(context: Context) -> Iterator[Finding]:
    auth = context.config.auth
    if not auth.required:
        yield Finding("keys", Verdict.WARN, "auth.required = false: whoever reaches the gateway may use it")
        return
    try:
        now = clock.wall()
        good = sum(key.state(now) == "good" for key in keystore.read(auth.keys_file).keys)
    except ApplianceError as error:
        may_not = os.path.exists(auth.keys_file) and not os.access(auth.keys_file, os.R_OK)
        yield Finding("keys", Verdict.UNKNOWN if may_not else Verdict.FAIL, error.message, error.hint)
        return
    if not good:
        yield Finding("keys", Verdict.FAIL, f"{auth.keys_file} holds no key that is good",
                      "llm-appliance keys create NAME")  # fmt: skip
        return
    who = account(names.GATEWAY_USER)
    if who is not None and not allowed(os.stat(auth.keys_file), who, READ):
        yield Finding("keys", Verdict.FAIL, f"{names.GATEWAY_USER} cannot read {auth.keys_file}",
                      f"chgrp {names.GATEWAY_USER} {auth.keys_file} && chmod 640 {auth.keys_file}")  # fmt: skip
        return
    yield Finding("keys", Verdict.OK, f"{good} good in {auth.keys_file}")


def _room(context: Context) -> Iterator[Finding]:
    state = places.from_environment().state
    wanted = [
        state,
        context.config.models.directory,
        *([context.config.audit.directory] * context.config.audit.enabled),
    ]
    seen: set[int] = set()
    for directory in wanted:
        there = next((one for one in (Path(directory), *Path(directory).parents) if one.exists()), Path("/"))
        device = os.stat(there).st_dev
        if device in seen:
            continue
        seen.add(device)
        disk = os.statvfs(there)
        free = disk.f_bavail * disk.f_frsize
        evidence = f"{format_size(free)} free for {directory}"
        if free >= ROOM_WARN:
            yield Finding("disk", Verdict.OK, evidence)
        else:
            verdict = Verdict.FAIL if free < ROOM_FAIL else Verdict.WARN
            yield Finding("disk", verdict, evidence, "llm-appliance runtime list; llm-appliance models list")


def _units(context: Context) -> Iterator[Finding]:
    if not systemd.is_running():
        yield Finding("units", Verdict.UNKNOWN, "systemd does not run here")
        return
    try:
        units = systemd.ask(systemd.show(["llm-*"]))
    except ApplianceError as error:
        yield Finding("units", Verdict.UNKNOWN, error.message, error.hint)
        return
    failed = [unit for unit in units.values() if unit.active == "failed"]
    for unit in failed:
        yield Finding("units", Verdict.FAIL, f"{unit.name} has failed ({unit.result})", f"journalctl -x -u {unit.name}")
    if not failed:
        active = sum(unit.active == "active" for unit in units.values())
        yield Finding("units", Verdict.OK, f"{active} active, none failed")


CHECKS: tuple[Callable[[Context], Iterator[Finding]], ...] = (_configuration, _gateway, _keys, _room, _units)
