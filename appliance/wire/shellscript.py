"""The commands of a shell script, told without running it.

Words are taken apart as a POSIX shell does: quotes, escapes, continued lines, comments, `;` `&&` `||` `|` `&` and
parentheses between commands, redirections left out. Variables that the script assigns are put in their place, also
`${NAME:-default}`. What only a run could tell (`$(...)`, backticks, arguments, loops) stays as it is written, and is
named in `unread`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_REDIRECTION = re.compile(r"\d*(?:>>?|<)(?:&\d|[ \t]*)|&>>?[ \t]*")
_BETWEEN = frozenset(";&|()\n")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::?([-=?+])([^{}]*))?\})")


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: its words, what it finds in its environment through this script, its first line's number."""

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    line: int = 1
    unread: tuple[str, ...] = ()


def commands(text: str, known: Mapping[str, str] | None = None) -> tuple[Command, ...]:
    """Every command of a script in its order, wherever it stands (in a loop or a branch, too).

    `known` are variables set before. Never raises: a quote that is not closed ends at the end of the text.
    """
    variables: dict[str, str] = dict(known or {})
    exported: dict[str, str] = {}
    found: list[Command] = []
    for line, words, unread in _Reader(text.replace("\r\n", "\n"), variables).simple():
        own: dict[str, str] = {}
        rest = list(words)
        while rest and (assigned := _ASSIGNMENT.fullmatch(rest[0])):
            own[assigned[1]] = assigned[2]
            rest.pop(0)
        if not rest:
            variables |= own
            exported |= {name: value for name, value in own.items() if name in exported}
        elif rest[0] in ("export", "declare", "local", "readonly", "set"):
            for word in rest[1:]:
                if assigned := _ASSIGNMENT.fullmatch(word):
                    variables[assigned[1]] = assigned[2]
                    word = assigned[1]
                if rest[0] == "export" and word in variables:
                    exported[word] = variables[word]
        else:
            found.append(Command(tuple(rest), exported | own, line, unread))
    return tuple(found)


def expand(text: str, variables: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """`text` with its variables in place, and the names of those that are not known (they stay as they are written)."""
    unknown: list[str] = []

    def value(found: re.Match[str]) -> str:
        name, operator, word = found[1] or found[2], found[3], found[4]
        if operator == "+":
            return word if variables.get(name) else ""
        if name in variables and (variables[name] or operator is None):
            return variables[name]
        if operator in ("-", "="):
            return word
        unknown.append(found[0])
        return found[0]

    return _VARIABLE.sub(value, text), tuple(unknown)


class _Reader:
    """One pass over a script. `variables` grows between commands, as the script assigns them."""

    def __init__(self, text: str, variables: Mapping[str, str]) -> None:
        self.text = text
        self.variables = variables
        self.at = 0
        self.unread: list[str] = []

    def simple(self) -> Iterator[tuple[int, tuple[str, ...], tuple[str, ...]]]:
        """(line, words, what could not be told) of each simple command."""
        while self.at < len(self.text):
            self.unread = []
            words: list[str] = []
            start = None
            while self.at < len(self.text):
                here = self.text[self.at]
                if here in " \t":
                    self.at += 1
                elif self.text.startswith("\\\n", self.at):
                    self.at += 2
                elif here == "#":
                    self._skip_line()
                elif here in _BETWEEN:
                    self.at += 1
                    break
                elif redirected := _REDIRECTION.match(self.text, self.at):
                    self.at = redirected.end()
                    if "&" not in redirected[0] or redirected[0].startswith("&"):
                        self._word()
                else:
                    start = self.at if start is None else start
                    words += self._word()
            if words:
                yield self.text.count("\n", 0, start) + 1, tuple(words), tuple(self.unread)

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _word(self) -> list[str]:
        """The next word; several or none where a bare variable holds several or none."""
        begun = self.at
        word = ""
        quoted = False
        while self.at < len(self.text):
            here = self.text[self.at]
            if here == "'":
                end = self._end_of("'", self.at + 1)
                word += self.text[self.at + 1 : end]
                self.at, quoted = end + 1, True
            elif here == '"':
                word += self._double()
                quoted = True
            elif here == "\\":
                word += "" if self.text.startswith("\\\n", self.at) else self.text[self.at + 1 : self.at + 2]
                self.at += 2
                quoted = True
            elif here == "$" or here == "`":
                word += self._dollar()
            elif here in " \t" or here in _BETWEEN or here in "<>":
                break
            else:
                word += here
                self.at += 1
        written = self.text[begun : self.at]
        if not quoted and re.fullmatch(r"\$\{?\w+\}?", written) and not word.startswith("$"):
            return word.split()
        return [word]

    def _end_of(self, mark: str, start: int) -> int:
        end = self.text.find(mark, start)
        return len(self.text) if end < 0 else end

    def _double(self) -> str:
        """What stands between double quotes, from the opening one on."""
        self.at += 1
        inner = ""
        while self.at < len(self.text) and self.text[self.at] != '"':
            here = self.text[self.at]
            if here == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                inner += self.text[self.at + 1].strip("\n")
                self.at += 2
            elif here in "$`":
                inner += self._dollar()
            else:
                inner += here
                self.at += 1
        self.at += 1
        return inner

    def _dollar(self) -> str:
        """A variable's value, or as it is written what only a run could tell."""
        variable = _VARIABLE.match(self.text, self.at)
        if variable:
            self.at = variable.end()
            value, unknown = expand(variable[0], self.variables)
            self.unread += unknown
            return value
        if self.text.startswith("$(", self.at):
            end = self._closing()
        elif self.text[self.at] == "`":
            end = self._end_of("`", self.at + 1) + 1
        else:
            end = self.at + (2 if re.match(r"\$[@*#?$!0-9-]", self.text[self.at : self.at + 2]) else 1)
        written = self.text[self.at : end]
        self.at = end
        if len(written) > 1:
            self.unread.append(written)
        return written

    def _closing(self) -> int:
        """The end of `$(...)`, inner parentheses counted."""
        depth = 0
        for at in range(self.at, len(self.text)):
            depth += {"(": 1, ")": -1}.get(self.text[at], 0)
            if self.text[at] == ")" and depth == 0:
                return at + 1
        return len(self.text)
