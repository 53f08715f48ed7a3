"""What a verb prints: aligned tables, JSON, colour only on a terminal.

A pipe gets the same words without colour and without cutting; a terminal gets lines cut to its width. Everything goes
to standard output as UTF-8 where the locale can, with replacement characters where it cannot: a listing never dies of
an encoding. `NO_COLOR` and `TERM=dumb` turn colour off.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence

_CODES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "grey": "90", "bold": "1"}
_OWN = rf"\[(?:0|{'|'.join(_CODES.values())})m"  # what `paint` writes; others hide text, or write it over
_ESCAPES = re.compile(rf"\x1b{_OWN}")
_BREAKS = re.compile(r"[\t\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u2028\u2029]|\x1b(?!{_OWN})")
GAP = "  "


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def has_colour() -> bool:
    """Whether to colour: a terminal that was not asked to stay plain."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int | None:
    """Columns of the terminal; None in a pipe, where nothing is cut."""
    return shutil.get_terminal_size((80, 24)).columns if is_terminal() else None


def paint(text: str, colour: str) -> str:
    """`text` in a colour of red, green, yellow, blue, grey or bold; unchanged where there is no colour."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if has_colour() else text


def visible(text: str) -> int:
    """Columns that a text takes, colours left out."""
    return len(_ESCAPES.sub("", text))


def cut(text: str, columns: int | None) -> str:
    """`text` in at most `columns` columns, the end shown as `…`; a painted text that is too long loses its colour."""
    if columns is None or visible(text) <= columns:
        return text
    return _ESCAPES.sub("", text)[: max(columns - 1, 0)] + "…"


def clean(value: object) -> str:
    """A cell on one line: no control character of somebody else's text reaches the terminal; None is `-`."""
    text = "-" if value is None else str(value)
    return _CONTROL.sub("?", _BREAKS.sub(" ", text)) or "-"


def shown(text: str) -> str:
    """A text of several lines that others had a part in: `clean` but for its line ends and tabs."""
    return _CONTROL.sub("?", text)


def lines(rows: Iterable[Sequence[object]], headers: Sequence[str] = (), columns: int | None = None) -> list[str]:
    """An aligned table as lines, each at most `columns` wide; pure, for those who print elsewhere."""
    cells = [[clean(value) for value in row] for row in rows]
    if headers:
        cells = [list(headers), *cells]
    if not cells:
        return []
    count = max(len(row) for row in cells)
    widths = [max((visible(row[n]) for row in cells if n < len(row)), default=0) for n in range(count)]
    made = []
    for row in cells:
        padded = [text + " " * (widths[n] - visible(text)) for n, text in enumerate(row)]
        made.append(cut(GAP.join(padded).rstrip(), columns))
    return made


def table(rows: Iterable[Sequence[object]], headers: Sequence[str] = ()) -> None:
    """Print an aligned table; headers only when there are rows."""
    made = lines(rows, headers, width())
    for number, text in enumerate(made):
        if headers and len(made) == 1:
            return
        print(paint(text, "bold") if headers and number == 0 else text)


def print_json(value: object) -> None:
    """Print a value as JSON for a program: keys in their order, indented, not escaped beyond need."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def when(epoch: float | None) -> str:
    """A moment as people read it in local time; `-` for none."""
    return "-" if epoch is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch))


def note(text: str) -> None:
    """A remark beside the result, on standard error, so that a pipe holds the result alone."""
    print(shown(text), file=sys.stderr, flush=True)
