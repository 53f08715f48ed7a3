"""`doctor` on this machine: the configuration and the keys are read, the rest are facts for `policy/checkup`.

A check that cannot look says UNKNOWN and why; none of them changes anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from appliance import clock, names
from appliance.config import source
from appliance.config.model import Config
from appliance.errors import ApplianceError
from appliance.host import keystore
from appliance.host.access import READ, account, allowed
from appliance.hostfacts import HostFacts
from appliance.policy.checkup import deep
from appliance.policy.checkup.table import APPLIANCE, CHECKS, GPUS, MACHINE
from appliance.policy.finding import Finding, Verdict

from . import hostlooks
from .check import host_problems

GROUPS = {
    "config": APPLIANCE, "keys": APPLIANCE, **{check.name: check.group for check in CHECKS},
    deep.LINKS: GPUS, deep.DISK: MACHINE,
}  # fmt: skip


def look(config_path: str) -> tuple[HostFacts, Config]:
    """The machine, and the configuration in force (defaults where there is none)."""
    config = source.effective(config_path).config or Config()
    return hostlooks.look(config_path, config), config


def findings(config_path: str, facts: HostFacts, config: Config) -> Iterator[Finding]:
    """All of them, in the order of the table; `GROUPS` has the heading of each."""
    yield from _configuration(config_path)
    yield from _keys(config)
    for check in CHECKS:
        yield from check.findings(facts, config)


def _configuration(config_path: str) -> Iterator[Finding]:
    found = source.load(config_path)
    problems = [*found.problems, *(host_problems(found) if found.config is not None else ())]
    for problem in problems:
        verdict = Verdict.FAIL if problem.severity == "error" else Verdict.WARN
        yield Finding("config", verdict, str(replace(problem, remedy="")), problem.remedy)
    if not problems:
        yield Finding("config", Verdict.OK, f"{config_path}: good")


def _keys(config: Config) -> Iterator[Finding]:
    auth = config.auth
    if not auth.required:
        yield Finding(
            "keys", Verdict.WARN, "auth.required = false: whoever reaches the gateway may use it",
            "remove it, and llm-appliance keys create NAME",
        )  # fmt: skip
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
