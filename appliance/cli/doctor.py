"""`llm-appliance doctor [--all] [--deep] | --through URL`: looks for what will hurt, says what was seen and what to do.

Each check yields findings (`policy/finding`); on the machine itself they take less than ten seconds together. Exit
status: 0 nothing failed, 1 something did, 2 wrong usage, 3 what is to be looked at does not answer.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys

from appliance import clock
from appliance.errors import EXIT_FOUND, EXIT_OK, UsageError
from appliance.policy.checkup.deep import Setting
from appliance.policy.finding import Finding, Verdict
from appliance.quantity import format_duration, parse_duration
from appliance.wire.deliveryprobe import LONGEST_SILENCE

from . import deeplooks, findingspage, localchecks, output, through
from .chat import KEY_VARIABLE, read_key
from .frontclient import Front, parse_place

SILENCE = "25s"  # two comments and a half at the default stream.keepalive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("--all", action="store_true", help="show what is good as well, each with what was seen")
    parser.add_argument("--deep", action="store_true", help="try GPUs in pairs and the models' disk as well (minutes)")
    parser.add_argument("--write", action="store_true", help="with --deep: write what engines need into a drop-in")
    parser.add_argument("--yes", action="store_true", help="with --write: do not ask")
    parser.add_argument(
        "--through", metavar="URL", help="try what stands in front of the gateway, like https://llm.example.com/v1"
    )
    parser.add_argument(
        "--key-file", metavar="FILE", help=f"a file with the API key (default: ${KEY_VARIABLE}, or asked)"
    )
    parser.add_argument("--ca", metavar="FILE", help="certificates to trust instead of the system's")
    parser.add_argument(
        "--silence", metavar="TIME", default=SILENCE, help=f"the silence that a stream must outlive (default {SILENCE})"
    )


def run(args: argparse.Namespace) -> int:
    """Look, and print."""
    if args.write > args.deep or args.yes > args.write or (args.deep and args.through):
        raise UsageError("--yes goes with --write, --write with --deep, and --deep not with --through")
    found = _through(args) if args.through else _here(args)
    if args.json:
        output.print_json([_as_json(finding) for finding in found])
    return EXIT_FOUND if any(finding.verdict is Verdict.FAIL for finding in found) else EXIT_OK


def _here(args: argparse.Namespace) -> list[Finding]:
    begun = clock.monotonic()
    facts, config = localchecks.look(args.config)
    found = list(localchecks.findings(args.config, facts, config))
    settings: tuple[Setting, ...] = ()
    if args.deep:
        more, settings = deeplooks.look(facts, config)
        found += more
    if not args.json:
        for line in findingspage.page(found, localchecks.GROUPS, output.width(), whole=args.all):
            print(line)
        print(findingspage.summary(found, clock.monotonic() - begun), flush=True)
    if args.write and settings:
        deeplooks.write(settings, args.config, sure=args.yes)
    return found


def _through(args: argparse.Namespace) -> list[Finding]:
    """What stands in front, each finding as it comes: a silence is part of it."""
    place = parse_place(args.through)
    try:
        silence = parse_duration(args.silence)
    except ValueError as error:
        raise UsageError(f"--silence: {error}") from None
    if silence > LONGEST_SILENCE:
        raise UsageError(f"--silence is at most {format_duration(LONGEST_SILENCE)}")
    front = Front(place, _key(args.key_file), args.ca)
    output.note(f"asking through {args.through}; a silence of {format_duration(silence)} is part of it")
    found = []
    for finding in through.findings(front, silence):
        found.append(finding)
        if not args.json:
            print(findingspage.line(finding, output.width()), flush=True)
    return found


def _as_json(finding: Finding) -> dict[str, str]:
    group = localchecks.GROUPS.get(finding.name, "")
    told = {"name": finding.name, "verdict": finding.verdict.value, "evidence": finding.evidence}
    return {**told, "remedy": finding.remedy, **({"group": group} if group else {})}


def _key(path: str | None) -> str:
    """The key, from wherever it may come without being seen; empty where keys may not be needed."""
    if path is not None:
        return read_key(path)
    given = os.environ.get(KEY_VARIABLE, "")
    if given or not sys.stdin.isatty():
        return given.strip()
    return getpass.getpass("API key: ").strip()
