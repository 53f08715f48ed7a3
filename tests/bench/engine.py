"""The fake engine as a process, and the orders that it takes."""

from __future__ import annotations

import json
import subprocess
from types import TracebackType
from typing import Any

from .programs import program


class Engine:
    """Listens on `ports` until it is closed, or until the process that made it is gone."""

    def __init__(self, ports: int = 1) -> None:
        self._process = subprocess.Popen(
            [str(program("engine")), "--ports", str(ports)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ports: list[int] = self._answer()["ports"]

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def pace(self, first_ms: float = 0, gap_ms: float = 0, *, in_step: bool = False) -> None:
        """Milliseconds to the first token and between two; `in_step`: all streams at the same moments."""
        self._order(f"set first_us={first_ms * 1000:.0f} gap_us={gap_ms * 1000:.0f} in_step={in_step:d}")

    def misbehave(self, fault: str, at: int) -> None:
        """From now on lose, double, swap (with its neighbour), alter or cut after a token of each stream."""
        self._order(f"set fault={fault} fault_at={at}")

    def reset(self) -> None:
        """All counters to zero, but for those of its metrics: a gateway would take it for started again."""
        self._order("reset")

    def stats(self) -> dict[str, int]:
        """What was counted."""
        return self._order("stats")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _order(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(f"the engine does not understand {line!r}: {answer['error']}")
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine ended with {self._process.wait(5)}")
        answer: dict[str, Any] = json.loads(line)
        return answer
