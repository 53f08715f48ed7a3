#!/usr/bin/env python3
"""install.sh's work: build the package, install it (here, or in a box), wait until a model answers, say how to go on.

    install.py [--dry-run] [--remove] [--distro bookworm|trixie] [--limit MINUTES]

Exit status: 0 good, 1 it failed (what this run started is removed again), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from box import Box, BoxError, roots, wheels
from box.follow import QUESTION, Progress, follow, prove
from box.hostside import Host, Target, busy_ports, missing_packages, systemd_runs

ROOT = Path(__file__).resolve().parents[2]
DEB = ROOT / "dist/llm-appliance.deb"
NAME = "llm-appliance"
PORTS = (8080, 8081)
BUILD_TOOLS = ("debhelper", "dpkg-dev", "build-essential", "fakeroot", "python3", "python3-venv", "ca-certificates")
BOX_TOOLS = ("systemd-container", "mmdebstrap", "util-linux", "mount")
KEY_FILE = "/root/llm-appliance.key"
DROPIN = "/etc/llm-appliance/config.d/50-box.toml"
WHEELHOUSE = "/srv/llm-appliance/wheels"


def main(arguments: list[str]) -> int:
    """Do what the command line asks."""
    parser = argparse.ArgumentParser(prog="install.sh", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--remove", action="store_true", help="take the box (or the package) away again")
    parser.add_argument("--distro", default="bookworm", choices=roots.DISTROS, help="of the box")
    parser.add_argument(
        "--limit", type=float, default=30, metavar="MINUTES", help="give up after (default: %(default)g)"
    )
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    on_host = systemd_runs()
    if os.geteuid() != 0 and not args.dry_run:
        print("install.sh: must run as root: it installs packages", file=sys.stderr)
        return 1
    if args.remove:
        return _remove(on_host, args.dry_run)
    steps = Install(on_host, args.distro, args.limit * 60)
    return steps.dry_run() if args.dry_run else steps.run()


class Install:
    """The steps in order, and what must be undone when one fails."""

    def __init__(self, on_host: bool, distro: str, limit: float) -> None:
        self.on_host = on_host
        self.distro = distro
        self.progress = Progress(limit)
        self.target: Target | None = None
        self.made_box = False

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        """What there is to do, each with the words for it."""
        tools = missing_packages(BUILD_TOOLS if self.on_host else BUILD_TOOLS + BOX_TOOLS)
        wanted = f": {' '.join(tools)}" if tools else " (all there)"
        before: list[tuple[str, Callable[[], None]]] = [
            (f"checking that ports {' and '.join(map(str, PORTS))} are free", self.check),
            (f"tools from the package archive{wanted}", lambda: self.tools(tools)),
            ("building dist/llm-appliance.deb", self.build),
        ]
        machine: list[tuple[str, Callable[[], None]]] = []
        if not self.on_host:
            state = "there already, its package is upgraded" if _box() else "a fresh one"
            machine.append(
                (f"box {NAME}: Debian {self.distro} with systemd, on this host's network ({state})", self.boot)
            )
        return [
            *before,
            *machine,
            ("apt install ./llm-appliance.deb", self.install),
            ("vLLM's runtime and the default model (llm-runtime.service)", self.follow),
            ("an API key", self.key),
            ("a real question", self.prove),
        ]

    def dry_run(self) -> int:
        """Print the steps; nothing is touched."""
        where = "onto this machine: systemd is its PID 1" if self.on_host else "into a box: systemd is not PID 1 here"
        print(f"would install llm-appliance {where}")
        for number, (words, _) in enumerate(self.steps(), 1):
            print(f"  {number}. {words}")
        return 0

    def run(self) -> int:
        """Do the steps; on failure or Ctrl-C, remove a box that this run made."""
        try:
            steps = self.steps()
            for number, (words, act) in enumerate(steps, 1):
                self.progress.step(number, len(steps), words)
                act()
        except (BoxError, TimeoutError, subprocess.SubprocessError, OSError) as problem:
            self._undo(explain=True)
            print(f"\ninstall.sh: {problem}", file=sys.stderr)
            return 1
        except (KeyboardInterrupt, SystemExit) as stop:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print("\ninterrupted: cleaning up", file=sys.stderr, flush=True)
            self._undo(explain=False)
            return 130 if isinstance(stop, KeyboardInterrupt) else 143
        self._farewell()
        return 0

    # --- steps ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """A taken port is named with its owner before anything is started."""
        if self.on_host and Host().sh("systemctl is-active llm-gateway.socket", check=False).status == 0:
            return  # taken by ourselves
        present = _box()
        if present is not None and present.running:
            return
        for port, owner in busy_ports(PORTS):
            raise BoxError(f"port {port} on 127.0.0.1 is taken by {owner}: stop it first; nothing has been started")

    def tools(self, missing: list[str]) -> None:
        """Install what building (and the box) needs."""
        if missing:
            self._apt(["update"])
            self._apt(["install", "-y", "--no-install-recommends", *missing])

    def build(self) -> None:
        """Build the package from this tree."""
        self._quietly([str(ROOT / "packaging/build-deb.sh")], 600)

    def boot(self) -> None:
        """Boot the box, or take the one that is there."""
        present = _box()
        if present is not None:
            self.target = present
            present.boot()
            return
        self.made_box = True
        self.target = Box.start(self.distro, network="host", name=NAME, keep=True)

    def install(self) -> None:
        """The real `apt install` with its dependencies; wheels that this host has are offered first."""
        target = self.target = self.target or Host()
        if isinstance(target, Box):
            wheels.offer(target, WHEELHOUSE, DROPIN)
            target.put(DEB, "/root/llm-appliance.deb")
            deb = "/root/llm-appliance.deb"
        else:
            deb = str(DEB)
        apt = "apt-get -o DPkg::Lock::Timeout=120"
        target.sh(f"{apt} -qq update && {apt} install -y --reinstall --allow-downgrades {deb}", timeout=600)

    def follow(self) -> None:
        """Show what the runtime and the engines do, until a model serves."""
        target = self.target
        assert target is not None

        def keep() -> None:
            if isinstance(target, Box):
                wheels.keep(target)

        follow(target, self.progress, keep)

    def key(self) -> None:
        """Create a key, once; kept in a file of root's for the next run."""
        target = self.target
        assert target is not None
        if not target.path(KEY_FILE).exists():
            made = target.sh("llm-appliance keys create install --json", timeout=30).out
            with open(os.open(target.path(KEY_FILE), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(json.loads(made)["key"] + "\n")

    def prove(self) -> None:
        """Ask the served model for the capital of France."""
        assert self.target is not None
        self.progress.tell(f"it says: {prove(self._key(), PORTS[0])}")

    # --- parts ---------------------------------------------------------------------------------------------------

    def _key(self) -> str:
        assert self.target is not None
        return self.target.path(KEY_FILE).read_text().strip()

    def _apt(self, words: list[str]) -> None:
        self._quietly(["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", *words], 600)

    def _quietly(self, command: list[str], limit: float) -> None:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        with self.progress.log(command[0]) as log:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=limit,
                check=False,
            )
            log.seek(0)
            tail = log.read()[-3000:].decode(errors="replace")
        if done.returncode != 0:
            raise BoxError(f"{' '.join(command)} ended with status {done.returncode}:\n{tail}")

    def _undo(self, explain: bool) -> None:
        target = self.target if self.target is not None else (_box() if self.made_box else None)
        if target is None:
            return
        if explain:
            print(target.sh("llm-appliance status; journalctl -b -n 30 --no-pager -u 'llm-*'", check=False).out)
        if self.made_box and isinstance(target, Box):
            target.remove()
            print(f"box {NAME} removed again", file=sys.stderr)

    def _farewell(self) -> None:
        key = self._key()
        messages = [{"role": "user", "content": QUESTION}]
        body = json.dumps({"model": "smollm2-135m", "temperature": 0, "messages": messages})
        print(
            f"\nllm-appliance serves at http://127.0.0.1:{PORTS[0]}   ({self.progress.elapsed():.0f} s)\n\n"
            f"  API key   {key}\n\n"
            f"  curl http://127.0.0.1:{PORTS[0]}/v1/chat/completions -H 'Authorization: Bearer {key}' \\\n"
            f"    -H 'Content-Type: application/json' -d '{body}'\n"
        )
        if not self.on_host:
            print(f"  enter the box   packaging/box/box.py sh {NAME}      (then: llm-appliance status)")
        else:
            print("  look            llm-appliance status; systemctl status llm-gateway; journalctl -u 'llm-*'")
        print("  configure       /etc/llm-appliance/config.toml, then: llm-appliance apply")
        print("  remove          ./install.sh --remove")


def _box() -> Box | None:
    try:
        return Box.attach(NAME)
    except BoxError:
        return None


def _remove(on_host: bool, dry_run: bool) -> int:
    if on_host:
        print("apt-get purge llm-appliance" + (" (would be run)" if dry_run else ""))
        return 0 if dry_run else subprocess.run(["apt-get", "-y", "purge", "llm-appliance"], check=False).returncode
    present = _box()
    if present is None:
        print(f"there is no box {NAME}")
    elif dry_run:
        print(f"would stop and delete box {NAME}")
    else:
        present.stop()
        present.remove()
        print(f"box {NAME} is gone; base roots and wheels stay in {present.directory.parent.parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
