"""A box with the appliance in it, as its tests see it: its command line, its processes, and clients in its network."""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from box import Box, Result

from appliance import names
from tests.support.layers import KEY_FILE, ready
from tests.support.waiting import wait_until

BASE = "http://127.0.0.1:8080"
CHAT = "smollm2-135m"
EMBED = "minilm-l6-v2"
PARIS = "What is the capital of France?"
SERVE_LIMIT = 180.0  # an engine alone takes 30 s; two cores are shared
SUPPORT = Path(__file__).resolve().parent


class Appliance:
    """One installed appliance. Everything that waits has a limit."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.key = box.read(KEY_FILE).strip()

    # --- the command line and what it shows ------------------------------------------------------------------------

    def cli(self, arguments: str, check: bool = True, timeout: float = 60) -> Result:
        """Run `llm-appliance ARGUMENTS` as root."""
        return self.box.sh(f"llm-appliance {arguments}", timeout=timeout, check=check)

    def status(self) -> dict[str, Any]:
        """`status --json`."""
        value: dict[str, Any] = json.loads(self.cli("status --json", check=False).out)
        return value

    def engine(self, name: str = "default") -> dict[str, Any]:
        """What the engine's launcher says of itself; empty while there is nothing."""
        try:
            value: dict[str, Any] = json.loads(self.box.read(f"/run/llm-appliance/engines/{name}/state.json"))
        except (OSError, ValueError):
            return {}
        return value

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit."""
        out = self.box.sh(f"systemctl show -p {','.join(properties)} {unit}").out
        return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)

    def journal(self, arguments: str) -> str:
        """Lines of the journal of this boot, all until now: journald on a busy machine is behind, and is waited for."""
        return self.box.sh(f"journalctl --sync; journalctl -b --no-pager {arguments}", check=False).out

    def processes(self, unit: str) -> dict[str, int]:
        """Name -> pid (the box's own) of the processes in a unit."""
        group = self.show(unit, "ControlGroup")["ControlGroup"]
        members = shlex.quote(f"/sys/fs/cgroup{group}/cgroup.procs")  # systemd's names hold backslashes
        command = f"for p in $(cat {members}); do echo $p $(cat /proc/$p/comm); done 2>/dev/null"
        found = {}
        for line in self.box.sh(command, check=False).out.splitlines():
            pid, _, name = line.partition(" ")
            if name:
                found[name] = int(pid)
        return found

    @contextlib.contextmanager
    def short_watchdog(self, seconds: int = 8) -> Iterator[None]:
        """The gateway's watchdog waits so long, from a restart on that is made here; then as it was installed."""
        where = f"/etc/systemd/system/{names.GATEWAY_UNIT}.d"
        again = f"systemctl daemon-reload; systemctl restart {names.GATEWAY_UNIT}"
        self.box.write(f"{where}/90-test.conf", f"[Service]\nWatchdogSec={seconds}\n")
        self.box.sh(again, timeout=120)
        try:
            yield
        finally:
            self.box.sh(f"rm -r {where}; {again}", timeout=120)

    # --- waiting -----------------------------------------------------------------------------------------------------

    def wait_ready(self, limit: float = SERVE_LIMIT) -> None:
        """Until /readyz says 200."""
        wait_until(lambda: ready(self.box), limit, "/readyz says 200", pause=0.5)

    def wait_serving(self, name: str, limit: float = SERVE_LIMIT) -> dict[str, Any]:
        """Until an engine's launcher says `serving`; its state."""
        wait_until(lambda: self.engine(name).get("phase") == "serving", limit, f"{name} serves", pause=0.5)
        return self.engine(name)

    def wait_answer(self, limit: float = SERVE_LIMIT, model: str = CHAT) -> dict[str, Any]:
        """Until a new question is answered by itself, without anybody's help; the answer."""

        def answer() -> dict[str, Any] | None:
            said = self.sdk("chat", PARIS, model=model)
            return said if said["error"] is None else None

        return wait_until(answer, limit, f"a new request to {model} is answered", pause=1) or {}

    # --- clients -----------------------------------------------------------------------------------------------------

    def sdk(self, call: str, text: str, model: str = CHAT, tokens: int = 40, key: str = "") -> dict[str, Any]:
        """One call with the OpenAI SDK from outside, through the box's network: the last line that it prints."""
        out = self.box.outside(self._sdk_argv(call, text, model, tokens, key), timeout=180).out
        value: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return value

    def sdk_tour(self, *only: str, model: str = CHAT) -> dict[str, Any]:
        """What `sdktour.py` says: many calls with both SDKs from outside."""
        argv = [sys.executable, str(SUPPORT / "sdktour.py"), BASE, self.key, model, *only]
        value: dict[str, Any] = json.loads(self.box.outside(argv, timeout=300).out.strip().splitlines()[-1])
        return value

    @contextlib.contextmanager
    def streaming(self, tokens: int = 1500, model: str = CHAT, text: str = "") -> Iterator[Stream]:
        """A stream with the SDK that has brought at least three deltas, and will bring exactly so many tokens.

        Without a `text` it is another request each time: one that saw two crashes would be refused.
        """
        call = self._sdk_argv("stream", text or _another(), model, tokens, "")
        argv = self.box.outside_argv([*call, "--all-tokens"])
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            stream = Stream(process)
            stream.read_deltas(3)
            yield stream
        finally:
            process.kill()
            process.communicate(timeout=20)

    def curl(self, route: str, *options: str, key: str | None = None, limit: float = 60) -> tuple[int, str]:
        """Status and body of a request with plain curl in the box."""
        words = " ".join(options)
        head = f"-H 'Authorization: Bearer {self.key if key is None else key}'" if key != "" else ""
        command = f"curl -s -m {limit:g} -w '\\n%{{http_code}}' {head} {words} {BASE}{route}"
        body, _, status = self.box.sh(command, timeout=limit + 10, check=False).out.rpartition("\n")
        return int(status or 0), body

    def _sdk_argv(self, call: str, text: str, model: str, tokens: int, key: str) -> list[str]:
        script = [sys.executable, str(SUPPORT / "sdkclient.py"), call, "--base", f"{BASE}/v1"]
        return [*script, "--key", key or self.key, "--model", model, "--text", text, "--tokens", str(tokens)]


_numbers = itertools.count(1)


def _another() -> str:
    """A text that was not sent before."""
    return f"Count from {next(_numbers)} to one thousand."


class Stream:
    """A running streaming client."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def read_deltas(self, count: int) -> None:
        """Until so many deltas have come; the test's own time limit bounds it."""
        assert self.process.stdout is not None
        for _ in range(count):
            line = self.process.stdout.readline()
            assert '"delta"' in line, f"no stream: {line or 'the client ended'}"

    def end(self, limit: float) -> dict[str, Any]:
        """The client's last line, within `limit` seconds: a stream must end, well or badly."""
        out, _ = self.process.communicate(timeout=limit)
        value: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return value
