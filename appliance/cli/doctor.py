"""`llm-appliance doctor [--through URL]`: looks for what will hurt, and says what was seen and what to do.

Each check yields findings (`policy/finding`). Exit status: 0 nothing failed, 1 something did, 2 wrong usage, 3 what is
to be looked at does not answer.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from appliance.errors import EXIT_FOUND, EXIT_OK, UsageError
from appliance.policy.finding import Finding, Verdict
from appliance.quantity import format_duration, parse_duration
from appliance.wire.deliveryprobe import LONGEST_SILENCE

from . import localchecks, output, through
from .chat import KEY_VARIABLE
from .frontclient import Front, parse_place

SILENCE = "25s"  # two comments and a half at the default stream.keepalive
COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.UNKNOWN: "blue"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
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
    """Look, and print each finding as it comes."""
    found: list[Finding] = []
    for finding in _findings(args):
        found.append(finding)
        if not args.json:
            _show(finding)
    if args.json:
        output.print_json(
            [
                {"name": one.name, "verdict": one.verdict.value, "evidence": one.evidence, "remedy": one.remedy}
                for one in found
            ]
        )
    return EXIT_FOUND if any(one.verdict is Verdict.FAIL for one in found) else EXIT_OK


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    if not args.through:
        return localchecks.findings(args.config)
    place = parse_place(args.through)
    try:
        silence = parse_duration(args.silence)
    except ValueError as error:
        raise UsageError(f"--silence: {error}") from None
    if silence > LONGEST_SILENCE:
        raise UsageError(f"--silence is at most {format_duration(LONGEST_SILENCE)}")
    front = Front(place, _key(args.key_file), args.ca)
    output.note(f"asking through {args.through}; a silence of {format_duration(silence)} is part of it")
    return through.findings(front, silence)


def _key(path: str | None) -> str:
    """The key, from wherever it may come without being seen; empty where keys may not be needed."""
    if path is not None:
        try:
            return Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {getattr(error, 'strerror', None) or 'no text'}") from None
    given = os.environ.get(KEY_VARIABLE, "")
    if given or not sys.stdin.isatty():
        return given.strip()
    return getpass.getpass("API key: ").strip()


def _show(finding: Finding) -> None:
    verdict = output.paint(f"{finding.verdict.value:<7}", COLOURS[finding.verdict])
    print(f"{verdict} {finding.name:<11} {output.clean(finding.evidence)}", flush=True)
    if finding.remedy:
        print(f"{'':<20}{output.clean(finding.remedy)}", flush=True)
