"""The host's side of a box: processes (told apart from later ones with the same pid), deadlines, cgroups."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

Identity = list[int]  # pid, start time in clock ticks since boot


def identity(pid: int) -> Identity | None:
    """What names a process for good; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else [pid, int(fields[19])]


def alive(process: Identity) -> bool:
    """Whether that very process still runs."""
    return identity(process[0]) == list(process)


def wait_gone(process: Identity, limit: float) -> bool:
    """Wait until a process is gone; False when it is still there after `limit` seconds."""
    deadline = time.monotonic() + limit
    while alive(process):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process[0], os.WNOHANG)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def run(argv: list[str], timeout: float) -> tuple[int | None, str]:
    """Run a command; its status (None: time ran out and it was killed) and both its streams.

    The output goes through a file: a daemon that the command leaves behind must not hold us up.
    """
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                _kill_group(process.pid)
                process.wait(10)
        out.seek(0)
        return status, out.read().decode(errors="replace")


def _kill_group(group: int) -> None:
    """Kill a command's group: what runs in the box first, so that nsenter still reaps it, then nsenter itself.

    The other way round a dead child would wait for the host's PID 1, and the box's shutdown for the child. All are
    stopped before, so that none is born between the look and the kill.
    """
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGSTOP)
    entered = [pid for pid in _pids_of_group(group) if _in_a_box(pid)]
    for pid in entered:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 1
    while entered and _pids_of_group(group) and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGCONT)  # nsenter stops itself when its child is stopped
        time.sleep(0.02)
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def _pids_of_group(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry.name)) == group and identity(int(entry.name)):
                    found.append(int(entry.name))
    return found


def _in_a_box(pid: int) -> bool:
    """Whether a process lives in another PID namespace than ours (nsenter itself stays in ours)."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def kill_entered(leader: int) -> None:
    """Kill the commands that entered a box and still run, with their groups.

    Left alone they would keep it from stopping: its shutdown stops the command, nsenter stops itself in sympathy, and
    nobody reaps the child.
    """
    mark = [b"nsenter", b"-t", str(leader).encode()]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = _words(entry)
            group = os.getpgid(int(entry.name))
        except OSError:
            continue
        if words[:3] != mark:
            continue
        if group == os.getpgrp():  # a command of ours without a group of its own
            os.kill(int(entry.name), signal.SIGKILL)
        else:
            _kill_group(group)


def _words(entry: Path) -> list[bytes]:
    """A process's command line. In the instant of its exec a process that has just been started shows an empty one."""
    deadline = time.monotonic() + 1
    while not (line := (entry / "cmdline").read_bytes()) and time.monotonic() < deadline:
        os.readlink(entry / "exe")  # raises for a kernel's thread and for the dead, which have none for good
        time.sleep(0.001)
    return line.split(b"\0")


# --- cgroups -----------------------------------------------------------------------------------------------------


def _hierarchies() -> list[Path]:
    """Where the host's cgroup v2 and named systemd hierarchies are mounted."""
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options = line.split()[:4]
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            found.append(Path(where))
    return found


def make_cgroups(name: str) -> list[Path]:
    """A box's own cgroups, made; whoever starts the box moves into them first."""
    groups = [top / f"box-{name}" for top in _hierarchies()]
    for group in groups:
        group.mkdir(exist_ok=True)
    return groups


def remove_cgroups(name: str) -> None:
    """Remove a box's cgroups, killing what is left in them."""
    for top in _hierarchies():
        group = top / f"box-{name}"
        if not group.exists():
            continue
        for _ in range(50):
            members = [below for below, _, _ in os.walk(group, topdown=False)]
            for member in members:
                for pid in _pids(member):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.rmdir(member)
            if not group.exists():
                break
            time.sleep(0.05)


def _pids(group: str) -> list[int]:
    try:
        return [int(word) for word in (Path(group) / "cgroup.procs").read_text().split()]
    except OSError:
        return []
