"""A supervisor over engines on the GPUs of a driver that says what it is told; the engines are told as well.

Real are the supervisor and its process that asks NVML, pynvml, the sockets, control groups and processes that are
looked at. Not real are the driver's library (`fakenvml`), systemd, the journal's source, and what answers on the
sockets of engines and gateway.

    with gpus(tmp, Rig("chat", cards=2), Rig("other")) as stage:
        stage.start()
        stage["chat"].stands_still(running=2)
        stage["chat"].shows(SPIN)
"""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance import names
from appliance.host import files
from appliance.host.incidents import Store
from appliance.wire.incident import Incident
from tests.support.fakenvml import FakeNvml
from tests.support.stage import LIMIT, Stage, unit

BOOT = "5e2f1d0c9b8a47f6a1b2c3d4e5f60718"
# What a card of 350 W shows; power in milliwatts, as NVML does.
REST: Mapping[str, int] = {"util": 0, "memutil": 0, "power": 55_000}
WORK: Mapping[str, int] = {"util": 98, "memutil": 45, "power": 300_000}
SPIN: Mapping[str, int] = {"util": 100, "memutil": 0, "power": 95_000}
LEARNED = {"idle_power_w": 55.0, "busy_power_w": 300.0, "busy_mem_util": 45.0}
SETTINGS = """
[supervisor]
interval = "300ms"
[supervisor.restart]
backoff = "50ms"
[supervisor.hang]
suspect = "1s"
confirm = "1500ms"
confirm_idle_gpu = "3s"
confirm_blind = "6s"
compile_allowance = "30s"
grammar_allowance = "6s"
[runtime]
device = "cuda"
"""
ENGINE = '[[engine]]\nname = "{name}"\nmodel = "/models/{name}"\ngpus = {cards}\n'
# From its first line on it turns in a loop, and is first in the queue then: a busy machine, too, gives it a core.
WAITS = "renice -n -10 -p $$ >/dev/null 2>&1; read word && while :; do :; done"
PROCESSES = ("VLLM::APIServer", "VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1")


def address(card: int) -> str:
    """A card's PCI address as an Xid has it."""
    return f"0000:{card + 0x10:02x}:00"


class Answers:
    """An HTTP server on a unix socket; `told` gives the body for a route."""

    def __init__(self, path: Path, told: Callable[[str], str]) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                route = self.rfile.readline().decode().split(" ")[1:2]
                while self.rfile.readline().strip():
                    pass
                body = told(route[0] if route else "").encode()
                with suppress(ConnectionError):  # who asked may be gone
                    self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

        path.parent.mkdir(parents=True, exist_ok=True)
        self._server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self._server.daemon_threads = True
        self._path = path
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(LIMIT)
        self._path.unlink(missing_ok=True)


@dataclass
class Rig:
    """One engine and its cards, as a test wants them. `joins`: each of its starts ends where the ranks join."""

    name: str
    cards: int = 1
    joins: bool = False
    indexes: tuple[int, ...] = ()
    figures: list[dict[str, object]] = field(default_factory=list)  # of each card, over REST
    calls: int = 0  # that the gateway has open
    moves: bool = False
    running: float = 0.0
    waiting: float = 0.0
    tokens: float = 1000.0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    socket: Answers | None = None
    run: str = ""

    def shows(self, figures: Mapping[str, object], *, only: int | None = None) -> None:
        """What its cards, or one of them, show from now on."""
        for place in range(self.cards):
            if only in (None, place):
                self.figures[place] |= figures

    def works(self, calls: int = 2) -> None:
        """Tokens flow."""
        self.calls, self.moves, self.running, self.waiting = calls, True, float(calls), 0.0
        self.shows(WORK)

    def rests(self) -> None:
        """Nobody calls."""
        self.calls, self.moves, self.running, self.waiting = 0, False, 0.0, 0.0
        self.figures = [dict(REST) for _ in range(self.cards)]

    def stands_still(self, *, running: float = 0.0, waiting: float = 0.0, calls: int = 2) -> None:
        """Nothing moves any more, with calls at work."""
        self.calls, self.moves, self.running, self.waiting = calls, False, running, waiting

    def answer(self, route: str) -> str:
        """What its HTTP server says."""
        if route != "/metrics":
            return ""
        self.tokens += 10.0 if self.moves else 0.0
        values = {"generation_tokens_total": self.tokens, "request_success_total": 4.0, "kv_cache_usage_perc": 0.1,
                  "num_requests_running": self.running, "num_requests_waiting": self.waiting}  # fmt: skip
        return "".join(f"vllm:{name} {value}\n" for name, value in values.items())

    @property
    def ledger(self) -> dict[str, Any]:
        """The gateway's view of it."""
        silent = None if not self.calls else 0.0 if self.moves else 60.0
        told = {"oldest_silent_s": silent, "since_any_byte_s": silent}
        return {"inflight": self.calls, "structured": 0, "largest_prompt_tokens": 0, **told}


