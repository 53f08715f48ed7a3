"""A stand-in for a launcher with a standby, and for the vLLM that is forked from it: small modules and a script.

`made(home)` writes a runtime: `bin/python`, `bin/vllm` and the modules. `python -m tests.support.standbystage SCENARIO
HOME MODULES` plays one of the scenarios below, prints what was seen as JSON, and ends all that it started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance import names
from appliance.engine import tree
from appliance.engine.standby import PROGRAM, Standby, Unfit

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60.0

HEAVY = """
import os
with open(os.environ["STAGE"] + "/imported", "a") as file: file.write(f"{os.getpid()}\\n")
"""
SCRIPT = """#!{python}
import sys
from fakefamily import main
if __name__ == "__main__":
    sys.exit(main())
"""
# vLLM in three generations, as it makes them: by multiprocessing's "spawn", with settings of the moment.
FAMILY = """
import json, multiprocessing, os, resource, signal, sys, threading, time
import heavy

spawning = multiprocessing.get_context("spawn")
home = os.environ["STAGE"]

def facts():
    links = []
    for name in os.listdir("/proc/self/fd"):
        try: links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError: pass
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {"pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "env": dict(os.environ),
            "comm": open("/proc/self/comm").read().strip(), "main": sys.modules["__main__"].__file__,
            "argv": sys.argv, "path": sys.path[0], "name": multiprocessing.current_process().name,
            "umask": int(status["Umask"], 8), "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "cores": sorted(os.sched_getaffinity(0)), "threads": threading.active_count(),
            "sockets": sum(link.startswith("socket:") for link in links),
            "marked": sum(link.endswith("/marked") for link in links)}

def worker(sending, lock, status):
    with lock:
        sending.send(facts())
    if status == "wait":
        time.sleep(60)
    sys.exit(status)

def ended(process):
    told = bool(multiprocessing.connection.wait([process.sentinel], 10))
    process.join(10)
    return process.exitcode if told else "the sentinel says nothing"

def core(sending):
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("GOMP_CPU_AFFINITY", str(min(os.sched_getaffinity(0))))
    lock, told = spawning.Lock(), {"core": facts()}
    for status in (3, "wait"):
        reading, writing = spawning.Pipe(duplex=False)
        process = spawning.Process(target=worker, args=(writing, lock, status), name="Worker", daemon=True)
        process.start()
        writing.close()
        told[f"worker {status}"] = reading.recv()
        if status == "wait":
            os.kill(process.pid, signal.SIGKILL)
        told[f"status {status}"] = ended(process)
    sending.send(told)
    sys.exit(7)

def main():
    what = sys.argv[1]
    for name, value in (word.split("=") for word in sys.argv[2:]):
        os.environ[name] = value
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    marked = open(home + "/marked", "w")
    os.set_inheritable(marked.fileno(), True)
    if what == "family":
        started = threading.Thread(target=time.sleep, args=(60,), daemon=True)
        started.start()
        reading, writing = spawning.Pipe(duplex=False)
        os.environ["SAID"] = "at the moment"
        process = spawning.Process(target=core, args=(writing,), name="Core")
        process.start()
        writing.close()
        told = reading.recv() | {"main": facts()}
        told["status"] = ended(process)
        told["zombies"] = sum(" Z " in open(f"/proc/{pid}/stat").read() for pid in os.listdir("/proc")
                              if pid.isdigit() and os.path.exists(f"/proc/{pid}/stat")
                              and open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1] == str(os.getpid()))
    elif what == "stay":
        reading, writing = spawning.Pipe(duplex=False)
        lock = spawning.Lock()
        process = spawning.Process(target=worker, args=(writing, lock, "wait"), name="Worker")
        process.start()
        told = {"worker": reading.recv(), "main": facts()}
    with open(home + "/told.new", "w") as file: json.dump(told, file)
    os.rename(home + "/told.new", home + "/told")
    while what == "stay":
        time.sleep(0.05)
        if os.path.exists(home + "/again"):
            os.unlink(home + "/again")
            reading, writing = spawning.Pipe(duplex=False)
            spawning.Process(target=worker, args=(writing, lock, 0), name="Another").start()
            with open(home + "/another", "w") as file: json.dump(reading.recv(), file)
    return 5
