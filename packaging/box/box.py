#!/usr/bin/env python3
"""box.py: Debian machines with a booted systemd, thrown away after use.

box.py up NAME [--distro bookworm|trixie] [--layer LAYER]... [--network host|private]
box.py sh NAME [COMMAND...]         a line of shell in it; without one, an interactive shell
box.py net NAME COMMAND...          a program of this host in the box's network
box.py cp FROM TO                   one of both is NAME:PATH
box.py journal NAME | reboot NAME | down NAME | boot NAME | rm NAME
box.py snapshot NAME LAYER          its disk as a layer for later boxes
box.py list | clean | base DISTRO   clean: remove boxes whose maker is gone
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from box import Box, BoxError, roots  # noqa: E402
from box.machine import clean  # noqa: E402
from box.places import place, read_json  # noqa: E402


def main(arguments: list[str]) -> int:
    """Do one act; exit status 0 good, 1 it failed, 2 wrong usage; `sh` and `net` give the command's own."""
    args = _parser().parse_args(arguments)
    try:
        return _act(args)
    except BoxError as problem:
        print(f"box: {problem}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="box.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    up = verbs.add_parser("up")
    up.add_argument("name")
    up.add_argument("--distro", default="bookworm", choices=roots.DISTROS)
    up.add_argument("--layer", action="append", default=[])
    up.add_argument("--network", default="host", choices=("host", "private"))
    for verb in ("sh", "net"):
        run = verbs.add_parser(verb)
        run.add_argument("name")
        run.add_argument("command", nargs=argparse.REMAINDER)
    for verb in ("journal", "reboot", "down", "boot", "rm"):
        verbs.add_parser(verb).add_argument("name")
    copy = verbs.add_parser("cp")
    copy.add_argument("source")
    copy.add_argument("target")
    snapshot = verbs.add_parser("snapshot")
    snapshot.add_argument("name")
    snapshot.add_argument("layer")
    verbs.add_parser("base").add_argument("distro", choices=roots.DISTROS)
    verbs.add_parser("list")
    verbs.add_parser("clean")
    return parser


def _act(args: argparse.Namespace) -> int:
    if args.verb == "up":
        Box.start(args.distro, args.layer, args.network, args.name, keep=True)
    elif args.verb == "cp":
        _copy(args.source, args.target)
    elif args.verb == "base":
        print(roots.base(args.distro))
    elif args.verb == "list":
        for directory in sorted(place("boxes", "x").parent.iterdir()):
            state = read_json(directory / "state.json")
            if state is not None:
                life = "running" if Box(state).running else "stopped"
                print(f"{directory.name}\t{life}\t{state['distro']}\t{state['network']}\t{','.join(state['layers'])}")
    elif args.verb == "clean":
        print("\n".join(clean()))
    else:
        return _act_on(Box.attach(args.name), args)
    return 0


def _act_on(box: Box, args: argparse.Namespace) -> int:
    if args.verb == "sh":
        command = " ".join(args.command)
        argv = box.argv(command) if command else box.argv("exec bash -l")
        return subprocess.run(_with_term(argv), check=False).returncode
    if args.verb == "net":
        return subprocess.run(box.outside_argv(args.command), check=False).returncode
    if args.verb == "journal":
        print(box.journal())
    elif args.verb == "reboot":
        box.reboot()
    elif args.verb == "down":
        box.stop()
    elif args.verb == "boot":
        box.boot()
    elif args.verb == "rm":
        box.stop()
        box.remove()
    elif args.verb == "snapshot":
        box.snapshot(args.layer)
    return 0


def _with_term(argv: list[str]) -> list[str]:
    """A terminal's name, so that editors and pagers work in an interactive shell."""
    at = argv.index("-i") + 1
    return [*argv[:at], f"TERM={os.environ.get('TERM', 'dumb')}", *argv[at:]]


def _copy(source: str, target: str) -> None:
    name, colon, inside = source.partition(":")
    if colon and not source.startswith("/"):
        Box.attach(name).get(inside, target)
        return
    name, colon, inside = target.partition(":")
    if not colon:
        raise BoxError("one of both must be NAME:PATH")
    Box.attach(name).put(source, inside)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
