"""Clients as a process: they load a proxy, check every token, and report."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from .programs import program

Report = dict[str, Any]
PAUSE = 0.2  # seconds between two looks at a load that runs
TOKEN_FAULTS = ("missing", "doubled", "reordered", "wrong")
FAULTS = ("refused", "unconnected", "reset", "late", "misframed", "unended", "unasked", *TOKEN_FAULTS)


class Load:
    """Starts at once; options as tools/request.c has them, with `_` for `-`."""

    def __init__(self, port: int, keys: Path | None = None, **options: int) -> None:
        words = [str(program("load")), "--port", str(port)]
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        if keys is not None:
            words += ["--keys", str(keys)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Load:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def wait(self, limit: float, meanwhile: Callable[[], object] = lambda: None) -> Report:
        """Its report, when it has ended; `meanwhile` is called now and then."""
        for _ in range(int(limit / PAUSE)):
            try:
                self._process.wait(PAUSE)
                return self.report()
            except subprocess.TimeoutExpired:
                meanwhile()
        raise RuntimeError(f"the load did not end within {limit:g} s")

    def report(self) -> Report:
        """What it reports when its last request has ended; with `hold` its connections stay open."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the load ended with {self._process.wait(5)}")
        report: Report = json.loads(line)
        return report

    def running(self) -> bool:
        """Whether its process lives."""
        return self._process.poll() is None

    def end(self) -> None:
        """Close what it holds; end it where it still runs."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def load(port: int, keys: Path | None = None, *, limit: float = 120, **options: int) -> Report:
    """A whole run."""
    with Load(port, keys, **options) as running:
        return running.wait(limit)


def faults(report: Mapping[str, Any]) -> dict[str, int]:
    """All that was not as it should be, by kind."""
    return {kind: report[kind] for kind in FAULTS if report[kind]}
