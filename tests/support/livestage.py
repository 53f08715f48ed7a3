"""A supervisor over real launchers with a fake vLLM below them: a stand-in for PID 1 starts them and sees them end.

The control group of an engine is a directory of the stage with a `cgroup.procs` that the stand-in keeps.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from appliance.engine.tree import descendants
from appliance.host import files
from appliance.host.incidents import Bundle, Store
from tests.support.enginestage import LIMIT, PROGRAM, ROOT, alive
from tests.support.stage import Stage, unit

LIMITS = {"start": 60.0, "death": 1.0, "stop": 2.0, "closing": 0.3, "orphan": 0.5}
CONFIG = """
[runtime]
device = "cpu"
[models]
directory = "{home}/state/models"
[[engine]]
name = "chat"
gpus = []
{keys}
[engine.env]
FAKE_VLLM = "{script}"
{env}
"""


class LiveStage(Stage):
    """One engine `chat`; `home` has a short name, for sockets' sake. With a `standby` its launchers may go on after a
    crash, for so many seconds."""

    def __init__(
        self, home: Path, script: str = "tp=2", keys: str = "", env: str = "", standby: float | None = None
    ) -> None:
        self.home = home
        self._limits = LIMITS if standby is None else LIMITS | {"word": standby}
        self._standby = "" if standby is None else str(home / "standby")
        self.text_of_config = CONFIG.format(home=home, script=script, keys=keys, env=env)
        super().__init__(home, self.text_of_config)
        self._bin = home / "bin"
        self._bin.mkdir()
        vllm = self.state / "runtimes/current/bin/vllm"
        vllm.parent.mkdir(parents=True)
        vllm.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m tests.support.fakevllm "$@"\n')
        vllm.chmod(0o755)
        model = self.state / "models/builtin/smollm2-135m"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        (model / ".complete").write_text('{"v": 1}')
        self.group = home / "group"
        self.group.mkdir()
        self._launcher: subprocess.Popen[bytes] | None = None
        self._launched = ""
        self._pids: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._manage, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "PATH": f"{self._bin}:{os.environ['PATH']}"}

    def program(self, name: str, script: str) -> None:
        """Put a program where the supervisor finds it."""
        path = self._bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    @property
    def launcher(self) -> int:
        assert self._launcher is not None
        return self._launcher.pid

    def pids(self) -> dict[str, int]:
        """vLLM's processes by name, of the present run."""
        return {name: int(str(pid)) for name, pid in self._read("pids").items()}

    def served(self, run: int) -> None:
        """Until the run of that number serves."""
        self.wait(lambda: self.starts() >= run and self._phase == "serving", f"run {run} serves")
        self.wait_state("serving")
        self.wait(lambda: not self.case(), "nothing is being taken down")

    def case(self) -> dict[str, Any]:
        return dict(files.read_json(self.state / "supervisor/recoveries/chat") or {})

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        return Store(str(self.state / "incidents")).all()

    def text(self, name: str) -> str:
        """A file of the only incident."""
        (bundle,) = self.bundles
        return (self.state / "incidents" / bundle.incident.id / name).read_text()

    def end(self) -> None:
        """No process is left."""
        self.close()
        self._over.set()
        self._thread.join(LIMIT)
        for pid in filter(alive, {*self._pids, *([self.launcher] if self._launcher is not None else [])}):
            os.kill(pid, signal.SIGKILL)
        if self._launcher is not None:
            self._launcher.wait(LIMIT)

    @property
    def state_of_engine(self) -> dict[str, Any]:
        """What the launcher says of itself."""
        return self._read("state.json")

    @property
    def _phase(self) -> object:
        return self._read("state.json").get("phase")

    def _read(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads((self.run / "engines/chat" / name).read_text())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    # --- PID 1 ---

    def _manage(self) -> None:
        while not self._over.is_set():
            self._turn()
            time.sleep(0.02)

    def _turn(self) -> None:
        seen = self.systemd.get(unit())
        if self._launcher is not None:
            below = {process.pid for process in descendants(self._launcher.pid)}
            self._pids |= {*below, self._launcher.pid}
            living = sorted(filter(alive, self._pids))
            files.replace(self.group / "cgroup.procs", "".join(f"{pid}\n" for pid in living).encode())
            status = self._launcher.poll()
            if status is not None and len(living) == 0:
                self._launcher = None
                if seen["InvocationID"] == self._launched:
                    self._report(status)
                return
            if status is None and (seen["ActiveState"] == "inactive" or seen["InvocationID"] != self._launched):
                self._launcher.terminate()  # a stop, or the first half of a restart
            if status is None and self._phase == "serving" and seen["ActiveState"] == "activating":
                self.systemd.set(unit(), ActiveState="active", SubState="running")
        elif seen["SubState"] == "start" and seen["InvocationID"] != self._launched:
            self._launched = seen["InvocationID"]
            self._launch()

    def _launch(self) -> None:
        (self.run / "engines/chat/state.json").unlink(missing_ok=True)
        environment = {key: value for key, value in self.environment.items() if key != "NOTIFY_SOCKET"}
        environment["INVOCATION_ID"] = self._launched
        with open(self.home / "output", "ab") as output:
            self._launcher = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, repr(self._limits), self._standby, "chat", "--config", str(self.config),
                 "--run", str(self.run), "--cache", str(self.home / "cache"),
                 "--runtime", str(self.state / "runtimes/current")],
                cwd=ROOT, env=environment, stdout=output, stderr=output,
            )  # fmt: skip
        self.systemd.set(unit(), ControlGroup=f"/../../..{self.group}", MainPID=self._launcher.pid)

    def _report(self, status: int) -> None:
        if status == 0:
            self.systemd.set(unit(), ActiveState="inactive", SubState="dead", Result="success", ControlGroup="")
        elif status > 0:
            self.systemd.die(unit(), status)
        else:
            self.systemd.set(unit(), ActiveState="activating", SubState="auto-restart", Result="signal",
                             ExecMainCode=2, ExecMainStatus=-status)  # fmt: skip
        self.systemd.set(unit(), ControlGroup="")


@contextmanager
def live(script: str = "tp=2", **more: Any) -> Iterator[LiveStage]:
    """A stage that leaves no process and no file behind."""
    home = Path(tempfile.mkdtemp(prefix="live-"))
    stage = LiveStage(home, script, **more)
    try:
        yield stage
    finally:
        stage.end()
        shutil.rmtree(home)
