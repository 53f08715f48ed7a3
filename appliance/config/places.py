"""The line of each key in a TOML text, which Python's TOML parser does not tell.

The text has been parsed before, so it is well formed; the scanner only has to find keys, not to judge them. A path is
the keys from the top, with the index of a member of an array: `("engine", 0, "vllm", "max_num_seqs")`. A table's line
is its header's; a dotted key's tables have the line of the key. Should the scanner meet what it does not know it gives
the lines found so far: a missing line costs a message its number and nothing else.
"""

from __future__ import annotations

import re

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)+")
_WORD = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'',
    re.DOTALL,
)
_BARE_VALUE = re.compile(r"[^,\]}#\n]+")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


def lines(text: str) -> dict[Path, int]:
    """Path of every key, table and array member to its line, counted from 1."""
    scanner = _Scanner(text)
    try:
        scanner.document()
    except (IndexError, ValueError):
        pass
    return scanner.found


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}  # array of tables -> members so far

    def document(self) -> None:
        """Headers and keys to the end of the text."""
        table: Path = ()
        while self.blank() < len(self.text):
            if self.text[self.at] != "[":
                self.pair(table)
                continue
            double = self.text.startswith("[[", self.at)
            line = self.line()
            self.at += 2 if double else 1
            table = self.resolved(self.keys(), double)
            self.note(table, line)
            self.expect("]]" if double else "]")

    def resolved(self, keys: list[str], double: bool) -> Path:
        """A header's keys with the index of the latest member of each array of tables on the way."""
        path: Path = ()
        for number, key in enumerate(keys):
            path = (*path, key)
            if double and number == len(keys) - 1:
                self.counts[path] = self.counts.get(path, -1) + 1
                self.found.setdefault(path, self.line())
            if path in self.counts:
                path = (*path, self.counts[path])
        return path

    def pair(self, table: Path) -> None:
        """`a.b = value`."""
        line, path = self.line(), table
        for key in self.keys():
            path = (*path, key)
            self.note(path, line)
        self.expect("=")
        self.blank()
        self.value(path)

    def value(self, path: Path) -> None:
        """Step over a value and note what is inside."""
        if self.text[self.at] == "[":
            self.at += 1
            index = 0
            while self.text[self.blank()] != "]":
                self.note((*path, index), self.line())
                self.value((*path, index))
                index += 1
                self.comma()
            self.at += 1
        elif self.text[self.at] == "{":
            self.at += 1
            while self.text[self.blank()] != "}":
                self.pair(path)
                self.comma()
            self.at += 1
        else:
            match = _STRING.match(self.text, self.at) or _BARE_VALUE.match(self.text, self.at)
            if match is None:
                raise ValueError("no value here")
            self.at = match.end()

    def keys(self) -> list[str]:
        """`a."b c".d` as its parts."""
        keys: list[str] = []
        while True:
            self.blank()
            word = _WORD.match(self.text, self.at) or _STRING.match(self.text, self.at)
            if word is None:
                raise ValueError("no key here")
            self.at = word.end()
            keys.append(_plain(word[0]))
            if self.text[self.blank()] != ".":
                return keys
            self.at += 1

    def note(self, path: Path, line: int) -> None:
        self.found.setdefault(path, line)

    def expect(self, sign: str) -> None:
        if not self.text.startswith(sign, self.blank()):
            raise ValueError(f"no {sign} here")
        self.at += len(sign)

    def comma(self) -> None:
        if self.text[self.blank()] == ",":
            self.at += 1

    def blank(self) -> int:
        """Step over spaces, line ends and comments; where that leads."""
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at

    def line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1


def _plain(word: str) -> str:
    """A key without its quotes and escapes."""
    if word[0] == "'":
        return word[1:-1]
    if word[0] != '"':
        return word
    return _ESCAPE.sub(_unescape, word[1:-1])


def _unescape(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else _ESCAPES.get(match[3], match[3])
