"""`llm-appliance drain ENGINE [--reason TEXT]`: no new calls for an engine, also after a restart, until `undrain`."""

from __future__ import annotations

import argparse

from .supervisorclient import engine_argument, follow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`ENGINE [--reason TEXT]`."""
    engine_argument(parser)
    parser.add_argument("--reason", metavar="TEXT", default="", help="what status and callers are told")


def run(args: argparse.Namespace) -> int:
    """Returns when it is on record; calls that are open go on, as `status` shows."""
    return follow("drain", engine=args.engine, reason=args.reason)
