"""`llm-appliance undrain ENGINE`: an engine that was drained takes calls again."""

from __future__ import annotations

import argparse

from .supervisorclient import engine_argument, follow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`ENGINE`."""
    engine_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Returns when it is on record."""
    return follow("undrain", engine=args.engine)
