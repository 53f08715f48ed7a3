"""What the shell offers on TAB: `llm-appliance complete -- WORD...`, the last word being the one that is typed.

Each line is a candidate, with a tab and its meaning where it has one; `:file` stands for the names of files. The verbs'
own parsers are asked, so nothing is written down twice. A completion is silent about whatever goes wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence

from appliance import names
from appliance.config import source
from appliance.config.table import ROWS, TABLES
from appliance.errors import ApplianceError
from appliance.host import keystore

from . import incidents, main
from .keys import keys_file

FILES = ":file"
Candidate = tuple[str, str]


def run(words: Sequence[str]) -> int:
    """Print the candidates; `words` as the shell has them, without the program. Always good."""
    for word, meaning in candidates(words):
        print(f"{word}\t{meaning}" if meaning else word)
    return 0


def candidates(words: Sequence[str]) -> list[Candidate]:
    """Everything that may stand in the place of the last word and begins as it does."""
    *before, typed = words or [""]
    offered = _offered(list(before), typed)
    return [(word, meaning) for word, meaning in offered if word == FILES or word.startswith(typed)]


def _offered(before: list[str], typed: str) -> Iterable[Candidate]:
    config = names.CONFIG_FILE
    while before and before[0].startswith("-"):
        option, given, value = before.pop(0).partition("=")
        if option == "--config" and not given:
            if not before:
                return [(FILES, "")]
            value = before.pop(0)
        if option == "--config":
            config = value
    if not before:
        verbs = [*((name, verb.purpose) for name, verb in main.VERBS.items()), *main.PROCESSES.items()]
        return [("--config", ""), ("--json", ""), ("--help", ""), ("--version", "")] if typed[:1] == "-" else verbs
    if before[0] not in main.VERBS:
        return []
    return _of_parser(main.parser_of(before[0]), before[1:], typed, config)


def _of_parser(parser: argparse.ArgumentParser, before: list[str], typed: str, config: str) -> Iterable[Candidate]:
    """Walk the words that stand already; then offer what the next place takes."""
    places = [action for action in parser._actions if not action.option_strings]
    given: set[str] = set()
    waiting: argparse.Action | None = None  # the option whose value comes next
    for index, word in enumerate(before):
        action = parser._option_string_actions.get(word.partition("=")[0])
        if waiting is not None:
            waiting = None
        elif action is not None:
            given.add(action.dest)
            waiting = action if action.nargs != 0 and "=" not in word else None
        elif places:
            place = places[0]
            if isinstance(place, argparse._SubParsersAction):
                child = place.choices.get(word)
                return [] if child is None else _of_parser(child, before[index + 1 :], typed, config)
            if place.nargs not in ("*", "+"):
                places.pop(0)
    if waiting is not None:
        return _values(waiting, config)
    if typed.startswith("-"):
        return [
            (action.option_strings[-1], action.help or "")
            for action in parser._actions
            if action.option_strings and action.dest not in given and action.help != argparse.SUPPRESS
        ]
    return _values(places[0], config) if places else []


def _values(action: argparse.Action, config: str) -> Iterable[Candidate]:
    """What an option or a place takes, by its choices or by the name that its help gives it."""
    if isinstance(action, argparse._SubParsersAction):
        return [(choice.dest, choice.help or "") for choice in action._choices_actions]
    if action.choices is not None:
        return [(str(choice), "") for choice in action.choices]
    known = {"FILE": _files, "ENGINE": _engines, "ID": _incidents, "NAME|ID": _keys, "KEY": _settings}
    kind = known.get(str(action.metavar))
    return kind(config) if kind is not None else []


def _files(config: str) -> Iterator[Candidate]:
    yield FILES, ""


def _engines(config: str) -> Iterator[Candidate]:
    found = source.effective(config).config
    for engine in found.engines if found is not None else ():
        yield from ((instance, engine.model) for instance in engine.instances)


def _incidents(config: str) -> Iterator[Candidate]:
    try:
        for bundle in reversed(incidents.read_all(incidents.opened())):
            yield bundle.incident.id, bundle.incident.reason
    except (ApplianceError, OSError):
        return


def _keys(config: str) -> Iterator[Candidate]:
    try:
        yield from ((key.name, key.id) for key in keystore.read(keys_file(config)).keys)
    except (ApplianceError, OSError, ValueError):
        return


def _settings(config: str) -> Iterator[Candidate]:
    yield from TABLES.items()
    yield from ((row.path, row.help) for row in ROWS)
