"""A real launcher with a fake vLLM below it: its configuration, its directories, its notification socket."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.engine.tree import descendants

from .waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60.0
# The launcher's own `main` with limits that suit a test; the start's is the engine's, as always. Where the second word
# is a path, a stand-in stands by, and its pid is written there.
PROGRAM = """
import sys
from appliance.engine.launcher import Limits
from appliance.engine.main import main
from tests.support.fakestandby import Standby
limits, path, *arguments = sys.argv[1:]
sys.exit(main(arguments, Limits(**eval(limits)), *([lambda start, limits: Standby(path)] if path else [])))
"""

VLLM = """
import runpy, sys
if __name__ == "__main__":
    runpy.run_module("tests.support.fakevllm", run_name="__main__")
"""


class Manager:
    """The service manager's end of the notification socket: takes every message as it comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        while data := self._socket.recv(65536).decode():
            if data != "BARRIER=1":
                self.messages.append(dict(line.split("=", 1) for line in data.splitlines()))

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", str(self.path))
        self._thread.join()
        self._socket.close()


@dataclass
class Stage:
    """Directories of one engine `chat`, and its launcher once started."""

    home: Path
    manager: Manager
    process: subprocess.Popen[bytes] | None = None

    @property
    def directory(self) -> Path:
        return self.home / "run/engines/chat"

    @property
    def output(self) -> str:
        return (self.home / "output").read_text()

    def configure(self, script: str = "", *, keys: str = "", vllm: str = "", env: str = "") -> None:
        (self.home / "config.toml").write_text(
            f'[models]\ndirectory = "{self.home}/models"\n[[engine]]\nname = "chat"\n{keys}\n'
            f'[engine.env]\nFAKE_VLLM = "{script}"\n{env}\n[engine.vllm]\n{vllm}\n'
        )

    def import_modules(self, body: str = "") -> str:
        """Give the runtime a Python and vLLM's modules, whose import does `body`; the environment for it, in TOML."""
        site, runtime = self.home / "site", self.home / "runtime/bin"
        (site / "vllm/entrypoints/cli").mkdir(parents=True)
        (site / "vllm/entrypoints/cli/main.py").write_text(body)
        (runtime / "python").symlink_to(sys.executable)
        (runtime / "vllm").write_text(f"#!{runtime}/python\n{VLLM}")
        return f'PYTHONPATH = "{site}:{ROOT}:{sysconfig.get_path("purelib")}"'

    def start(self, *, standby: bool = False, unit: str = "", **limits: float) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("LLM_", "VLLM_"))}
        environment |= {"NOTIFY_SOCKET": str(self.manager.path), "INVOCATION_ID": unit}
        settled = {"start": 60.0, "death": 1.0, "stop": 2.0, "closing": 0.3, "orphan": 0.5, "word": 0.3} | limits
        with open(self.home / "output", "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, repr(settled), str(self.home / "standby") if standby else "", "chat",
                 "--config", str(self.home / "config.toml"), "--run", str(self.home / "run"),
                 "--cache", str(self.home / "cache"), "--runtime", str(self.home / "runtime")],
                cwd=ROOT, env=environment, stdout=output, stderr=output,
            )  # fmt: skip

    def read(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads((self.directory / name).read_text())
        except (OSError, ValueError):
            return {}
        assert isinstance(value, dict)
        return value

    def read_list(self, name: str) -> list[str]:
        value = json.loads((self.directory / name).read_text())
        assert isinstance(value, list)
        return value

    def until(self, phase: str) -> dict[str, Any]:
        """The state once the phase is reached."""

        def reached() -> dict[str, Any]:
            state = self.read("state.json")
            return state if state.get("phase") == phase else {}

        return wait_until(reached, LIMIT, f"phase {phase}; state {self.read('state.json')}", pause=0.02)

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(LIMIT)

    def pids(self) -> dict[str, int]:
        return {name: int(pid) for name, pid in self.read("pids").items()}


@contextlib.contextmanager
def connected(stage: Stage) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LIMIT)
        connection.connect(str(stage.directory / "launcher/evidence.sock"))
        yield connection


def ask(stage: Stage, line: bytes | dict[str, object]) -> tuple[dict[str, str], dict[str, Any]]:
    """The parts of an answer, and its last line; ({}, {}) when the launcher only hung up."""
    parts: dict[str, str] = {}
    with connected(stage) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        for raw in connection.makefile("rb"):
            value = json.loads(raw)
            if value.get("done"):
                return parts, value
            parts[value["part"]] = parts.get(value["part"], "") + value["text"]
    return parts, {}


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    """A stage in a directory with a short name: a socket's path has 107 bytes at most."""
    home = Path(tempfile.mkdtemp(prefix="eng-"))
    (home / "runtime/bin").mkdir(parents=True)
    (home / "runtime/.complete").write_text('{"v": 1, "version": "0.32.0", "device": "cpu"}')
    vllm = home / "runtime/bin/vllm"
    vllm.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m tests.support.fakevllm "$@"\n')
    vllm.chmod(0o755)
    (home / "models/builtin/smollm2-135m").mkdir(parents=True)
    (home / "models/builtin/smollm2-135m/config.json").write_text("{}")
    stage = Stage(home, Manager(home / "notify"))
    try:
        yield stage
    finally:
        pids = set(stage.pids().values())
        if stage.process is not None and stage.process.poll() is None:
            pids |= {process.pid for process in descendants(stage.process.pid)}  # a stand-in that stands by too
            stage.process.kill()
            stage.process.wait(LIMIT)
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
        stage.manager.close()
        shutil.rmtree(home)
