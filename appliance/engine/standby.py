"""The launcher's side of `runtime/inside/standby.py`: a process that has vLLM's modules, and becomes vLLM when asked.

It is the launcher's child, outlives a run of vLLM, and is closed by whoever began it. vLLM's main process, forked from
it, is the launcher's child as well. A start that it is not fit for is started as if there were none: `Unfit` says why.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from appliance import clock
from appliance.wire.vllmimports import LOADING, OPENMP, imports

from . import tree

PROGRAM = Path(__file__).resolve().parents[1] / "runtime/inside/standby.py"
READY_S = 90.0  # the imports take 7 s of a core, and wait for a slow disk the first time
START_S = 30.0  # a fork takes milliseconds
END_S = 2.0
_PIECE = 1 << 16
_ENDLESS = 1 << 20


class Unfit(Exception):
    """vLLM cannot be started from here, for that reason."""


class Standby:
    """One such process. Nothing of it raises but `start`."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], loading: Mapping[str, str],
                 limit_s: float = READY_S) -> None:  # fmt: skip
        """`argv` without the socket, which becomes its first argument; `loading` is laid over `env` for the imports."""
        self._env = dict(env)
        self._fault, self._ready = "", False
        self._heard = b""
        self._pid = 0
        self._begun = clock.monotonic()
        self._until = self._begun + limit_s
        self._socket, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        try:
            tree.become_subreaper()
            # Its lines go where the launcher's own go: it says next to nothing, and outlives the output of a run.
            command = [*argv[:2], str(theirs.fileno()), *argv[2:]]
            self._pid = tree.spawn(command, {**env, **loading}, 2)
        except OSError as error:
            self._fault = f"it cannot be started: {error}"
        finally:
            theirs.close()

    @classmethod
    def begin(cls, program: str, env: Mapping[str, str], device: str, limit_s: float = READY_S) -> Standby:
        """Start it for vLLM's `program` on that device; the environment is the one that vLLM will be started with."""
        python = os.path.join(os.path.dirname(program), "python")
        loading = {**LOADING[device], **(_preloaded(python, env) if device == "cpu" else {})}
        return cls((python, str(PROGRAM), *imports(device)), env, loading, limit_s)

    def fileno(self) -> int:
        """What becomes readable when it has something to say."""
        return self._socket.fileno()

    @property
    def pid(self) -> int:
        """Its process; 0 when there is none."""
        return self._pid if self.alive else 0

    @property
    def alive(self) -> bool:
        """Whether it may still be asked, now or when it is ready."""
        self._hear()
        return self._pid > 0 and not self._fault

    def start(self, argv: Sequence[str], env: Mapping[str, str], output: int,
              pause: Callable[[], None] | None = None) -> int:  # fmt: skip
        """The pid of vLLM's main process, which writes to `output`. Raises Unfit.

        Waits until it is ready, by `pause` (which returns when there is something to hear, or soon) where it is given.
        """
        if env != self._env:
            changed = sorted(name for name in {*env, *self._env} if env.get(name) != self._env.get(name))
            raise Unfit(f"the environment has another {', '.join(changed)}")
        while self.alive and not self._ready:
            if clock.monotonic() >= self._until:
                self._fault = f"it was not ready within {self._until - self._begun:.0f} s"
                self._end()
            elif pause is not None:
                pause()
            else:
                select.select([self._socket], [], [], max(0.0, self._until - clock.monotonic()))
        if self._fault:
            raise Unfit(self._fault)
        umask = os.umask(0o077)
        os.umask(umask)
        line = json.dumps({"argv": list(argv), "env": dict(env), "umask": umask}).encode() + b"\n"
        try:
            self._socket.settimeout(START_S)
            sent = socket.send_fds(self._socket, [line], [output])
            self._socket.sendall(line[sent:])
            answer = self._answer()
        except (OSError, EOFError, ValueError) as error:
            self._fault = f"it gave no answer ({type(error).__name__})"
            self._end()
            raise Unfit(self._fault) from error
        finally:
            self._socket.settimeout(None)  # with a time limit, Python waits before it asks with MSG_DONTWAIT
        pid = answer.get("pid")
        if not isinstance(pid, int):
            raise Unfit(str(answer.get("error", "it gave no process")))
        return pid

    def close(self) -> None:
        """End it. What was forked from it lives on."""
        self._fault = self._fault or "it was ended"
        self._end()
        self._socket.close()

    # --- what it says -------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Take what it has said without waiting: that it is ready, or why not, or its end."""
        if self._fault:
            return
        try:
            data = self._socket.recv(_PIECE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._heard += data
        if not data:
            self._fault = "it died" if self._ready else "it died before it was ready"
        elif self._heard.endswith(b"\n"):
            said, self._heard = _message(self._heard), b""
            self._ready = said.get("ready") is True
            if not self._ready:
                self._fault = str(said.get("unfit", "it says something else than that it is ready"))
        if self._fault:
            self._end()

    def _answer(self) -> dict[str, object]:
        """Its next line. Raises OSError, EOFError, ValueError."""
        data = b""
        while not data.endswith(b"\n"):
            piece = self._socket.recv(_PIECE)
            if not piece or len(data) > _ENDLESS:
                raise EOFError
            data += piece
        return _message(data)

    def _end(self) -> None:
        """End its process and bury it, unless somebody has done so already."""
        pid, self._pid = self._pid, 0
        until = clock.monotonic() + END_S
        while pid > 0:
            try:
                buried, _ = os.waitpid(pid, os.WNOHANG)
                if buried:
                    return
                os.kill(pid, signal.SIGTERM if clock.monotonic() < until else signal.SIGKILL)
            except (ChildProcessError, ProcessLookupError):
                return
            if clock.monotonic() >= until + END_S:
                return
            time.sleep(0.01)


def _message(line: bytes) -> dict[str, object]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _preloaded(python: str, env: Mapping[str, str]) -> dict[str, str]:
    """The OpenMP library that vLLM has the linker load first in its children: forks do not pass through a linker."""
    site = Path(python).parent.parent
    before = env.get("LD_PRELOAD", "")
    found = [str(path) for pattern in OPENMP for path in site.glob(pattern)]
    if not found or any(name in before for name in ("libgomp", "libomp", "libiomp")):
        return {}
    return {"LD_PRELOAD": f"{before}:{found[0]}" if before else found[0]}
