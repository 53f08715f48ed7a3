"""The builder of runtimes as a process on a machine of its own, with wheels of a few kilobytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.fakewheels import Wheel

UV = str(Path(sys.executable).parent / "uv")
PYTHON = os.path.realpath(sys.executable)
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
BALLAST = 3_000_000
LIMIT = 60.0
NOWHERE = "http://127.0.0.1:9"  # nothing listens on the discard port


@dataclass
class Bench:
    """One machine of its own: configuration, state, wheels."""

    root: Path
    wheels: dict[str, Wheel]

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def runtimes(self) -> Path:
        return self.state / "runtimes"

    def configure(self, text: str) -> None:
        (self.root / "config.toml").write_text(text)

    def start(self, *words: str, uv: str = UV, more: Mapping[str, str] = {}) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "appliance", "runtime-build", "--config", str(self.root / "config.toml")]
        command += ["--state-root", str(self.state), "--run-root", str(self.root / "run"), "--uv", uv]
        command += ["--locks", str(self.root / "locks"), "--python", PYTHON, *words]
        env = {"PATH": os.environ["PATH"], "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1"}
        env |= {"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0"}  # nobody is there: asking again only takes time
        return subprocess.Popen(command, env=env | more, stderr=subprocess.PIPE, text=True)

    def build(self, *words: str, status: int = 0, uv: str = UV) -> tuple[dict[str, Any], str]:
        """Run to the end; (state file, what was logged)."""
        process = self.start(*words, uv=uv)
        _, log = process.communicate(timeout=LIMIT)
        assert process.returncode == status, log
        return self.told(), log

    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.root / "run/runtime/state.json").read_text())
        return told


def local(bench: Bench, more: str = "") -> str:
    """A configuration whose every package is in the wheelhouse and whose index is dead."""
    return (
        f'[runtime]\nwheelhouse = "{bench.root}/house"\nindex_url = "{NOWHERE}/simple"\ndevice = "cpu"\n{more}'
        f'[[engine]]\nmodel = "{bench.root}/model"\n'
    )
