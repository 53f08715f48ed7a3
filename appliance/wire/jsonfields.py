"""Typed looks at a JSON object of foreign making: a value of the wrong kind counts as missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from appliance.quantity import UNKNOWN, Maybe

LARGEST_NUMBER = 1 << 40  # no figure of a model is larger; what is, is no figure


class Fields:
    """One object. Every question takes the names that different authors use, the first that answers wins."""

    def __init__(self, table: Mapping[str, object], defaults: Mapping[str, object] | None = None) -> None:
        self._table = table
        self._defaults = defaults or {}

    def over(self, defaults: Mapping[str, object]) -> Fields:
        """The same object with defaults below it; an explicit null hides none of them."""
        return Fields(self._table, defaults)

    def __contains__(self, name: str) -> bool:
        return self._get(name) is not None

    def _get(self, name: str) -> object:
        value = self._table.get(name)
        return self._defaults.get(name) if value is None else value

    def number(self, *names: str) -> Maybe[int]:
        """A whole number that is not negative; a list counts by its largest member (sizes that differ by layer)."""
        for name in names:
            value = self._get(name)
            if isinstance(value, list) and value:
                value = max((member for member in map(_whole, value) if member is not None), default=None)
            whole = _whole(value)
            if whole is not None:
                return whole
        return UNKNOWN

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers; empty when it is anything else."""
        value = self._get(name)
        found = [_whole(member) for member in value] if isinstance(value, list) else []
        return tuple(member for member in found if member is not None) if None not in found else ()

    def words(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty when it is anything else."""
        value = self._get(name)
        if not isinstance(value, list) or not all(isinstance(member, str) for member in value):
            return ()
        return tuple(value)

    def text(self, name: str) -> str:
        """A string; empty when it is anything else."""
        value = self._get(name)
        return value if isinstance(value, str) else ""

    def truth(self, name: str) -> bool | None:
        """A boolean; None when it is anything else."""
        value = self._get(name)
        return value if isinstance(value, bool) else None

    def real(self, name: str) -> float | None:
        """A number; None when it is anything else."""
        value = self._get(name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def table(self, name: str) -> Mapping[str, object] | None:
        """An object; None when it is anything else."""
        value = self._get(name)
        return cast(Mapping[str, object], value) if isinstance(value, dict) else None

    def tables(self) -> Iterator[Mapping[str, object]]:
        """The members that are objects themselves, in their order."""
        for value in self._table.values():
            if isinstance(value, dict):
                yield cast(Mapping[str, object], value)


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= LARGEST_NUMBER else None