class GpuStage(Stage):
    """Several engines; `stage[name]` is one of them. A stand-in for PID 1 runs their processes and sees them end."""

    def __init__(self, home: Path, *rigs: Rig, settings: str = SETTINGS) -> None:
        self.home = home
        self._settings = settings
        self.rigs = {rig.name: rig for rig in rigs}
        count = 0
        for rig in rigs:
            rig.indexes = tuple(range(count, count + rig.cards))
            count += rig.cards
            rig.rests()
        super().__init__(home, "".join(ENGINE.format(name=rig.name, cards=list(rig.indexes)) for rig in rigs))
        self.nvml = FakeNvml(home, "")
        self.driver = ""  # further lines of the driver's script
        self._said = ""
        self._log = home / "kernel.log"
        self._log.touch()
        self._entries = 0
        self._bin = home / "bin"
        self._bin.mkdir()
        self.program("journalctl", f'case "$*" in *--follow*) exec tail -n +1 -f {self._log};; esac')
        self.program("nvidia-smi", "echo GPU")
        for name in PROCESSES:
            (self._bin / name).symlink_to("/bin/sh")
        self._learn()
        self._gateway = Answers(self.run / "gateway/control.sock", self._ledger)
        self._lock = threading.RLock()
        for rig in rigs:
            self.systemd.start(unit(rig.name))
        self._turn()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._manage, daemon=True)
        self._thread.start()

    def __getitem__(self, name: str) -> Rig:
        return self.rigs[name]

    @property
    def environment(self) -> dict[str, str]:
        own = {"PATH": f"{self._bin}:{os.environ['PATH']}", "LLM_APPLIANCE_BOOT": BOOT}
        return {**self.nvml.environment, **super().environment, **own,
                **{key: self.nvml.environment[key] for key in ("LD_LIBRARY_PATH", "FAKE_NVML_SCRIPT")}}  # fmt: skip

    def write(self, text: str, settings: str = "") -> None:
        super().write(text, settings or self._settings)

    def program(self, name: str, script: str) -> None:
        """Put a program where the supervisor finds it."""
        path = self._bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def begin(self) -> None:
        """Start the supervisor, until it serves, knows the cards, and has looked at every engine since."""
        self.start()
        last = [name for name, rig in self.rigs.items() if not rig.joins][-1]
        self.wait(lambda: self.gpus().get("gpus") and self.fleet(last), "the cards are known")
        for op, state in (("drain", "draining"), ("undrain", "serving")):  # each takes a cycle
            self.ask(op, engine=last)
            self.wait_state(state, last)

    # --- what happens ---

    def show(self, name: str, figures: Mapping[str, object], *, only: int | None = None) -> None:
        """A rig's cards show this, and a reading has seen it: what comes after begins with it."""
        rig = self.rigs[name]
        rig.shows(figures, only=only)
        wanted = {address(card): shown["util"] for card, shown in zip(rig.indexes, rig.figures, strict=True)}

        def read() -> bool:
            seen = {gpu["pci"]: gpu["util"] for gpu in self.gpus().get("gpus", ())}
            return all(seen.get(pci) == util for pci, util in wanted.items())

        self.wait(read, f"the cards of {name} are read")

    def kernel(self, message: str) -> None:
        """The kernel says something, now."""
        self._enter(message, _TRANSPORT="kernel")

    def manager(self, unit_name: str, message: str) -> None:
        """systemd says something of a unit, now."""
        self._enter(message, _TRANSPORT="journal", _PID="1", UNIT=unit_name)

    def _enter(self, message: str, **fields: str) -> None:
        self._entries += 1
        entry = {**fields, "__CURSOR": f"c{self._entries}", "__MONOTONIC_TIMESTAMP": str(int(time.monotonic() * 1e6)),
                 "_BOOT_ID": BOOT, "MESSAGE": message}  # fmt: skip
        with open(self._log, "a") as file:
            file.write(json.dumps(entry) + "\n")

    def xid(self, name: str, number: int, more: str = "", *, card: int = 0) -> None:
        """The driver reports a fault of one of an engine's cards."""
        rest = f", {more}" if more else ""
        pid = f", pid={self.rigs[name].processes[1].pid}, name=VLLM::EngineCor" if self.rigs[name].processes else ""
        self.kernel(f"NVRM: Xid (PCI:{self.address(name, card)}): {number}{pid}{rest}")

    def address(self, name: str, card: int = 0) -> str:
        """The PCI address of one of an engine's cards."""
        return address(self.rigs[name].indexes[card])

    def dies(self, name: str, cause: str, message: str, *, status: int = 71, phase: str = "serving") -> None:
        """vLLM ends, and its launcher tells why."""
        rig = self.rigs[name]
        verdict = {"engine": name, "start": rig.run, "at": time.time(), "phase": phase, "requested": False,
                   "cause": cause, "message": message, "exit_status": 0}  # fmt: skip
        with self._lock:
            self._put(names.engine_verdict(name, str(self.run)), verdict)
            self._leave(rig)
            self.systemd.die(unit(name), status)
            self.systemd.set(unit(name), ControlGroup="")

    def turn(self, name: str) -> None:
        """The engine's core begins to use a whole core of the CPU."""
        core = self.rigs[name].processes[1]
        assert core.stdin is not None
        core.stdin.write(b"\n")
        core.stdin.flush()

    # --- what is seen ---

    def incidents(self, name: str) -> list[Incident]:
        """The incidents of one engine, the oldest first."""
        kept = [bundle.incident for bundle in Store(str(self.state / "incidents")).all()]
        return sorted((one for one in kept if one.engine == name), key=lambda one: one.at)

    def timeline(self, name: str) -> list[dict[str, Any]]:
        """The recording in the first incident of an engine."""
        path = self.state / "incidents" / self.incidents(name)[0].id / "timeline.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def lines(self, name: str) -> list[str]:
        """The journal's lines on one engine."""
        return [line for line in self.journal.splitlines() if f"{name}: " in line]

    def untouched(self, name: str) -> bool:
        """Whether nothing was ever done to it."""
        calls = [words for words in self.systemd.calls if unit(name) in words]
        return not calls and all(process.poll() is None for process in self.rigs[name].processes)

    def gpus(self) -> dict[str, Any]:
        return dict(files.read_json(self.run / "supervisor/gpus.json") or {})

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()  # it ends what asks a driver that never answers
        super().close()
        if hasattr(self, "_over"):
            self._over.set()
            self._thread.join(LIMIT)
        self._gateway.close()
        for rig in self.rigs.values():
            self._leave(rig)

    # --- PID 1 and the driver ---

    def _manage(self) -> None:
        while not self._over.wait(0.05):
            with self._lock:
                self._turn()

    def _turn(self) -> None:
        self._say()
        for rig in self.rigs.values():
            seen = self.systemd.get(unit(rig.name))
            living = [process.pid for process in rig.processes if process.poll() is None]
            if rig.processes:
                files.replace(self._group(rig) / "cgroup.procs", "".join(f"{pid}\n" for pid in living).encode())
            if rig.processes and (not living or seen["ActiveState"] == "inactive"):
                killed = seen["ActiveState"] != "inactive"
                self._leave(rig)
                if killed:
                    self.systemd.set(unit(rig.name), ActiveState="activating", SubState="auto-restart",
                                     Result="signal", ExecMainCode=2, ExecMainStatus=9, ControlGroup="")  # fmt: skip
                else:
                    self.systemd.set(unit(rig.name), ControlGroup="")
            elif not rig.processes and seen["SubState"] == "start" and seen["InvocationID"] != rig.run:
                rig.run = seen["InvocationID"]
                self._launch(rig)

    def _launch(self, rig: Rig) -> None:
        rig.rests()
        for name in PROCESSES[: 2 + (rig.cards if rig.cards > 1 else 0)]:
            rig.processes.append(subprocess.Popen([self._bin / name, "-c", WAITS], stdin=subprocess.PIPE))
        group = self._group(rig)
        group.mkdir(exist_ok=True)
        files.replace(group / "cgroup.procs", "".join(f"{each.pid}\n" for each in rig.processes).encode())
        now = time.time()
        state: dict[str, object] = {"engine": rig.name, "start": rig.run, "started": now - 26.0, "cuda": True,
                                    "digest": self.digest(rig.name), "runtime": "0.32.0-cuda",
                                    "gpus": [f"GPU-{card:04d}" for card in rig.indexes], "flags": {}}  # fmt: skip
        if rig.joins:
            state |= {"phase": "starting", "message": "joining the GPUs", "ready": None}
        else:
            state |= {"phase": "serving", "message": "", "ready": now}
            rig.socket = Answers(Path(names.engine_socket(rig.name, str(self.run))), rig.answer)
        self._put(names.engine_state(rig.name, str(self.run)), state)
        up = {} if rig.joins else {"ActiveState": "active", "SubState": "running"}
        main = rig.processes[0].pid
        self.systemd.set(unit(rig.name), ControlGroup=f"/../../..{group}", MainPID=main, **up)

    def _leave(self, rig: Rig) -> None:
        """Nothing of its run is left."""
        for process in rig.processes:
            process.kill()
            assert process.stdin is not None
            process.stdin.close()
            process.wait(LIMIT)
        rig.processes.clear()
        if rig.socket is not None:
            rig.socket.close()
            rig.socket = None

    def _group(self, rig: Rig) -> Path:
        return self.home / f"group-{rig.name}"

    def _ledger(self, _route: str) -> str:
        return json.dumps({"engines": {name: rig.ledger for name, rig in self.rigs.items()}})

    def _say(self) -> None:
        """The driver's script by what the cards show now."""
        lines = ["driver=580.95.05", f"gpus={sum(rig.cards for rig in self.rigs.values())}", "gpu.name=Test 80GB",
                 "gpu.limit=350000", "gpu.temp=60", "gpu.used=64424509440", "gpu.total=85899345920", "gpu.recovery=0",
                 "gpu.rows=0,0,0,0", "gpu.ecc=0"]  # fmt: skip
        for rig in self.rigs.values():
            pids = ",".join(str(process.pid) for process in rig.processes if process.poll() is None)
            for card, figures in zip(rig.indexes, rig.figures, strict=True):
                named = {"uuid": f"GPU-{card:04d}", "pci": f"0000{address(card)}.0", "pids": pids, **figures}
                lines += [f"gpu{card}.{key}={value}" for key, value in named.items()]
        script = "\n".join([*lines, self.driver, ""])
        if script != self._said:
            self._said = script
            self.nvml.say(script)

    def _learn(self) -> None:
        """What the engines are like at work is known from earlier runs."""
        rigs = self.rigs.values()
        known = {f"/models/{rig.name} {rig.cards} {','.join(map(address, rig.indexes))}": LEARNED for rig in rigs}
        files.replace_json(Path(names.LEARNED.replace(names.STATE, str(self.state))), {"engines": known})


@contextmanager
def gpus(*rigs: Rig, settings: str = SETTINGS) -> Iterator[GpuStage]:
    """A stage that leaves no process and no file behind; its directory has a short name, for sockets' sake."""
    home = Path(tempfile.mkdtemp(prefix="gpu-"))
    stage = GpuStage(home, *rigs, settings=settings)
    try:
        yield stage
    finally:
        stage.close()
        shutil.rmtree(home)
