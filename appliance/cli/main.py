"""`llm-appliance VERB`: finds the verb's module, parses its arguments, prints its error, returns its exit status.

A verb is one row of `VERBS` and one module with `add_arguments(parser)` and `run(args) -> int`; only the module that
was asked for is imported. `args.config` is always there, and `args.json` is (False where the verb lists nothing). Both
may stand before the verb, after it, or after a verb of its own (`keys list --json`).

Exit status: 0 good, 1 found something wrong, 2 wrong usage or invalid configuration, 3 cannot reach what it needs;
130 after Ctrl-C. A reader that closes the pipe early is no error. No traceback unless LLM_APPLIANCE_DEBUG is set.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

from appliance import __version__, names
from appliance.errors import (
    EXIT_FOUND,
    EXIT_OK,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    ApplianceError,
    ConfigInvalid,
    UsageError,
)

from . import output
from .examples import EXAMPLES

PROGRAM = "llm-appliance"
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a verb lives, what it is for, whether it can print JSON, and whether it hands on what follows `--`.

    `judges`: it tells what is wrong with the configuration file itself, also that there is none.
    """

    module: str
    purpose: str
    json: bool = False
    hands_on: bool = False
    judges: bool = False


VERBS: dict[str, Verb] = {
    "status": Verb("appliance.cli.status", "what serves, what does not, and why", json=True),
    "top": Verb("appliance.cli.top", "the same, live on the whole screen", json=True),
    "check": Verb("appliance.cli.check", "read the configuration and name every problem in it", json=True, judges=True),
    "config": Verb("appliance.cli.config", "show the configuration in force; explain a key", json=True),
    "doctor": Verb("appliance.cli.doctor", "look for what will hurt, here or on the way to clients", json=True),
    "apply": Verb("appliance.cli.apply", "make the configuration take effect", json=True),
    "keys": Verb("appliance.cli.keys", "create, list, revoke and rotate API keys", json=True),
    "audit": Verb("appliance.cli.audit", "show and verify the usage ledger", json=True),
    "plan": Verb("appliance.cli.plan", "will a model fit, how many requests at once, which flags", json=True),
    "models": Verb("appliance.cli.models", "list, fetch and remove model files", json=True),
    "runtime": Verb("appliance.cli.runtime", "list, build, choose and roll back vLLM environments", json=True),
    "bench": Verb("appliance.cli.bench", "how many requests at once it serves, how fast; --tune", json=True),
    "chat": Verb("appliance.cli.chat", "talk to a model through the gateway"),
    "logs": Verb("appliance.cli.logs", "the journal of the appliance or of one engine", hands_on=True),
    "incidents": Verb("appliance.cli.incidents", "what happened to engines, with its evidence", json=True),
    "report": Verb("appliance.cli.report", "one file to attach to a bug report"),
    "replay": Verb("appliance.cli.replay", "judge a recorded timeline again", json=True),
    "hold": Verb("appliance.cli.hold", "stop an engine and keep it stopped"),
    "resume": Verb("appliance.cli.resume", "let a held engine start again"),
    "drain": Verb("appliance.cli.drain", "give an engine no new calls"),
    "undrain": Verb("appliance.cli.undrain", "let a drained engine take calls again"),
    "restart": Verb("appliance.cli.restart", "restart one engine"),
}

# Handled by __main__ before this module is imported; named here for the help alone.
PROCESSES = {
    "gateway": "run the gateway in the foreground",
    "supervisor": "run the supervisor in the foreground",
}


class Parser(argparse.ArgumentParser):
    """argparse that raises UsageError instead of printing and exiting, so that there is one error printer."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise UsageError(message, hint=f"{self.prog} --help")


def main(arguments: list[str] | None = None) -> int:
    """Run a verb; the one place where its errors end."""
    words = sys.argv[1:] if arguments is None else arguments
    _soften_streams()
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_OK
    except SystemExit as exit_:  # argparse's --help
        return exit_.code if isinstance(exit_.code, int) else EXIT_OK
    except Exception as error:  # the top of the process: a bug, too, ends in a sentence
        return report(error)


def report(error: Exception) -> int:
    """Print an error as a sentence and a hint on standard error; return the exit status that goes with it."""
    if os.environ.get("LLM_APPLIANCE_DEBUG"):
        traceback.print_exception(error)
    status, message, hint = _explain(error)
    if isinstance(error, ConfigInvalid):
        for problem in error.problems:
            output.note(f"{problem.severity}: {problem}")
    else:
        output.note(f"{PROGRAM}: {message}")
    if hint:
        output.note(f"hint: {hint}")
    return status


def _explain(error: Exception) -> tuple[int, str, str]:
    if isinstance(error, ApplianceError):
        return error.exit_status, error.message, error.hint
    if isinstance(error, PermissionError):
        return EXIT_UNREACHABLE, _system_words(error), "run the command as root (sudo)"
    if isinstance(error, OSError):
        return EXIT_UNREACHABLE, _system_words(error), ""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("appliance.cli."):
        return EXIT_UNREACHABLE, f"this installation lacks {error.name}", f"reinstall the package {PROGRAM}"
    return (
        EXIT_FOUND,
        f"unexpected {type(error).__name__}: {error}",
        "this is a fault of the program; LLM_APPLIANCE_DEBUG=1 shows where",
    )


def _system_words(error: OSError) -> str:
    words = (error.strerror or str(error)).lower()
    return f"{error.filename}: {words}" if error.filename else words


def _dispatch(words: Sequence[str]) -> int:
    """Read the options before the verb, then hand over to the verb's parser."""
    config, as_json, rest = "", False, list(words)
    while rest and rest[0].startswith("-"):
        option, _, value = rest.pop(0).partition("=")
        if option in ("-h", "--help"):
            print(_help())
            return EXIT_OK
        if option in ("-V", "--version"):
            print(f"{PROGRAM} {__version__}")
            return EXIT_OK
        if option == "--json":
            as_json = True
        elif option == "--config":
            if not value and not rest:
                raise UsageError("--config needs a file", hint=f"{PROGRAM} --help")
            config = value or rest.pop(0)
        else:
            raise UsageError(f"unknown option {option}", hint=f"{PROGRAM} --help")
    if not rest:
        print(_help())
        return EXIT_USAGE
    if rest[0] == "complete":  # for shells; its words are not ours
        return int(import_module("appliance.cli.complete").run(rest[2:] if rest[1:2] == ["--"] else rest[1:]))
    if rest[0] == "help":
        return _dispatch([*rest[1:], "--help"])
    return _run(rest[0], rest[1:], config, as_json)


