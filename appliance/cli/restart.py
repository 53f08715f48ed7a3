"""`llm-appliance restart ENGINE [--wait]`: restart an engine, its replicas one after the other."""

from __future__ import annotations

import argparse

from .supervisorclient import engine_argument, follow, silence, wait_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`ENGINE [--wait]`."""
    engine_argument(parser)
    wait_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Returns when the restart is under way; with --wait when it has ended."""
    return follow("restart", silence_s=silence(args.wait), engine=args.engine, wait=args.wait)
