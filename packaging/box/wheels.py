"""Wheels that this host already has, offered to a box; wheels that a box fetched, kept for the next one.

Only wheels that the runtime's locks name are taken: a host's directory of wheels may be large.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from .machine import Box
from .places import cache

LOCKS = Path(__file__).resolve().parents[2] / "appliance/runtime/locks"
FETCHED = "var/lib/llm-appliance/runtimes/wheels"
PIN = re.compile(r"^([A-Za-z0-9._-]+)===?([^ ;\\]+)")


def cached() -> Path:
    """Where wheels are kept between boxes."""
    path = cache() / "wheels"
    path.mkdir(parents=True, exist_ok=True)
    return path


def directories() -> list[Path]:
    """The kept wheels, and the directories that pip is told to look into on this host."""
    words = os.environ.get("PIP_FIND_LINKS", "").split()
    pip = ["python3", "-m", "pip", "config", "get", "global.find-links"]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 0:
        words += done.stdout.split()
    found = [Path(word.removeprefix("file://")) for word in words]
    return [cached(), *(path for path in dict.fromkeys(found) if path.is_dir())]


def pinned() -> set[tuple[str, str]]:
    """Name (normal form) and version of everything that the locks name."""
    pins = set()
    for lock in LOCKS.glob("*.txt"):
        for line in lock.read_text().splitlines():
            if match := PIN.match(line):
                pins.add((_normal(match[1]), match[2]))
    return pins


def present() -> list[Path]:
    """The wheels on this host that the locks name, one for each file name."""
    wanted = pinned()
    found: dict[str, Path] = {}
    for directory in directories():
        for wheel in sorted(directory.glob("*.whl")):
            name, version = wheel.name.split("-")[:2]
            if (_normal(name), version) in wanted:
                found.setdefault(wheel.name, wheel)
    return list(found.values())


def offer(box: Box, inside: str, dropin: str) -> None:
    """Copy them into the box and name their directory in a drop-in of the configuration."""
    wheels = present()
    if not wheels:
        return
    target = box.path(inside)
    target.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        if not (target / wheel.name).exists():
            shutil.copy2(wheel, target / wheel.name)
            (target / wheel.name).chmod(0o644)
    box.write(dropin, f'# Wheels that the machine around this box had.\n[runtime]\nwheelhouse = "{inside}"\n')


def keep(box: Box) -> None:
    """Keep the wheels that the box's runtime has fetched so far; it deletes them when its environment is complete.

    A link beside the box's disk costs nothing, and a wheel that has its final name is not written again.
    """
    for wheel in (box.directory / "upper" / FETCHED).glob("*.whl"):
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            (cached() / wheel.name).hardlink_to(wheel)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
