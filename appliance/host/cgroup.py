"""A unit's control group in the unified hierarchy: its memory, what the kernel did about it, and what it reads."""

from __future__ import annotations

from pathlib import Path

from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Cgroup

from .proc import CGROUPS

GIB = 1 << 30


def read(control_group: str, t: float, *, cgroups: str = CGROUPS) -> Cgroup:
    """One look; each figure that the kernel does not give (memory.peak before 5.19, any on cgroup v1) is UNKNOWN."""
    directory = Path(cgroups, control_group.lstrip("/"))
    try:
        events = _pairs((directory / "memory.events").read_text())
    except OSError as error:
        return Cgroup(t=t, error=f"cannot read memory.events: {error.strerror}")
    return Cgroup(
        t=t,
        events=events,
        current_gib=_gib(directory / "memory.current"),
        peak_gib=_gib(directory / "memory.peak"),
        read_bytes=_read_bytes(directory / "io.stat"),
    )


def _pairs(text: str) -> dict[str, int]:
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            found[name] = int(value)
    return found


def _gib(path: Path) -> Maybe[float]:
    try:
        return round(int(path.read_text()) / GIB, 4)
    except (OSError, ValueError):
        return UNKNOWN


def _read_bytes(path: Path) -> Maybe[int]:
    """`8:0 rbytes=1 wbytes=2 ...` for each device, summed; empty before the first byte."""
    try:
        words = path.read_text().split()
    except OSError:
        return UNKNOWN
    counts = [word[len("rbytes=") :] for word in words if word.startswith("rbytes=")]
    return sum(int(count) for count in counts if count.isdigit())