def _run(word: str, rest: list[str], config: str, as_json: bool) -> int:
    verb = VERBS.get(word)
    if verb is None:
        near = difflib.get_close_matches(word, [*VERBS, *PROCESSES], n=1, cutoff=0.5)
        raise UsageError(
            f"there is no verb {word!r}" + (f"; did you mean {near[0]!r}?" if near else ""), hint=f"{PROGRAM} --help"
        )
    if as_json and not verb.json:
        raise UsageError(f"{word} prints no JSON", hint=f"{PROGRAM} {word} --help")
    own = rest.index("--") if verb.hands_on and "--" in rest else len(rest)
    args = parser_of(word).parse_args(rest[:own])
    if verb.hands_on:  # argparse would give the first of them to a positional that was left out
        args.options += rest[own + 1 :]
    named = getattr(args, "config", None) or config
    if named and not verb.judges:
        _must_be_there(named)
    args.config = named or names.CONFIG_FILE
    args.json = bool(getattr(args, "json", False)) or as_json
    return int(import_module(verb.module).run(args))


def _must_be_there(file: str) -> None:
    """A configuration that was named is meant, also by a verb that could do without one. Raises UsageError."""
    try:
        open(file, "rb").close()
    except OSError as error:
        raise UsageError(f"--config {file}: {(error.strerror or str(error)).lower()}") from error


def parser_of(word: str) -> Parser:
    """What reads the arguments of a verb; KeyError where there is none of that name."""
    verb = VERBS[word]
    parser = Parser(
        prog=f"{PROGRAM} {word}",
        description=_sentence(verb.purpose),
        epilog="\n  ".join(["examples:", *(f"{PROGRAM} {example}" for example in EXAMPLES.get(word, ()))]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    import_module(verb.module).add_arguments(parser)
    _add_shared(parser, verb.json)
    return parser


def _add_shared(parser: argparse.ArgumentParser, has_json: bool) -> None:
    """`--config` and `--json` for a parser and all below it, where the verb has not put its own; no half options."""
    known = {option for action in parser._actions for option in action.option_strings}
    if "--config" not in known:
        parser.add_argument(
            "--config",
            metavar="FILE",
            default=argparse.SUPPRESS,
            help=f"the configuration file (default {names.CONFIG_FILE})",
        )
    if has_json and "--json" not in known:
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            purposes = {choice.dest: choice.help for choice in action._choices_actions}
            for word, child in action.choices.items():
                child.description = _sentence(purposes.get(word) or "")
                child.allow_abbrev = False  # it does not come down by itself
                _add_shared(child, has_json)


def _sentence(purpose: str) -> str:
    return purpose[:1].upper() + purpose[1:] + "."


def _help() -> str:
    listed = [*((name, verb.purpose) for name, verb in VERBS.items()), *PROCESSES.items()]
    return "\n".join(
        [
            f"usage: {PROGRAM} [--config FILE] VERB ...",
            "",
            "vLLM engines, a gateway and a supervisor as systemd units.",
            "",
            *(f"  {name:<11} {purpose}" for name, purpose in listed),
            "",
            f"  --config FILE  the configuration file (default {names.CONFIG_FILE})",
            "  --version      print the version",
            "",
            f"{PROGRAM} VERB --help tells more. Exit status: 0 good, 1 found something",
            "wrong, 2 wrong usage or invalid configuration, 3 cannot reach what it needs.",
        ]
    )


def _soften_streams() -> None:
    """No listing dies of a locale that cannot print a character."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _silence_stdout() -> None:
    """After a closed pipe: nothing more may be flushed into it when the interpreter ends."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(devnull)
