"""vLLM's modules, imported once: vLLM's processes are forked from here instead of importing them one after the other.

    standby.py SOCKET MODULE...      SOCKET is an inherited descriptor, connected to the launcher

JSON lines: `{"ready": true}` to the launcher, or `{"unfit": REASON}` and the end; from it `{"argv", "env", "umask"}`
with the output's descriptor; back `{"pid"}` of vLLM's main process, a child of the launcher, or `{"error"}`.

A process that is forked here forks, before it does anything else, a twin: idle, single-threaded, with nothing open but
what is open here. When vLLM wants a process by multiprocessing's "spawn", that is forked from the twin of the process
which wants it, and so has no threads, locks, files or CUDA from there, as if it had been spawned. It becomes a real
child of that process, with the environment, limits and descriptors of the moment: exit status, signals and the death of
a parent are what they are with spawn. What a fork cannot honour is spawned as ever.

Only what is single-threaded and has no GPU open may be forked: it checks itself before it says that it is ready.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import json
import os
import re
import resource
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing import context, forkserver, popen_fork, popen_forkserver, popen_spawn_posix, reduction, spawn, util
from multiprocessing.resource_tracker import _resource_tracker
from types import ModuleType
from typing import Any, NoReturn

NAME = "llm-standby"  # what this process and the twins are called in lists of processes
LINE_LIMIT = 8 << 20
MOST_DESCRIPTORS = 250
FORK_S = 30.0  # takes milliseconds
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
# Read when a program or a library is loaded and never again, so a fork cannot take another value.
_AT_LOAD = re.compile(r"LD_|GLIBC_|MALLOC_|PYTHON|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|GOTO_|BLIS_")
# But for these, which `bind` does by other means.
_THREADS, _CORES, _BOUND = "OMP_NUM_THREADS", ("GOMP_CPU_AFFINITY", "OMP_PLACES"), "OMP_PROC_BIND"
# One core, or one place for all threads. A list of cores, one for each thread, only a library that is loaded obeys: to
# let the threads use any of them instead took a fifth more processor time on a busy machine.
_ONE = re.compile(r"(\d+)|\{(\d+(?:,\d+)*)\}")


def send(over: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """One JSON line, the descriptors with its first bytes."""
    data = json.dumps(message).encode() + b"\n"
    sent = socket.send_fds(over, [data], list(descriptors)) if descriptors else 0
    over.sendall(data[sent:])


def receive(over: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next line and its descriptors. Raises EOFError when the other side is gone, ValueError for no message."""
    data, descriptors = b"", list[int]()
    while not data.endswith(b"\n"):
        piece, found, _, _ = socket.recv_fds(over, 1 << 16, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not piece or len(data) > LINE_LIMIT:
            raise EOFError
        data += piece
        descriptors += found
    return json.loads(data), descriptors


def fork_away() -> int:
    """Its pid here, 0 in a new process, whose parent is gone: the nearest subreaper's child. Raises OSError."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            pid = os.fork()
            if pid:
                os.write(writing, pid.to_bytes(8, "little"))
        except OSError:
            pid = -1
        if pid:
            os._exit(0)
        util.close_fds(reading, writing)  # type: ignore[attr-defined]
        return 0
    os.close(writing)
    told = os.read(reading, 8)
    os.close(reading)
    os.waitpid(between, 0)  # from now on the new process has its new parent
    if len(told) != 8:
        raise OSError("no process can be forked")
    return int.from_bytes(told, "little")


def serve(over: socket.socket) -> dict[str, Any]:
    """Fork a process for each request: returns in those, with the request. Ends when there is nobody who could ask."""
    while True:
        try:
            request, descriptors = receive(over)
        except (EOFError, ValueError, OSError):
            os._exit(0)
        try:
            pid = fork_away()
            answer: dict[str, Any] = {"pid": pid}
        except OSError as error:
            pid, answer = -1, {"error": str(error)}
        if pid == 0:
            over.close()
            return request | {"descriptors": descriptors}
        util.close_fds(*descriptors)  # type: ignore[attr-defined]
        try:
            send(over, answer)
        except OSError:
            os._exit(0)


class Twin:
    """The idle copy of this process, from which its children are forked: `Twin.own`, None in a twin and before."""

    own: Twin | None = None

    def __init__(self, pid: int, over: socket.socket) -> None:
        self._pid, self._over, self._lock, self._owner = pid, over, threading.Lock(), os.getpid()
        over.settimeout(FORK_S)

    @classmethod
    def make(cls, kept: frozenset[int]) -> dict[str, Any] | None:
        """Fork it. Returns None in the process that is here, and a request in each that is forked from the twin."""
        cls.own = None
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid:
            theirs.close()
            cls.own = cls(pid, ours)
            return None
        for descriptor in opened():
            if descriptor not in kept and descriptor != theirs.fileno():
                os.close(descriptor)
        ours.detach()
        rename(NAME)
        return serve(theirs)

    def fork(self, message: dict[str, Any], descriptors: Sequence[int]) -> int:
        """The pid of a new child of this process. Raises OSError, EOFError, ValueError: there is none."""
        if os.getpid() != self._owner:
            raise ValueError("the twin is its parent's")
        with self._lock:
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                send(self._over, message, descriptors)
                answer, _ = receive(self._over)
            except (OSError, EOFError):
                self._over.close()  # which ends it
                os.waitpid(self._pid, os.WNOHANG)
                raise
            finally:
                prctl(_PR_SET_CHILD_SUBREAPER, 0)
        if "pid" not in answer:
            raise OSError(answer.get("error", "no pid"))
        return int(answer["pid"])


def opened() -> list[int]:
    """Every open descriptor."""
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    return [each for each in listed if os.path.lexists(f"/proc/self/fd/{each}")]  # not the one that listed them


def prctl(option: int, value: int | ctypes.c_char_p) -> None:
    """Set one property of this process."""
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value) if isinstance(value, int) else value, 0, 0, 0)


def rename(name: str, title: str = "") -> None:
    """What lists of processes show: the name, and the command line where it can be set."""
    if "setproctitle" in sys.modules:
        sys.modules["setproctitle"].setproctitle(title or name)
    prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


class Popen(popen_fork.Popen):
    """A process of "spawn", forked from the twin."""

    method = "spawn"
    DupFd = popen_forkserver._DupFd

    def __init__(self, process_obj: Any) -> None:
        self._fds: list[int] = []
        super().__init__(process_obj)

    def duplicate_for_child(self, fd: int) -> int:
        """Where the child finds this descriptor among those that it is handed."""
        self._fds.append(fd)
        return len(self._fds) - 1

    def _launch(self, process_obj: Any) -> None:
        assert Twin.own is not None
        _resource_tracker.ensure_running()
        data = io.BytesIO()
        context.set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            reduction.dump(spawn.get_preparation_data(process_obj._name), data)
            reduction.dump(process_obj, data)
        finally:
            context.set_spawning_popen(None)
        sentinel, child_writing = os.pipe()  # ends with the child
        child_reading, writing = os.pipe()  # brings the child its data, and ends with this process
        try:
            handed = [child_reading, child_writing, _resource_tracker._fd, *self._fds]  # type: ignore[attr-defined]
            self.pid = Twin.own.fork({"env": dict(os.environ), "inherited": inherited()}, handed)
        except BaseException:
            util.close_fds(sentinel, writing)  # type: ignore[attr-defined]
            raise
        finally:
            util.close_fds(child_reading, child_writing)  # type: ignore[attr-defined]
        self.sentinel = sentinel
        self.finalizer = util.Finalize(self, util.close_fds, (sentinel, writing))  # type: ignore[attr-defined]
        with open(writing, "wb", closefd=False) as file:
            file.write(data.getbuffer())


def popen(loaded: dict[str, str], process_obj: Any) -> Any:
    """Starts a process of "spawn". `loaded` is the environment that the libraries here were loaded with."""
    try:
        refuse(dict(os.environ), loaded)
        return Popen(process_obj)
    except (OSError, EOFError, ValueError) as error:
        print(f"{NAME}: {process_obj.name} imports its modules itself: {error}", file=sys.stderr, flush=True)
        return popen_spawn_posix.Popen(process_obj)


def refuse(env: dict[str, str], loaded: dict[str, str]) -> None:
    """Raises ValueError, with the reason, where a fork would differ from a new program."""
    if Twin.own is None:
        raise ValueError("there is nothing to fork it from")
    if os.fsdecode(spawn.get_executable()) != sys.executable:
        raise ValueError("it is to have another executable")
    for name in changed(env, loaded):
        listed = name in _CORES and _ONE.fullmatch(env.get(name, ""))
        bound = name == _BOUND and any(each in env for each in _CORES)
        if not (listed or bound or name == _THREADS):
            raise ValueError(f"{name} was set since they were imported")


def changed(env: dict[str, str], loaded: dict[str, str]) -> list[str]:
    """Variables that differ, of those that are read at load."""
    return sorted(name for name in {*env, *loaded} if _AT_LOAD.match(name) and env.get(name) != loaded.get(name))


def inherited() -> dict[str, Any]:
    """What a new program would inherit from this process besides environment and descriptors."""
    with open("/proc/self/status") as file:
        umask = next(line.split()[1] for line in file if line.startswith("Umask:"))
    return {
        "umask": int(umask, 8),
        "limits": [(each, *resource.getrlimit(each)) for each in _LIMITS],
        "cores": sorted(os.sched_getaffinity(0)),
    }


def inherit(told: dict[str, Any]) -> None:
    """The other side of `inherited`."""
    os.umask(told["umask"])
    for each, soft, hard in told["limits"]:
        if resource.getrlimit(each) != (soft, hard):
            resource.setrlimit(each, (soft, hard))
    os.sched_setaffinity(0, told["cores"])


def adopt(env: dict[str, str], loaded: dict[str, str]) -> None:
    """Take the environment of the moment, and be random and collected as a new program is."""
    for name in set(os.environ) - set(env):
        del os.environ[name]
    os.environ.update({name: value for name, value in env.items() if os.environ.get(name) != value})
    gc.enable()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    bind(env, loaded)


def bind(env: dict[str, str], loaded: dict[str, str]) -> None:
    """What OpenMP would have read: how many threads, and on which cores."""
    news = changed(env, loaded)
    for name in _CORES:
        if name in news and (place := _ONE.fullmatch(env.get(name, ""))):
            os.sched_setaffinity(0, {int(core) for core in (place[1] or place[2]).split(",")})
    if _THREADS in news and env.get(_THREADS, "").isdigit() and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(env[_THREADS]))


def become_main(request: dict[str, Any]) -> None:
    """As a program of its own: a session, its output, and the main module of the script that it will run.

    The children are forked with that module, and so have no reason to run the script once more, as spawn does.
    """
    (output,), argv = request["descriptors"], request["argv"]
    os.setsid()
    os.umask(request["umask"])
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    module = ModuleType("__main__")
    module.__file__ = argv[0]
    sys.modules["__main__"] = module
    sys.argv = list(argv)
    sys.path[0] = os.path.dirname(argv[0])
    rename(os.path.basename(argv[0]), " ".join([sys.executable, *argv]))


def run_child(request: dict[str, Any]) -> NoReturn:
    """A process of "spawn". Ends as multiprocessing's forks do: to take the interpreter down would copy its memory."""
    rename(os.path.basename(sys.executable), sys.executable)
    reading, _sentinel, tracker, *others = request["descriptors"]  # the sentinel is open for as long as this process is
    _resource_tracker._fd = tracker  # type: ignore[attr-defined]
    forkserver._forkserver._inherited_fds = others  # type: ignore[attr-defined]
    status = spawn._main(reading, os.dup(reading))
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def unfit() -> str:
    """Why this process may not be forked; empty where it may."""
    if threading.active_count() > 1:
        return f"modules started threads: {', '.join(sorted(each.name for each in threading.enumerate()))}"
    # OpenBLAS ends its threads before a fork and starts others when there is work. What does not, does not bear it.
    if (probe := os.fork()) == 0:
        os._exit(0)
    os.waitpid(probe, 0)
    if (left := len(os.listdir("/proc/self/task")) - 1) > 0:
        return f"modules started {left} threads that do not end before a fork"
    paths = [os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in opened()]
    if gpus := [path for path in paths if path.startswith("/dev/nvidia")]:
        return f"modules opened {gpus[0]}"
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        return "modules initialised CUDA"
    if _resource_tracker._fd is not None:  # type: ignore[attr-defined]
        return "modules started multiprocessing's resource tracker"
    return ""


def load(modules: Sequence[str]) -> str:
    """Import them, the first of which must be there; why this process is not fit afterwards."""
    try:
        import_module(modules[0])
        for module in modules[1:]:
            with suppress(ImportError):
                import_module(module)
        return unfit()
    except BaseException as error:
        return f"{type(error).__name__}: {str(error).strip().partition(os.linesep)[0][:300]}"


def main(words: list[str]) -> str:
    """Serve the launcher. Returns in vLLM's main process: the script that it is to run."""
    sys.modules[NAME] = sys.modules["__main__"]  # a script takes that name over
    sys.path[0] = os.path.dirname(sys.executable)  # as vLLM's script has it, and nothing of this directory
    launcher = socket.socket(fileno=int(words[0]))
    launcher.set_inheritable(False)
    loaded = dict(os.environ)
    rename(NAME)
    gc.disable()
    reason = load(words[1:])
    try:
        send(launcher, {"unfit": reason} if reason else {"ready": True})
    except OSError:
        os._exit(0)
    if reason:
        os._exit(1)
    rename(NAME)
    context.SpawnProcess._Popen = staticmethod(partial(popen, loaded))  # type: ignore[method-assign]
    kept = frozenset(opened()) - {launcher.fileno()}
    gc.freeze()  # a collection would write to every object, and so copy all memory
    request = serve(launcher)
    become_main(request)
    while (later := Twin.make(kept)) is not None:  # forked from the twin of a process: it makes its own first
        request = later
    if "argv" not in request:
        inherit(request["inherited"])
        adopt(request["env"], loaded)
        run_child(request)
    adopt(request["env"], loaded)
    return str(request["argv"][0])


if __name__ == "__main__":
    program = main(sys.argv[1:])
    with open(program, "rb") as script:
        code = compile(script.read(), program, "exec")
    exec(code, sys.modules["__main__"].__dict__)
