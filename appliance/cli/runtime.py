"""`llm-appliance runtime list|install|use|rollback|prune`: the vLLM environments of this machine.

`install` builds this release's vLLM beside the active one; `use` and `rollback` choose, and the choice is kept until
another is made. Running engines go on with what they were started with until they are restarted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
from collections.abc import Iterator

from appliance import names
from appliance.errors import EXIT_OK, Failed, UsageError
from appliance.host import files, places, runtimes
from appliance.host.runtimes import Installed
from appliance.quantity import format_size

from . import output
from .runtimejob import run_job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own verbs."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="what is installed, what is active")
    actions.add_parser("install", help="build this release's vLLM, beside an active one of another version")
    use = actions.add_parser("use", help="make an installed runtime the active one")
    use.add_argument("name", metavar="VERSION-DEVICE")
    actions.add_parser("rollback", help="go back to the runtime that was active before")
    prune = actions.add_parser("prune", help="remove runtimes that are neither active nor next for rollback")
    prune.add_argument("--all", action="store_true", help="also the one that rollback would go back to")


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    root = places.from_environment().under_state(names.RUNTIMES)
    if args.action == "list":
        _list(root, args.json)
    elif args.action == "install":
        _install(root)
    elif args.action == "use":
        _use(root, args.name)
    elif args.action == "rollback":
        before = runtimes.linked(root, runtimes.PREVIOUS)
        if before is None:
            raise Failed("there is no runtime to go back to", hint="llm-appliance runtime list")
        _use(root, before)
    else:
        _prune(root, keep_previous=not args.all)
    return EXIT_OK


def _list(root: str, as_json: bool) -> None:
    found = runtimes.installed(root)
    previous, chosen = runtimes.linked(root, runtimes.PREVIOUS), runtimes.chosen(root)
    if as_json:
        output.print_json([_public(one, previous, chosen) for one in found])
        return
    rows = [
        (one.name, one.version, one.device, one.python or "-", _size(one), _standing(one, previous, chosen))
        for one in found
    ]
    output.table(rows, ("RUNTIME", "VLLM", "DEVICE", "PYTHON", "SIZE", "STATE"))
    if not rows:
        output.note("no runtime is installed yet; llm-appliance runtime install")


def _size(one: Installed) -> str:
    return format_size(one.size if one.size is not None else runtimes.size(one.path))


def _standing(one: Installed, previous: str | None, chosen: str | None) -> str:
    if not one.complete:
        return "unfinished"
    words = ["active"] if one.current else ["previous"] if one.name == previous else []
    words += ["chosen"] if one.name == chosen else []
    words += [] if one.usable else ["its Python is gone"]
    return ", ".join(words) or "installed"


def _public(one: Installed, previous: str | None, chosen: str | None) -> dict[str, object]:
    return {
        "name": one.name,
        "path": one.path,
        "version": one.version,
        "device": one.device,
        "python": one.python or None,
        "size": one.size,
        "complete": one.complete,
        "usable": one.usable,
        "current": one.current,
        "previous": one.name == previous,
        "chosen": one.name == chosen,
    }


def _install(root: str) -> None:
    """Ask the builder for this release's vLLM; without the request it keeps to an active one of another version."""
    if os.path.isdir(root):
        files.replace_json(f"{root}/{runtimes.REQUEST}", {})
    output.note(run_job(output.note))
    _hint(root)


def _hint(root: str) -> None:
    idle = [one for one in runtimes.installed(root) if one.complete and one.usable and not one.current]
    for one in idle:
        output.note(f"{one.name} is installed and not active; llm-appliance runtime use {one.name}")


def _use(root: str, name: str) -> None:
    one = next((one for one in runtimes.installed(root) if one.name == name), None)
    if one is None:
        known = ", ".join(one.name for one in runtimes.installed(root)) or "none"
        raise UsageError(f"there is no runtime {name} (installed: {known})", hint="llm-appliance runtime list")
    if not (one.complete and one.usable):
        raise Failed(f"{name} cannot be used: {_standing(one, None, None)}", hint="llm-appliance runtime install")
    with _alone(root):
        runtimes.choose(root, name)
    output.note(f"{name} is the active runtime now; engines take it when they are restarted (llm-appliance restart)")


def _prune(root: str, *, keep_previous: bool) -> None:
    previous, chosen = runtimes.linked(root, runtimes.PREVIOUS), runtimes.chosen(root)
    freed = 0
    with _alone(root):
        for one in runtimes.installed(root):
            if one.current or one.name == chosen or (keep_previous and one.name == previous and one.complete):
                continue
            held = runtimes.users(one.path)
            if held:
                output.note(f"{one.name} stays: processes still run from it ({', '.join(map(str, held[:5]))})")
                continue
            freed += runtimes.size(one.path)
            runtimes.remove(root, one.name)
            output.note(f"{one.name} is removed")
        freed += runtimes.size(f"{root}/wheels")
        shutil.rmtree(f"{root}/wheels", ignore_errors=True)
    output.note(f"{format_size(freed)} are free again" if freed else "there was nothing to remove")


@contextlib.contextmanager
def _alone(root: str) -> Iterator[None]:
    """Nobody builds meanwhile."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(runtimes.exclusive(root))
        except BlockingIOError as error:
            raise Failed(
                "a runtime is being built just now", hint=f"wait for it: systemctl status {names.RUNTIME_UNIT}"
            ) from error
        except FileNotFoundError as error:
            raise Failed("no runtime is installed yet", hint="llm-appliance runtime install") from error
        yield
