"""What install.sh must know of the machine it runs on: whether systemd runs, which ports are taken, what is missing."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from . import processes
from .machine import PATH, Result
from .places import BoxError


class Target(Protocol):
    """Where the package goes: a box, or this host."""

    name: str

    def sh(self, command: str, timeout: float = 60.0, check: bool = True) -> Result: ...
    def path(self, inside: str) -> Path: ...


class Host:
    """This host as a target."""

    name = "this host"

    def sh(self, command: str, timeout: float = 60.0, check: bool = True) -> Result:
        """Run a line of shell; raises BoxError when it fails (`check`) or takes too long."""
        clean = ["env", f"PATH={PATH}", "DEBIAN_FRONTEND=noninteractive", "LANG=C.UTF-8"]
        status, out = processes.run([*clean, "sh", "-c", command], timeout)
        if check and status != 0:
            end = f"took longer than {timeout:g} s" if status is None else f"ended with status {status}"
            raise BoxError(f"`{command}` {end}:\n{out[-6000:]}")
        return Result(status, out)

    def path(self, inside: str) -> Path:
        """A path is itself."""
        return Path(inside)


def systemd_runs(run: str = "/run") -> bool:
    """Whether systemd is PID 1 here (sd_booted(3))."""
    return Path(run, "systemd/system").is_dir()


def missing_packages(names: Iterable[str]) -> list[str]:
    """Those of the Debian packages that are not installed."""
    missing = []
    for name in names:
        query = ["dpkg-query", "-W", "-f", "${db:Status-Status}", name]
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
        if done.stdout != "installed":
            missing.append(name)
    return missing


def busy_ports(ports: Iterable[int]) -> list[tuple[int, str]]:
    """Ports on 127.0.0.1 that cannot be bound, each with the process that has it."""
    busy = []
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as problem:
                if problem.errno != errno.EADDRINUSE:
                    raise
                busy.append((port, _owner(port)))
    return busy


def _owner(port: int) -> str:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if any(os.readlink(file) in inodes for file in (entry / "fd").iterdir()):
                return f"{(entry / 'comm').read_text().strip()} (pid {entry.name})"
        except OSError:
            continue
    return "a process that cannot be seen from here"
