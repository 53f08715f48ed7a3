"""`llm-appliance incidents [ID] [--json]`: what happened to engines, with the evidence that was kept.

Without an ID the list, the newest first; with one its story: what was judged, why, what was done, the files, the
remedy. The start of an ID will do where only one begins so. Reading takes root or the group llm-appliance.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from appliance import clock, names
from appliance.errors import EXIT_OK, Unreachable, UsageError
from appliance.host import places
from appliance.host.incidents import Bundle, Store
from appliance.policy.causes import CAUSES
from appliance.quantity import format_duration, format_size
from appliance.wire.incident import Incident

from . import output

DONE = {"death": "it ended by itself", "kill": "the supervisor ended it", "asked": "an operator had it restarted"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`[ID]`."""
    parser.add_argument("id", nargs="?", metavar="ID", help="one incident, or how it begins")


def run(args: argparse.Namespace) -> int:
    """Print the list, or one story."""
    store = opened()
    if args.id is not None:
        bundle = find(store, args.id)
        if args.json:
            output.print_json(public(store, bundle))
        else:
            for line in story(store, bundle):
                print(line)
        return EXIT_OK
    bundles = read_all(store)[::-1]
    if args.json:
        output.print_json({"incidents": [public(store, bundle) for bundle in bundles]})
    elif not bundles:
        print("there is no incident")
    else:
        output.table(map(_row, bundles), ("ID", "ENGINE", "CAUSE", "AGE", "TIMES", "SIZE"))
    return EXIT_OK


def opened() -> Store:
    """The store of this machine."""
    return Store(places.from_environment().under_state(names.INCIDENTS))


def read_all(store: Store) -> tuple[Bundle, ...]:
    """Every incident, the oldest first. Raises Unreachable where this user may not look."""
    try:
        if os.path.isdir(store.root) and not os.access(store.root, os.R_OK | os.X_OK):
            raise PermissionError(13, "permission denied", store.root)
        return store.all()
    except PermissionError:
        hint = f"run the command as root (sudo), or join the group {names.GROUP}"
        raise Unreachable(f"only root and the group {names.GROUP} may read {store.root}", hint=hint) from None


def find(store: Store, start: str) -> Bundle:
    """The incident whose id is or begins with `start`. Raises UsageError for none or several."""
    bundles = read_all(store)
    for bundle in bundles:
        if bundle.incident.id == start:
            return bundle
    found = [bundle for bundle in bundles if bundle.incident.id.startswith(start)]
    if len(found) == 1:
        return found[0]
    why = f"{len(found)} incidents begin with {start!r}" if found else f"there is no incident {start!r}"
    raise UsageError(why, hint="llm-appliance incidents")


def public(store: Store, bundle: Bundle) -> dict[str, object]:
    """An incident as JSON shows it."""
    cause = CAUSES.get(bundle.incident.cause)
    return {
        **bundle.incident.value,
        "path": store.path(bundle.incident.id),
        "size": bundle.size,
        "files": bundle.files,
        "count": 1 + len(bundle.incident.again),
        "meaning": cause.meaning if cause is not None else None,
        "remedy": cause.advice if cause is not None else None,
    }


def story(store: Store, bundle: Bundle) -> Iterator[str]:
    """An incident for people."""
    about = bundle.incident
    yield f"incident  {about.id}"
    yield f"engine    {about.engine}"
    yield f"when      {output.when(about.at)}, {_age(about)} ago"
    yield f"what      {about.cause or 'no cause was judged'}: {output.clean(about.reason)}"
    if about.verdict:
        yield f"judged    {about.verdict}" + (f", action {about.action}" if about.action else "")
    yield f"how       {DONE.get(about.kind, about.kind)}" + (
        f"; {output.clean(about.outcome)}" if about.outcome else ""
    )
    if about.again:
        yield f"again     {len(about.again)} times since, last {output.when(about.again[-1])}"
    for number, fact in enumerate(about.evidence):
        yield f"{'evidence' if number == 0 else '':<9} {output.clean(fact)}"
    cause = CAUSES.get(about.cause)
    if cause is not None:
        yield f"meaning   {cause.meaning}"
        yield f"remedy    {cause.advice}"
    versions = ", ".join(f"{key} {about.facts[key]}" for key in ("appliance", "vllm", "device", "driver", "kernel")
                         if about.facts.get(key))  # fmt: skip
    yield f"versions  {output.clean(versions)}"
    yield ""
    yield f"files in {store.path(about.id)} (collected in {about.took_s:g} s):"
    for name, size in bundle.files.items():
        yield f"  {format_size(size):>10}  {name}"
    for name, why in sorted(about.missing.items()):
        yield f"  {'missing':>10}  {name}: {output.clean(why)}"
    yield ""
    yield f"to send it: llm-appliance report {about.id}"


def _row(bundle: Bundle) -> list[object]:
    about = bundle.incident
    return [about.id, about.engine, about.cause or None, _age(about), 1 + len(about.again), format_size(bundle.size)]


def _age(about: Incident) -> str:
    return format_duration(max(clock.wall() - about.at, 0.0))
