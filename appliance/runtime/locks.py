"""The hash locks that this release carries: which packages, which of their files, for which Python.

A lock is a requirements file for pip and uv, with facts about itself in comments (`# python: 3.11 3.12`). The files in
`locks/` are made by `packaging/make_locks.py`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOCKS = Path(__file__).resolve().parent / "locks"
DEVICE_LOCKS = {"cuda": ("cuda.txt",), "cpu": ("cpu.txt", "cpu-generic.txt")}  # the first that can be had

_FACT = re.compile(r"# (\w+): (.+)")
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:===?)([^\s;]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock. `pins` maps a normalized package name to the hashes of its files, all its versions together."""

    name: str
    text: str
    facts: Mapping[str, str]
    pins: Mapping[str, frozenset[str]]

    @property
    def digest(self) -> str:
        """Names this lock in a runtime's `.complete`."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def version(self) -> str:
        """The vLLM that it installs; empty for a lock that installs none."""
        return self.facts.get("vllm", "")

    @property
    def pythons(self) -> tuple[str, ...]:
        """The Pythons, major.minor, that it has files for."""
        return tuple(self.facts.get("python", "").split())


def normalized(name: str) -> str:
    """A package name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(name: str, text: str) -> Lock:
    """Read a lock. Raises ValueError for a line without a pin or a pin without a hash: nothing may slip past."""
    facts: dict[str, str] = {}
    pins: dict[str, frozenset[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        fact = _FACT.fullmatch(line.strip())
        if fact is not None:
            facts[fact[1]] = fact[2].strip()
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pin, hashes = _PIN.match(line), frozenset(_HASH.findall(line))
        if pin is None or not hashes:
            raise ValueError(f"{name}: not a pinned, hashed requirement: {line.split('--hash')[0].strip()!r}")
        package = normalized(pin[1])
        pins[package] = pins.get(package, frozenset()) | hashes
    return Lock(name, text, facts, pins)


def read(name: str, directory: Path = LOCKS) -> Lock:
    """A lock by its file name. Raises OSError, ValueError."""
    return parse(name, (directory / name).read_text())


def subset(lock: Lock, packages: Sequence[str]) -> Lock:
    """A lock with the named packages alone."""
    lines = [line for line in lock.text.replace("\\\n", " ").splitlines() if _package(line) in packages]
    return parse(lock.name, "\n".join(lines) + "\n")


def _package(line: str) -> str | None:
    pin = _PIN.match(line)
    return None if pin is None else normalized(pin[1])


def candidates(device: str, directory: Path = LOCKS) -> tuple[Lock, ...]:
    """The locks for a device, the preferred one first."""
    return tuple(read(name, directory) for name in DEVICE_LOCKS[device] if (directory / name).exists())