"""
# Modules after whose import nothing may be forked.
UNFIT = {
    "threaded": "import threading as t\nt.Thread(target=t.Event().wait, daemon=True, name='mine').start()",
    "natively": "import _thread, time\n_thread.start_new_thread(time.sleep, (60,))\ntime.sleep(0.05)",
    "broken": "raise ImportError('no such thing')",
    "leaves": "raise SystemExit(0)",
    "torch": "class cuda:\n    is_initialized = staticmethod(lambda: True)",
    "tracked": "from multiprocessing import resource_tracker\nresource_tracker.ensure_running()",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "late": "import time\ntime.sleep(60)",
}


def made(home: Path) -> None:
    """A runtime below `home`."""
    (home / "bin").mkdir()
    (home / "bin/python").symlink_to(sys.executable)
    (home / "bin/vllm").write_text(SCRIPT.format(python=home / "bin/python"))
    (home / "bin/vllm").chmod(0o755)
    for name, text in {"heavy": HEAVY, "fakefamily": FAMILY, **UNFIT}.items():
        (home / f"{name}.py").write_text(text)


class Launcher:
    """Has a standby with those modules."""

    def __init__(self, home: Path, modules: list[str], limit_s: float = LIMIT) -> None:
        self.home = home
        kept = ("PATH", "HOME")
        self.env = {name: value for name, value in os.environ.items() if name in kept}
        self.env |= {"PYTHONPATH": str(home), "STAGE": str(home)}
        self.output = os.open(home / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.standby = Standby((str(home / "bin/python"), str(PROGRAM), *modules), self.env, {}, limit_s)

    def start(self, *words: str) -> int:
        return self.standby.start((str(self.home / "bin/vllm"), *words), self.env, self.output)

    def told(self, name: str = "told") -> dict[str, Any]:
        until(lambda: (self.home / name).exists() and (self.home / name).stat().st_size > 0, name)
        value = json.loads((self.home / name).read_text())
        assert isinstance(value, dict)
        return value

    def below(self) -> list[str]:
        """Names of the living below this process, without the standby itself."""
        return sorted(process.comm for process in tree.descendants() if process.pid != self.standby.pid)

    def imports(self) -> int:
        return len((self.home / "imported").read_text().split())


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"it did not come to: {what}")
        time.sleep(0.01)


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def family(stage: Launcher, *words: str) -> dict[str, Any]:
    """A main process, its core, two workers; all end by themselves."""
    pid = stage.start("family", *words)
    own = {"pid": pid, "launcher": os.getpid(), "imports at start": stage.imports()}
    status = status_of(pid)
    until(lambda: stage.below() == [], "none but the standby")
    return {**own, "ended": status, "told": stage.told(), "imports": stage.imports()}


def killed(stage: Launcher) -> dict[str, Any]:
    """SIGKILL for the main process, for all that it left, and another start."""
    pid = stage.start("stay")
    worker = stage.told()["worker"]
    os.kill(pid, signal.SIGKILL)
    seen: dict[str, Any] = {"status": status_of(pid), "worker": worker["parent"] == pid}
    until(lambda: not Path(f"/proc/{pid}/stat").exists(), "no main process")
    seen["left"] = [one.comm for one in tree.end(0.0, 5.0, lambda _: tree.reap() and None, (stage.standby.pid,))]
    seen["alive"] = stage.standby.alive
    (stage.home / "told").unlink()
    second = stage.start("stay")
    seen |= {"other": second != pid and stage.told()["main"]["pid"] == second, "imports": stage.imports()}
    return seen


def orphaned(stage: Launcher) -> dict[str, Any]:
    """SIGKILL for the standby while vLLM runs: that goes on, and starts another process."""
    pid = stage.start("stay")
    stage.told()
    os.kill(stage.standby.pid, signal.SIGKILL)
    until(lambda: not stage.standby.alive, "a dead standby")
    (stage.home / "again").touch()
    seen = {"another": stage.told("another")["parent"] == pid, "pid": stage.standby.pid, "imports": stage.imports()}
    try:
        stage.start("stay")
    except Unfit as fault:
        seen["fault"] = str(fault)
    return seen


def closed(stage: Launcher) -> dict[str, Any]:
    """Ended while its vLLM runs; ended by the end of its launcher."""
    pid = stage.start("stay")
    stage.told()
    standby = stage.standby.pid
    stage.standby.close()
    left = sorted(process.comm for process in tree.descendants())
    program = "from tests.support import standbystage as stage; import sys, pathlib\n" \
              "one = stage.Launcher(pathlib.Path(sys.argv[1]), ['heavy']); print(one.standby.pid)\n" \
              "while not one.standby._ready: assert one.standby.alive"  # fmt: skip
    other = subprocess.run(
        [sys.executable, "-c", program, str(stage.home)], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    until(lambda: not Path(f"/proc/{int(other.stdout)}").exists() or tree.reap() != {}, "an end after its launcher's")
    return {"gone": not Path(f"/proc/{standby}").exists(), "left": left, "main": Path(f"/proc/{pid}").exists()}


def fit(stage: Launcher) -> dict[str, Any]:
    """Whether a main process can be started, and how long it took to know."""
    begun = time.monotonic()
    try:
        stage.start("stay")
    except Unfit as fault:
        seen = {"fault": str(fault), "pid": stage.standby.pid, "took": time.monotonic() - begun}
        until(lambda: stage.below() == [], "no process")
        return seen
    return {"fault": ""}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    each.__name__: each for each in (family, killed, orphaned, closed, fit)
}


def main(scenario: str, home: str, modules: str, *words: str) -> None:
    assert names.STANDBY_PROCESS
    stage = Launcher(Path(home), modules.split(","), 1.0 if "late" in modules else LIMIT)
    try:
        print(json.dumps(SCENARIOS[scenario](stage, *words)))
    finally:
        stage.standby.close()
        tree.end(0.0, 5.0, lambda _: tree.reap() and None)


if __name__ == "__main__":
    main(*sys.argv[1:])
