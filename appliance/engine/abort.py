"""Ending vLLM's processes so that each tells where it was: SIGABRT makes Python's fault handler print all stacks.

All are frozen first: a process that sees its neighbour die begins to end itself, and what it prints then is no
evidence. Then one after the other is told to abort and let go; so the stacks do not mix, and each is known to be of the
process that was let go. The main process comes last: the others know more.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from appliance.host.proc import PROC, Process, read_process

from . import tree
from .processes import title

EACH_S = 1.5  # a Python with hundreds of threads prints for some tenths of a second
ALL_S = 8.0
TEXT_LIMIT = 2 << 20
LOOK_S = 0.02  # between two looks at the process that is ending


class Abort:
    """One abort of a tree. `step` is called every `LOOK_S` until it returns False; `hear` gets what is printed."""

    def __init__(self, targets: Sequence[Process], main: int, now: float, proc: str = PROC) -> None:
        self.targets = sorted(targets, key=lambda process: (process.pid == main, process.pid))
        self._proc = proc
        self._left = list(self.targets)
        self._current: Process | None = None
        self._until = now
        self._end = now + ALL_S
        self._text: list[str] = []
        self._size = self._size_before = 0
        self._gone = False  # whether the last look found the present one gone
        tree.send(signal.SIGSTOP, (process.pid for process in self.targets))

    def hear(self, line: str) -> None:
        """A line that the process which was let go has printed (or that was on its way)."""
        self._add(line)

    def step(self, now: float) -> bool:
        """Look whether the present one is gone and let the next one go; False when all are gone, or the time is.

        One that has gone is waited for once more, until nothing comes: its last lines may not have been read yet.
        """
        lives = self._current is not None and self._lives(self._current)
        if self._current is not None and now < min(self._until, self._end):
            settled = not lives and self._gone and self._size == self._size_before
            self._gone, self._size_before = not lives, self._size
            if not settled:
                return True
        if self._current is not None and lives:
            self._add(f"--- pid {self._current.pid} did not end within {EACH_S} s; its stacks may be missing")
        self._current = None
        if now >= self._end and self._left:
            self._add(f"--- no time was left for {len(self._left)} processes")
            self._let_go([process.pid for process in self._left])
            self._left.clear()
        if not self._left:
            return False
        self._current, self._gone = self._left.pop(0), False
        self._until = now + EACH_S
        self._add(title(self._current))
        self._let_go([self._current.pid])
        return True

    @property
    def text(self) -> str:
        """What was printed, by process."""
        return "\n".join(self._text) + "\n"

    def _let_go(self, pids: Sequence[int]) -> None:
        """The abort is delivered when the stop ends."""
        tree.send(signal.SIGABRT, pids)
        tree.send(signal.SIGCONT, pids)

    def _lives(self, process: Process) -> bool:
        found = read_process(process.pid, self._proc)
        return found is not None and found.state not in "ZX"

    def _add(self, line: str) -> None:
        if self._size < TEXT_LIMIT:
            self._text.append(line)
            self._size += len(line) + 1
