"""`llm-appliance logs [ENGINE]`: the journal of the appliance, or of one engine; journalctl does the work.

Options of journalctl may follow a `--`: `llm-appliance logs chat -- --since today`.
"""

from __future__ import annotations

import argparse
import os
import shutil

from appliance import names
from appliance.config import source
from appliance.errors import EXIT_OK, Unreachable, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`[ENGINE] [-f] [-n LINES] [-x] [-- OPTION ...]`."""
    parser.add_argument("engine", nargs="?", metavar="ENGINE", help="an engine, or one replica of it")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    parser.add_argument("-n", "--lines", type=int, metavar="LINES", help="the last LINES lines (default 200)")
    parser.add_argument("-x", "--explain", action="store_true", help="explain entries from the message catalogue")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="further options of journalctl, after --")


def run(args: argparse.Namespace) -> int:
    """Become journalctl."""
    argv = arguments(args)
    program = shutil.which(argv[0])
    if program is None:
        raise Unreachable("there is no journalctl here", hint="the journal is part of systemd")
    os.execv(program, argv)
    return EXIT_OK


def arguments(args: argparse.Namespace) -> list[str]:
    """The command line of journalctl. Raises UsageError for an engine that is not there."""
    argv = ["journalctl"]
    if args.engine is None:
        argv.append("--unit=llm-*")
    else:
        argv += [f"--unit={names.engine_unit(instance)}" for instance in _instances(args.config, args.engine)]
    if args.follow:
        argv.append("--follow")
    if args.explain:
        argv.append("--catalog")
    narrowed = any(option.startswith(("-n", "--lines", "--since", "-S", "-b", "--boot")) for option in args.options)
    if args.lines is not None or not narrowed:
        argv.append(f"--lines={200 if args.lines is None else args.lines}")
    return [*argv, *args.options]


def _instances(config: str, engine: str) -> list[str]:
    found = source.effective(config).config
    engines = found.engines if found is not None else ()
    for one in engines:
        if one.name == engine and not one.remote:
            return list(one.instances)
        if engine in one.instances and not one.remote:
            return [engine]
    if not names.INSTANCE.fullmatch(engine):
        raise UsageError(f"{engine!r} is not the name of an engine")
    if found is None:
        return [engine]  # nothing to compare with: the journal may know it
    known = ", ".join(one.name for one in engines if not one.remote) or "none"
    raise UsageError(f"there is no local engine {engine!r}; the configuration has: {known}")
