"""Settings written as TOML: what last-good.toml holds, and values in listings.

Python can read TOML but not write it. This writes what the reader gives back: tables, arrays of tables, strings with
any character, numbers, booleans, dates. Keys keep their order, except that a table's plain keys come before its tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
_UNPRINTABLE = re.compile(r'[\\"\x00-\x1f\x7f\u0080-\u009f\u2028\u2029]')


def document(value: Mapping[str, object]) -> str:
    """A TOML text that reads back as `value`. Raises TypeError for what TOML has no word for."""
    lines: list[str] = []
    _table((), value, lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def inline(value: object) -> str:
    """One value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + _UNPRINTABLE.sub(_escape, value) + '"'
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(key)} = {inline(inner)}" for key, inner in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}"


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = repr(value)
    return text if "." in text or "e" in text else f"{text}.0"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else inline(key)


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(member, Mapping) for member in value)


def _table(path: tuple[str, ...], table: Mapping[str, object], lines: list[str]) -> None:
    """The plain keys of a table, then its tables under their headers."""
    below = {key: value for key, value in table.items() if isinstance(value, Mapping) or _is_tables(value)}
    lines += [f"{_key(key)} = {inline(value)}" for key, value in table.items() if key not in below]
    for key, value in below.items():
        header = ".".join(map(_key, (*path, key)))
        members = [value] if isinstance(value, Mapping) else value
        assert isinstance(members, list)
        for member in members:
            lines += ["", f"[{header}]" if isinstance(value, Mapping) else f"[[{header}]]"]
            _table((*path, key), member, lines)
