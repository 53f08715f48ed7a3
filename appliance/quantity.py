"""Durations, sizes, signals and UNKNOWN: parse what people write, print what people read.

A duration is a float in seconds, a size an int in bytes. UNKNOWN is a reading that a sensor did not give: it is not
zero, compares equal only to itself, and has no order; code that meets it must say what it does with it.
"""

from __future__ import annotations

import enum
import re
import signal
from typing import Final, TypeAlias, TypeVar, Union


class Unknown(enum.Enum):
    """The type of UNKNOWN; an enum of one member so that `is UNKNOWN` narrows types."""

    UNKNOWN = "unknown"

    def __bool__(self) -> bool:
        raise TypeError("UNKNOWN is neither true nor false")

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown.UNKNOWN
T = TypeVar("T")
Maybe: TypeAlias = Union[T, Unknown]  # noqa: UP007 (a generic alias needs Union on 3.10)

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("iB", 1024), ("B", 1000), ("", 1024))  # a bare letter is systemd's: 1024
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `1h 30m`, `250ms`. Raises ValueError with what would be right."""
    position, seconds = 0, 0.0
    stripped = text.strip()
    for part in _PART.finditer(stripped):
        if stripped[position : part.start()].strip() or part[2] not in _SECONDS:
            break
        seconds += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    if not stripped or stripped[position:].strip():
        raise ValueError(f"{text!r} is not a duration: write a number with ms, s, m, h or d, like 90s or 1h 30m")
    return seconds


def parse_size(text: str) -> int:
    """Bytes of `64MiB`, `10G`, `1.5GB`; a bare number is bytes. Raises ValueError with what would be right."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2] not in _BYTES:
        raise ValueError(f"{text!r} is not a size: write a number with KiB, MiB, GiB or TiB, like 64MiB")
    return int(float(match[1]) * _BYTES[match[2]])


def format_duration(seconds: float) -> str:
    """A duration as short as people say it: `250ms`, `4.2s`, `94s`, `5m 3s`, `2h 5m`, `3d 4h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 100:
        return f"{seconds:.1f}".rstrip("0").rstrip(".") + "s" if seconds < 10 else f"{seconds:.0f}s"
    whole = round(seconds)
    for unit, size, smaller, small in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size}{unit} {rest}{smaller}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def format_size(count: int) -> str:
    """A size in the largest binary unit: `0 B`, `64 MiB`, `2.5 GiB`."""
    size, unit = float(count), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"


def format_signal(number: int) -> str:
    """`SIGKILL` for 9; `signal 99` for a number that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
