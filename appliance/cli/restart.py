"""`llm-appliance restart ENGINE [--wait] [--evidence]`: restart an engine, its replicas one after the other.

With `--evidence` one replica is ended so that all its processes tell their stacks, for an engine that hangs and that
nobody has judged yet; `llm-appliance incidents` shows what was kept.
"""

from __future__ import annotations

import argparse

from .supervisorclient import engine_argument, follow, silence, wait_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`ENGINE [--wait] [--evidence]`."""
    engine_argument(parser)
    wait_argument(parser)
    parser.add_argument(
        "--evidence", action="store_true", help="of one replica: keep an incident with its stacks, then kill it"
    )


def run(args: argparse.Namespace) -> int:
    """Returns when the restart is under way; with --wait when it has ended."""
    return follow("restart", silence_s=silence(args.wait), engine=args.engine, wait=args.wait,
                  evidence=args.evidence)  # fmt: skip
