"""vLLM's processes: started in a session of their own, adopted when their parents die, and all gone at the end.

The launcher is a child subreaper: whatever vLLM leaves behind (an engine core whose API process was killed lives on for
minutes with all its memory) becomes the launcher's own child, so the launcher's descendants are exactly what is left.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Collection, Iterable, Sequence

from appliance import clock, names
from appliance.host.proc import Process, read_process

_PR_SET_CHILD_SUBREAPER = 36
_TO_DEFAULT = (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)


def become_subreaper() -> None:
    """From now on orphans below this process become its children. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def spawn(argv: Sequence[str], env: dict[str, str], output: int) -> int:
    """Start a program in its own session, standard output and error to `output`; its pid. Raises OSError."""
    return os.posix_spawn(
        argv[0],
        list(argv),
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ],
        setsid=True,
        setsigdef=_TO_DEFAULT,
        setsigmask=(),
    )


def reap() -> dict[int, int]:
    """Wait status of every child that has ended; does not block."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def descendants(of: int | None = None, proc: str = "/proc") -> tuple[Process, ...]:
    """All living processes below `of` (this process when None); zombies are not living."""
    root = os.getpid() if of is None else of
    children: dict[int, list[Process]] = {}
    for entry in os.scandir(proc):
        if entry.name.isdigit() and (found := read_process(int(entry.name), proc)) is not None:
            children.setdefault(found.parent, []).append(found)
    below: list[Process] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            waiting.append(child.pid)
            if child.state not in "ZX":
                below.append(child)
    return tuple(below)


def vllm() -> tuple[Process, ...]:
    """vLLM's own processes below this one: without those that only stand by to be forked."""
    return tuple(process for process in descendants() if process.comm != names.STANDBY_PROCESS)


def send(signal_number: int, pids: Iterable[int]) -> None:
    """A signal to each process; one that is gone already has had its wish."""
    for pid in pids:
        try:
            os.kill(pid, signal_number)
        except ProcessLookupError:
            continue


def end(
    grace_s: float, limit_s: float, pause: Callable[[float], None], spared: Collection[int] = ()
) -> tuple[Process, ...]:
    """End every descendant but the `spared`: SIGTERM, after `grace_s` SIGKILL. Returns what is left after `limit_s`.

    Blocks until then; `pause(seconds)` is called meanwhile and must reap what ended. SIGTERM comes first because a
    process killed in the middle of a driver call can take the driver with it. Stopped ones are killed at once: they
    cannot answer.
    """

    def living() -> tuple[Process, ...]:
        return tuple(process for process in descendants() if process.pid not in spared)

    begun = clock.monotonic()
    left = living()
    send(signal.SIGTERM, (process.pid for process in left))
    while left:
        waited = clock.monotonic() - begun
        if waited >= limit_s:
            return left
        send(signal.SIGKILL, (process.pid for process in left if waited >= grace_s or process.state in "Tt"))
        pause(0.05)
        left = living()
    return ()
