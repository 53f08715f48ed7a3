"""One box: start, commands in it, files in and out, reboot, stop, and its disk kept as a layer for later boxes.

A box is systemd-nspawn on an overlay of its own, so a fresh one costs half a second and no copy. It needs no systemd on
the host. Each box has cgroups of its own (two boxes in one cgroup would share their units') and sees pure cgroup v2.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from . import processes, roots
from .places import BoxError, place, read_json, write_json

Network = Literal["host", "private"]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BOOT_LIMIT, STOP_LIMIT = 60.0, 120.0
POWEROFF = signal.SIGRTMIN + 4  # to systemd as PID 1: start poweroff.target
# The daily work of Debian itself: on a disk that was kept it may begin at any moment, with the locks of apt and dpkg.
TIMERS = ("apt-daily", "apt-daily-upgrade", "dpkg-db-backup", "e2scrub_all", "fstrim")


@dataclass(frozen=True)
class Result:
    """How a command in a box ended; `status` is None when its time ran out."""

    status: int | None
    out: str  # both streams


class Box:
    """A running box. `start` makes one, `attach` finds one that another process made."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state
        self.name: str = state["name"]
        self._nspawn: subprocess.Popen[bytes] | None = None  # where this object started it

    # --- life ----------------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        distro: str = "bookworm",
        layers: list[str] | tuple[str, ...] = (),
        network: Network = "private",
        name: str = "",
        *,
        keep: bool = False,
    ) -> Box:
        """Boot a fresh box. `layers` lie above the base, the last one on top, each with all that it was made on.

        With `keep` the box outlives this process; without, `clean` takes it away once this process is gone.
        """
        name = name or f"t{os.getpid()}-{time.monotonic_ns() // 1000 % 10**9}"
        directory = place("boxes", name)
        if directory.exists():
            raise BoxError(f"there is a box {name} already: box.py rm {name}")
        chain = _chain(distro, list(layers))
        root = roots.base(distro)
        for part in ("upper", "work", "merged"):
            (directory / part).mkdir(parents=True)
        owner = None if keep else processes.identity(os.getpid())
        box = cls({"name": name, "distro": distro, "layers": chain, "network": network, "owner": owner, "leader": None})
        box._save()
        try:
            box._mount(root)
            box._boot()
            box._trust_what_the_host_trusts()
        except BaseException:
            box.remove()
            raise
        return box

    @classmethod
    def attach(cls, name: str) -> Box:
        """The box of that name, running or stopped."""
        state = read_json(place("boxes", name) / "state.json")
        if state is None:
            raise BoxError(f"there is no box {name}")
        return cls(state)

    @property
    def directory(self) -> Path:
        """Where the box's disk and state lie on the host."""
        return place("boxes", self.name)

    @property
    def leader(self) -> int:
        """The host's pid of the box's PID 1."""
        identity = self._state["leader"]
        if identity is None or not processes.alive(identity):
            raise BoxError(f"box {self.name} is not running")
        return int(identity[0])

    @property
    def running(self) -> bool:
        """Whether its PID 1 lives."""
        return self._state["leader"] is not None and processes.alive(self._state["leader"])

    def stop(self) -> None:
        """Power it off: units stop in order. Kills it when that takes longer than STOP_LIMIT."""
        if self.running:
            processes.kill_entered(self.leader)
            os.kill(self.leader, POWEROFF)
            deadline = time.monotonic() + STOP_LIMIT
            while not processes.wait_gone(self._state["leader"], 0.5) and time.monotonic() < deadline:
                processes.kill_entered(self._state["leader"][0])  # a command that entered meanwhile keeps it from dying
            if self.running:
                print(f"box {self.name} did not power off in {STOP_LIMIT:.0f} s: killing it", file=sys.stderr)
        self.kill()

    def kill(self) -> None:
        """Pull the plug (nothing in the box is told)."""
        if self.running:
            processes.kill_entered(self.leader)
            os.kill(self.leader, signal.SIGKILL)
            processes.wait_gone(self._state["leader"], 20)
        if self._nspawn is not None:
            self._nspawn.wait(20)
        elif self._state.get("nspawn"):
            processes.wait_gone(self._state["nspawn"], 20)
        processes.remove_cgroups(self.name)
        self._state["leader"] = self._state["nspawn"] = None
        self._save()

    def boot(self, network: Network | None = None) -> None:
        """Start a stopped box on the disk that it has, in another network if given; a running one is left alone."""
        if not self.running:
            self._state["network"] = network or self._state["network"]
            self.kill()
            self._mount(roots.base(self._state["distro"]))
            self._boot()

    def reboot(self) -> None:
        """Power off, start again, wait until it has booted."""
        self.stop()
        self.boot()

    def remove(self) -> None:
        """Kill it and delete its disk."""
        self.kill()
        _unmount(self.directory / "merged")
        shutil.rmtree(self.directory, ignore_errors=True)

    def snapshot(self, layer: str, only: tuple[str, ...] = ()) -> None:
        """Keep what this box wrote as a layer, replacing an older one of that name. The box is stopped and removed.

        With `only`, just these directories of it.
        """
        self.stop()
        _unmount(self.directory / "merged")
        upper = self.directory / "upper"
        target = place("layers", layer)
        fresh = target.with_name(target.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        for inside in only:
            _move_below(upper, fresh / "tree", Path(inside.lstrip("/")))
        if not only:
            upper.rename(fresh / "tree")
        below = {"root": roots.key(self._state["distro"]), "layers": self._state["layers"]}
        write_json(fresh / "layer.json", below)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
        self.remove()

    def __enter__(self) -> Box:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self.running and issubclass(kind, Exception):
            print(self.journal(), file=sys.stderr)
        self.remove()

    # --- commands and files --------------------------------------------------------------------------------------

    def sh(self, command: str, timeout: float = 60.0, check: bool = True, user: str = "root") -> Result:
        """Run a line of shell in the box. Raises BoxError with the output when it fails (`check`) or takes too long."""
        return self._run(self.argv(command, user), timeout, check, command)

    def outside(self, argv: list[str], timeout: float = 60.0, check: bool = True) -> Result:
        """Run a program of the host in the box's network: its 127.0.0.1 is the box's."""
        return self._run(self.outside_argv(argv), timeout, check, shlex.join(argv))

    def argv(self, command: str, user: str = "root") -> list[str]:
        """The host's command line that runs a line of shell in the box, for a Popen of one's own."""
        clean = ["env", "-i", f"PATH={PATH}", "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"]
        shell = ["bash", "-c", command]
        if user != "root":
            shell = ["runuser", "-u", user, "--", *shell]
        return ["nsenter", "-t", str(self.leader), "-a", "--root", "--wd", *clean, *shell]

    def outside_argv(self, argv: list[str]) -> list[str]:
        """The command line that runs a program of the host in the box's network."""
        return ["nsenter", "-t", str(self.leader), "-n", *argv]

    def _run(self, argv: list[str], timeout: float, check: bool, shown: str) -> Result:
        status, out = processes.run(argv, timeout)
        if check and status != 0:
            end = f"took longer than {timeout:g} s" if status is None else f"ended with status {status}"
            raise BoxError(f"box {self.name}: `{shown}` {end}:\n{out[-6000:]}")
        return Result(status, out)

    def path(self, inside: str) -> Path:
        """A path of the running box as the host sees it."""
        return Path(f"/proc/{self.leader}/root") / inside.lstrip("/")

    def put(self, source: str | Path, inside: str) -> None:
        """Copy a file or directory into the box, owned by root; `inside` is its new name, not where to put it."""
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        if Path(source).is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)

    def get(self, inside: str, target: str | Path) -> None:
        """Copy a file or directory out of the box."""
        source = self.path(inside)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)

    def write(self, inside: str, text: str) -> None:
        """Put a text into a file of the box (an existing file keeps its owner and mode)."""
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def read(self, inside: str) -> str:
        """The text of a file of the box."""
        return self.path(inside).read_text()

    def journal(self, arguments: str = "-b -n 120") -> str:
        """The end of the box's journal, and what failed, for a person who looks at a failure.

        All that was said until now is in it: journald on a busy machine is behind, and is waited for.
        """
        show = f"journalctl --sync; journalctl --no-pager -o short-monotonic {arguments}"
        command = f"systemctl --failed --no-legend --plain; {show}"
        with contextlib.suppress(BoxError):
            return f"--- box {self.name} ---\n" + self.sh(command, timeout=30, check=False).out
        return f"--- box {self.name}: not running ---\n"

    # --- inside --------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self.directory.exists():
            write_json(self.directory / "state.json", self._state)

    def _mount(self, root: Path) -> None:
        merged = self.directory / "merged"
        if os.path.ismount(merged):
            return
        shutil.rmtree(self.directory / "work", ignore_errors=True)
        (self.directory / "work").mkdir()
        trees = [str(place("layers", layer) / "tree") for layer in reversed(self._state["layers"])]
        lower = ":".join([*trees, str(root)])
        options = (
            f"lowerdir={lower},upperdir={self.directory}/upper,workdir={self.directory}/work,index=off,metacopy=off"
        )
        command = ["mount", "-t", "overlay", f"box-{self.name}", "-o", options, str(merged)]
        status, out = processes.run(command, 20)
        if status != 0:
            raise BoxError(f"cannot mount the disk of box {self.name}: {out.strip()}")

    def _boot(self) -> None:
        address = f"llm-box-{self.name}-{os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
            notices.bind("\0" + address)
            nspawn = self._spawn("@" + address)
            try:
                self._follow(notices, nspawn)
            except BaseException:
                nspawn.kill()
                raise

    def _spawn(self, notify_socket: str) -> subprocess.Popen[bytes]:
        private = self._state["network"] == "private"
        command = ["systemd-nspawn", "--quiet", "-D", str(self.directory / "merged"), "--boot", "-M", self.name]
        command += ["--register=no", "--keep-unit", "--settings=no", "--link-journal=no", "--notify-ready=yes"]
        command += ["--console=pipe", "--suppress-sync=yes", f"--hostname={self.name}"]
        command += ["--private-network", "--resolv-conf=off"] if private else ["--resolv-conf=copy-host"]
        command += ["--", *(f"systemd.mask={timer}.timer" for timer in TIMERS)]  # to PID 1, as a kernel's command line
        enter = "".join(
            f"echo $$ > {shlex.quote(str(group))}/cgroup.procs; " for group in processes.make_cgroups(self.name)
        )
        environment = {**os.environ, "NOTIFY_SOCKET": notify_socket, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
        with open(self.directory / "console.log", "ab") as console:
            nspawn = subprocess.Popen(
                ["sh", "-c", f'{enter}exec "$@"', "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=environment,
                start_new_session=True,
            )
        self._nspawn = nspawn
        self._state["nspawn"] = processes.identity(nspawn.pid)
        return nspawn

    def _follow(self, notices: socket.socket, nspawn: subprocess.Popen[bytes]) -> None:
        """Until multi-user.target is reached. systemd's own READY=1 would wait for every job, engines included."""
        deadline = time.monotonic() + BOOT_LIMIT
        notices.settimeout(0.1)
        while time.monotonic() < deadline:
            if nspawn.poll() is not None:
                break
            try:
                lines = notices.recv(4096).decode(errors="replace").splitlines()
            except TimeoutError:
                lines = []
            for line in lines:
                if line.startswith("X_NSPAWN_LEADER_PID="):
                    self._state["leader"] = processes.identity(int(line.partition("=")[2]))
                    self._save()
            if self.running and self.sh("systemctl is-active multi-user.target", 10, check=False).status == 0:
                return
        console = (self.directory / "console.log").read_text(errors="replace")[-3000:]
        raise BoxError(f"box {self.name} did not boot within {BOOT_LIMIT:.0f} s; its console:\n{console}")

    def _trust_what_the_host_trusts(self) -> None:
        missing = roots.certificates_to_add(self.path("/"))
        for number, pem in enumerate(missing):
            self.write(f"/usr/local/share/ca-certificates/host-{number}.crt", pem + "\n")
        if missing:
            self.sh("update-ca-certificates", timeout=60)


def _chain(distro: str, layers: list[str]) -> list[str]:
    chain: list[str] = []
    for layer in layers:
        below = read_json(place("layers", layer) / "layer.json")
        if below is None or below.get("root") != roots.key(distro):
            raise BoxError(f"there is no layer {layer} on this base of {distro}")
        chain += [name for name in [*below["layers"], layer] if name not in chain]
    return chain


def _move_below(source: Path, target: Path, inside: Path) -> None:
    """Move a directory from one tree to the same place in another; the directories above it keep owner and mode."""
    for above in [*reversed(inside.parents)]:
        made = target / above
        if not made.exists():
            made.mkdir()
            status = (source / above).stat()
            os.chown(made, status.st_uid, status.st_gid)
            made.chmod(status.st_mode & 0o7777)
    (source / inside).rename(target / inside)


def has_layer(distro: str, layer: str) -> bool:
    """Whether a layer, and all that it lies on, is there for a distribution's present base root."""
    try:
        _chain(distro, [layer])
    except BoxError:
        return False
    return place("roots", roots.key(distro)).exists()


def clean() -> list[str]:
    """Remove boxes whose maker is gone (unless they were to be kept); returns their names."""
    removed = []
    for directory in sorted(place("boxes", "x").parent.iterdir()):
        state = read_json(directory / "state.json")
        if state is not None and state.get("owner") and not processes.alive(state["owner"]):
            Box(state).remove()
            removed.append(directory.name)
    return removed


def _unmount(merged: Path) -> None:
    for options in ([], ["-l"]):
        if not os.path.ismount(merged):
            return
        processes.run(["umount", *options, str(merged)], 20)
