"""Debian's packages: `apt-config dump` and dpkg's status file, as far as they say what becomes of a driver."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Packages of the kernel module and of the libraries that must have its version.
_DRIVER = re.compile(
    r"nvidia-(driver|kernel|headless|dkms|utils|compute-utils|open|firmware|persistenced|fabricmanager|smi|alternative)"
    r"|linux-(modules|objects|signatures)-nvidia|libnvidia-(compute|ml|cfg)|libcuda1|cuda-drivers"
)
_UNATTENDED = "APT::Periodic::Unattended-Upgrade"
_SPARED = "Unattended-Upgrade::Package-Blacklist"


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package."""

    name: str
    version: str
    held: bool


def driver_packages(status: str) -> Iterator[Package]:
    """Those of NVIDIA's driver in dpkg's status file that are installed."""
    for block in status.split("\n\n"):
        if not block.startswith("Package: ") or _DRIVER.match(block, len("Package: ")) is None:
            continue
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " ")
        want, _, state = fields.get("Status", "").partition(" ")
        if state.endswith(" installed"):
            yield Package(fields["Package"], fields.get("Version", ""), want == "hold")


def settings(dump: str) -> Mapping[str, list[str]]:
    """`apt-config dump`: each key with its values in order; lists repeat their key with `::` at its end."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r'^(\S+) "(.*)";$', dump, re.MULTILINE):
        found.setdefault(key.removesuffix("::"), []).append(value)
    return found


def is_unattended(dump: str) -> bool:
    """Whether the daily job upgrades packages by itself."""
    values = settings(dump).get(_UNATTENDED, ["0"])
    return values[-1].strip().lower() not in ("", "0", "false", "no", "never")


def spared(dump: str) -> tuple[str, ...]:
    """Patterns of packages that it leaves alone."""
    return tuple(value for value in settings(dump).get(_SPARED, ()) if value)
