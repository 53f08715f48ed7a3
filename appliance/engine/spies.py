"""py-spy, where the runtime has it: the Python stacks of living processes, without stopping them."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.host.proc import Process

from . import tree
from .processes import title

SPY_S = 5.0
SPY_LIMIT = 1 << 20
AT_ONCE = 16


@dataclass(slots=True)
class _Spy:
    pid: int  # of py-spy
    title: str
    text: bytes = b""


class Spies:
    """One py-spy for each process, in the launcher's poll loop; `until` is when the last one has had its time."""

    def __init__(self, program: str, poll: select.poll, targets: Sequence[Process], now: float) -> None:
        self._poll = poll
        self._open: dict[int, _Spy] = {}
        self._done: list[str] = []
        self.until = now + SPY_S
        if os.access(program, os.X_OK):
            for process in targets[:AT_ONCE]:
                self._start(program, process)

    @property
    def pids(self) -> frozenset[int]:
        """The pids of py-spy's own processes."""
        return frozenset(spy.pid for spy in self._open.values())

    @property
    def running(self) -> bool:
        """Whether one has not ended yet."""
        return bool(self._open)

    @property
    def text(self) -> str:
        """What they said, in the order of their ends."""
        return "\n".join(self._done)

    def owns(self, descriptor: int) -> bool:
        """Whether a descriptor that the poll named is one of ours."""
        return descriptor in self._open

    def hear(self, descriptor: int) -> None:
        """Read what came; the end of the output is the end of the spy."""
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        spy = self._open[descriptor]
        spy.text += data[: max(SPY_LIMIT - len(spy.text), 0)]
        if not data:
            self._end(descriptor, "")

    def end(self) -> None:
        """Kill those that run still."""
        for descriptor, spy in list(self._open.items()):
            tree.send(signal.SIGKILL, (spy.pid,))
            self._end(descriptor, f"py-spy did not end within {SPY_S:.0f} s\n")

    def _start(self, program: str, process: Process) -> None:
        ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(theirs, True)
        try:
            # --nonblocking: it reads memory and stops nobody, which takes no right to trace.
            argv = (program, "dump", "--nonblocking", "--pid", str(process.pid))
            spy = tree.spawn(argv, {"PATH": "/usr/bin:/bin"}, theirs)
        except OSError:
            os.close(ours)
            return
        finally:
            os.close(theirs)
        self._open[ours] = _Spy(spy, title(process))
        self._poll.register(ours, select.POLLIN)

    def _end(self, descriptor: int, fault: str) -> None:
        spy = self._open.pop(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        self._done.append(f"{spy.title}\n{spy.text.decode(errors='replace')}{fault}")
