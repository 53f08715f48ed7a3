"""`llm-appliance resume ENGINE [--wait]`: end a hold; the engine starts, and its count of restarts begins anew."""

from __future__ import annotations

import argparse

from .supervisorclient import engine_argument, follow, silence, wait_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`ENGINE [--wait]`."""
    engine_argument(parser)
    wait_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Returns when the start is under way; with --wait when it has ended."""
    return follow("resume", silence_s=silence(args.wait), engine=args.engine, wait=args.wait)
