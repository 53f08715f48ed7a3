"""Fields of a JSON object, each read as its kind: missing and null are UNKNOWN or empty, a wrong kind is Wrong."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from appliance.quantity import UNKNOWN, Maybe

LARGEST = 2**63  # of an integer: nothing that is counted here is larger, and huge ones are slow


class Wrong(ValueError):
    """A field that does not fit: its name and what is wrong."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")


class Fields:
    """Reads fields of an object; `prefix` goes before their names in messages."""

    def __init__(self, value: Mapping[str, Any], prefix: str = "") -> None:
        self._value = value
        self._prefix = prefix

    def value(self, name: str) -> Any:
        """The field as JSON gave it; None when it is not there."""
        return self._value.get(name)

    def number(self, name: str) -> Maybe[float]:
        """A finite number."""
        value = self._value.get(name)
        return UNKNOWN if value is None else _number(value, self._prefix + name)

    def need_number(self, name: str) -> float:
        """A finite number that must be there."""
        return _number(self._value.get(name), self._prefix + name)

    def integer(self, name: str) -> Maybe[int]:
        """A whole number."""
        value = self._value.get(name)
        return UNKNOWN if value is None else self.need_integer(name)

    def need_integer(self, name: str) -> int:
        """A whole number that must be there."""
        return _integer(self._value.get(name), self._prefix + name)

    def text(self, name: str) -> str:
        """Words; empty when they are not there."""
        value = self._value.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise Wrong(self._prefix + name, f"{_show(value)} is not a string")
        return value

    def need_text(self, name: str) -> str:
        """Words that must be there."""
        found = self.text(name)
        if not found:
            raise Wrong(self._prefix + name, "is missing")
        return found

    def flag(self, name: str) -> bool:
        """True or false; false when it is not there."""
        value = self._value.get(name)
        if value is not None and not isinstance(value, bool):
            raise Wrong(self._prefix + name, f"{_show(value)} is not true or false")
        return bool(value)

    def numbers(self, name: str) -> dict[str, float]:
        """An object of numbers; members that are null are left out."""
        value = self._value.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise Wrong(self._prefix + name, f"{_show(value)} is not an object")
        return {key: _number(each, f"{self._prefix}{name}.{key}") for key, each in value.items() if each is not None}

    def integers(self, name: str) -> Maybe[tuple[int, ...]]:
        """A list of whole numbers."""
        value = self._value.get(name)
        if value is None:
            return UNKNOWN
        if not isinstance(value, list):
            raise Wrong(self._prefix + name, f"{_show(value)} is not a list")
        return tuple(_integer(each, self._prefix + name) for each in value)

    def objects(self, name: str) -> tuple[Fields, ...]:
        """A list of objects."""
        value = self._value.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise Wrong(self._prefix + name, f"{_show(value)} is not a list of objects")
        return tuple(Fields(each, f"{self._prefix}{name}[{index}].") for index, each in enumerate(value))


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Wrong(name, "is missing" if value is None else f"{_show(value)} is not a number")
    if (isinstance(value, float) and not isfinite(value)) or abs(value) > 1e300:
        raise Wrong(name, "is not a finite number")
    return float(value)


def _integer(value: object, name: str) -> int:
    number = _number(value, name)
    if number != int(number) or abs(number) > LARGEST:
        raise Wrong(name, f"{_show(value)} is not a whole number")
    return int(value) if isinstance(value, int) else int(number)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "..."
