"""Texts of /proc that tell of memory, pressure and mounts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from appliance.quantity import UNKNOWN, Maybe


@dataclass(frozen=True, slots=True)
class MountLine:
    """One line of mountinfo. `options` are the mount's own and the file system's."""

    place: str
    kind: str
    options: frozenset[str]


def counters(text: str) -> Mapping[str, int]:
    """`name value` or `name: value kB` a line: meminfo (in bytes), vmstat, memory.events."""
    found = {}
    for line in text.splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            found[words[0]] = int(words[1]) * (1024 if words[2:] == ["kB"] else 1)
    return found


def stalled(text: str) -> Maybe[float]:
    """Percent of the last minute in which some task waited (a file of /proc/pressure)."""
    match = re.search(r"^some .*avg60=([0-9.]+)", text, re.MULTILINE)
    return UNKNOWN if match is None else float(match[1])


def mounts(text: str) -> Iterator[MountLine]:
    """Lines of /proc/self/mountinfo; octal escapes in places are undone."""
    for line in text.splitlines():
        first, dash, second = line.partition(" - ")
        fields, rest = first.split(), second.split()
        if dash and len(fields) >= 6 and len(rest) >= 3:
            place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
            yield MountLine(place, rest[0], frozenset(fields[5].split(",")) | frozenset(rest[2].split(",")))


def mount_of(path: str, table: Iterator[MountLine]) -> MountLine | None:
    """The mount that an absolute path lies on: the longest that holds it, the last of equals."""
    best = None
    for line in table:
        holds = line.place == "/" or path == line.place or path.startswith(f"{line.place}/")
        if holds and (best is None or len(line.place) >= len(best.place)):
            best = line
    return best


def module_names(text: str) -> frozenset[str]:
    """Names in /proc/modules."""
    return frozenset(line.split()[0] for line in text.splitlines() if line.strip())


def driver_version(text: str) -> str:
    """NVIDIA's version in /proc/driver/nvidia/version; open and closed modules word it differently."""
    match = re.search(r"Kernel Module(?: for \w+)?\s+(\d[\d.]+)", text)
    return "" if match is None else match[1]
