"""`llm-appliance check [FILE]`: every problem of the configuration, and of the host as far as the file names it.

Exit status: 0 good, warnings included; 2 invalid or missing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace

from appliance import names
from appliance.config import source
from appliance.config.model import Config
from appliance.config.places import Path
from appliance.config.source import Effective
from appliance.errors import EXIT_OK, EXIT_USAGE, Problem
from appliance.host import files, places
from appliance.host.access import READ, WRITE, account, allowed
from appliance.units.render import engine_digest

from . import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`[FILE]`."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="the file to check (default: the configuration)")


def run(args: argparse.Namespace) -> int:
    """Print every problem and a last line that sums up."""
    file = args.file or args.config
    found = source.load(file)
    problems = [*found.problems, *(host_problems(found) if found.config else ())]
    set_aside = source.rejection(file, found)
    if set_aside is not None:
        problems.append(replace(set_aside, severity="warning"))
    errors = sum(problem.severity == "error" for problem in problems)
    if args.json:
        output.print_json(
            {
                "valid": not errors,
                "file": file,
                "files": found.files,
                "text_digest": found.text_digest,
                "problems": [as_json(problem) for problem in problems],
            }
        )
    else:
        for problem in problems:
            word = output.paint(problem.severity, "red" if problem.severity == "error" else "yellow")
            print(f"{word}: {problem}")
        print(_sum(file, found.config, errors, len(problems) - errors))
    return EXIT_USAGE if errors else EXIT_OK


def as_json(problem: Problem) -> dict[str, object]:
    """A problem with all its fields."""
    return {
        "severity": problem.severity,
        "file": problem.file,
        "line": problem.line,
        "key": problem.key,
        "message": problem.message,
        "remedy": problem.remedy,
    }


def _sum(file: str, config: Config | None, errors: int, warnings: int) -> str:
    def count(number: int, word: str) -> str:
        return f"{number} {word}{'' if number == 1 else 's'}"

    tail = f", {count(warnings, 'warning')}" if warnings else ""
    if config is None:
        return f"{file}: invalid, {count(errors, 'error')}{tail}; what runs is not touched"
    return f"{file}: good, {count(len(config.engines), 'engine')}{tail}"


# What each file of the operator's is, and the user that must be able to read it.
_READERS: tuple[tuple[str, str], ...] = (
    ("gateway.tls_certificate", names.GATEWAY_USER),
    ("gateway.tls_key", names.GATEWAY_USER),
    ("models.token_file", names.RUNTIME_USER),
    ("network.ca_file", names.RUNTIME_USER),
)


def host_problems(found: Effective) -> Iterator[Problem]:
    """Warnings about files that the configuration names: missing, or not readable by the user that needs them."""
    config = found.config
    assert config is not None
    for key, user in _READERS:
        table, _, field = key.partition(".")
        yield from _file(found, (table, field), getattr(getattr(config, table), field), user)
    yield from _ledger(found)
    for directory in config.runtime.wheelhouses:
        yield from _file(found, ("runtime", "wheelhouse"), directory, names.RUNTIME_USER)
    for index, engine in enumerate(config.engines):
        yield from _file(
            found, ("engine", index, "remote_api_key_file"), engine.remote_api_key_file, names.GATEWAY_USER
        )
        if engine.model.startswith("/") and not engine.remote:
            yield from _file(found, ("engine", index, "model"), engine.model, names.ENGINE_USER)
        yield from _changes(found, index)


def _changes(found: Effective, index: int) -> Iterator[Problem]:
    """What the supervisor changes about the starts of an engine with this configuration; root alone may see it."""
    assert found.config is not None
    engine = found.config.engines[index]
    for instance in () if engine.remote else engine.instances:
        rung = files.read_json(f"{places.from_environment().under_state(names.RUNGS)}/{instance}.json") or {}
        if rung.get("told") and rung.get("digest") == engine_digest(found.config, instance):
            message = f"{instance} does not run as it is written; it is started with: {rung['told']}"
            file, line = found.place(("engine", index, "vllm"))
            yield Problem("engine.vllm", message, "write the change here to keep it", file, line, "warning")


def _ledger(found: Effective) -> Iterator[Problem]:
    """Another directory than the package's, which the gateway cannot make by itself."""
    assert found.config is not None
    name, user, who = found.config.audit.directory, names.GATEWAY_USER, account(names.GATEWAY_USER)
    if not found.config.audit.enabled or name == names.AUDIT:
        return
    file, line = found.place(("audit", "directory"))
    try:
        status = os.stat(name)
    except FileNotFoundError:
        remedy = f"install -d -o {user} -g {user} -m 0750 {name}"
        yield Problem("audit.directory", f'there is no "{name}"', remedy, file, line, "warning")
    except OSError:
        return  # this user may not look; root's check will tell
    else:
        if who is not None and not allowed(status, who, WRITE):
            problem = f'{user} cannot write to "{name}"'
            yield Problem("audit.directory", problem, f"chown {user} {name}", file, line, "warning")


def _file(found: Effective, path: Path, name: str, user: str) -> Iterator[Problem]:
    if not name:
        return
    key = ".".join(part for part in path if isinstance(part, str))
    file, line = found.place(path)
    who = account(user)
    try:
        status = os.stat(name)
    except FileNotFoundError:
        yield Problem(key, f'there is no "{name}"', "create it or correct the path", file, line, "warning")
    except OSError:
        return  # this user may not look; root's check will tell
    else:
        if who is not None and not allowed(status, who, READ):
            remedy = f"chgrp {user} {name} && chmod g+r {name}"
            yield Problem(key, f'{user} cannot read "{name}"', remedy, file, line, "warning")
