"""Commands as users give them: a process of its own on a stage."""

from __future__ import annotations

import subprocess
import sys
import threading

from tests.support.stage import LIMIT, ROOT, Stage


def call(stage: Stage, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """One command; nothing it prints may be a traceback or, in a pipe, coloured."""
    done = subprocess.run(
        [sys.executable, "-m", "appliance", "--config", str(stage.config), *words],
        env=stage.environment | {"TERM": "xterm", "COLUMNS": "80"} | more,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT * 2,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout
    assert "\x1b" not in done.stdout
    return done


class Calling(threading.Thread):
    """A command that runs beside the test."""

    def __init__(self, stage: Stage, *words: str) -> None:
        super().__init__()
        self.done: subprocess.CompletedProcess[str] | None = None
        self._call = lambda: call(stage, *words)
        self.start()

    def run(self) -> None:
        self.done = self._call()

    def result(self) -> subprocess.CompletedProcess[str]:
        self.join(LIMIT * 2)
        assert self.done is not None
        return self.done
