"""A unit's control group in the unified hierarchy: its memory, what the kernel did about it, and what it reads."""

from __future__ import annotations

from pathlib import Path

from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Cgroup

from .proc import CGROUPS, PROC

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


def own_oom_kills(*, cgroups: str = CGROUPS, proc: str = PROC) -> Maybe[int]:
    """How many processes of this process's control group were killed for want of memory since it was made."""
    try:
        return _pairs((_own(cgroups, proc) / "memory.events").read_text()).get("oom_kill", UNKNOWN)
    except OSError:
        return UNKNOWN


def own_room(*, cgroups: str = CGROUPS, proc: str = PROC) -> Maybe[int]:
    """How many bytes this process's control group may still take, its page cache counted as free; UNKNOWN where it has
    no limit of its own."""
    try:
        group = _own(cgroups, proc)
        most, taken = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        used = _pairs((group / "memory.stat").read_text())
    except (OSError, ValueError):  # "max"
        return UNKNOWN
    return max(most - taken + used.get("active_file", 0) + used.get("inactive_file", 0), 0)


def _own(cgroups: str, proc: str) -> Path:
    """The directory of this process's control group. Raises OSError."""
    lines = Path(proc, "self/cgroup").read_text().splitlines()
    group = next((line[len("0::") :] for line in lines if line.startswith("0::")), "")
    return Path(cgroups, group.lstrip("/"))


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
