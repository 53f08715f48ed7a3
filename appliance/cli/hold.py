"""`llm-appliance hold ENGINE [--reason TEXT]`: stop an engine and keep it stopped, over reboots, until `resume`."""

from __future__ import annotations

import argparse

from .supervisorclient import engine_argument, follow, silence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`ENGINE [--reason TEXT]`."""
    engine_argument(parser)
    parser.add_argument("--reason", metavar="TEXT", default="", help="what status and callers are told")


def run(args: argparse.Namespace) -> int:
    """Returns when the engine is down."""
    return follow("hold", silence_s=silence(True), engine=args.engine, reason=args.reason)
