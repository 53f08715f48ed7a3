"""A supervisor as a process on a stage: a systemd that is none, its own directories, the root helper on its socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from appliance import names
from appliance.config import source
from appliance.host import files
from appliance.units.render import engine_digest
from tests.support.fakesystemctl import FakeSystemd
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60.0
SETTINGS = """
[supervisor]
interval = "100ms"
[supervisor.restart]
backoff = "50ms"
budget = 3
"""
NOBODY = '[gateway]\nlisten = ["127.0.0.1:9"]\nadmin_listen = "127.0.0.1:7"\n'  # this machine may have a gateway
CHAT = '[[engine]]\nname = "chat"\nmodel = "/models/chat"\ngpus = []\n'
EMBED = '[[engine]]\nname = "embed"\nmodel = "/models/embed"\ngpus = []\n'


def unit(instance: str = "chat") -> str:
    return names.engine_unit(instance)


class Helper:
    """llm-unitctl.socket: each connection gets a process of its own with the connection as its standard streams."""

    def __init__(self, path: Path, environment: dict[str, str]) -> None:
        self._environment = environment
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(16)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            subprocess.run(
                [sys.executable, "-m", "appliance", "unitctl"],
                stdin=connection,
                stdout=connection,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                cwd=ROOT,
                timeout=LIMIT,
                check=False,
            )

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(LIMIT)


class Stage:
    """Everything of one test; processes are started and stopped by it."""

    def __init__(self, directory: Path, text: str = CHAT) -> None:
        self.run, self.state = directory / "run", directory / "state"
        for made in (self.run / "engines", self.state / "supervisor/holds", self.state / "runtimes/current"):
            made.mkdir(parents=True)
        self.complete(True)
        self.config = directory / "config.toml"
        self.write(text)
        self.systemd = FakeSystemd(directory, self.state / "supervisor/holds")
        self.errors = directory / "supervisor.err"
        self.process: subprocess.Popen[bytes] | None = None
        self.helper: Helper | None = None

    # --- the world ---

    @property
    def environment(self) -> dict[str, str]:
        here = {"LLM_APPLIANCE_RUN": str(self.run), "LLM_APPLIANCE_STATE": str(self.state)}
        return {**os.environ, **here, **self.systemd.environment}

    def write(self, text: str, settings: str = SETTINGS) -> None:
        self.config.write_text(("" if "[gateway]" in settings + text else NOBODY) + settings + text)

    def complete(self, there: bool) -> None:
        """Make the runtime complete, or not."""
        mark = self.state / "runtimes/current/.complete"
        mark.write_text("") if there else mark.unlink(missing_ok=True)

    def digest(self, instance: str = "chat") -> str:
        config = source.effective(str(self.config)).config
        assert config is not None
        return engine_digest(config, instance)

    def serve(
        self, instance: str = "chat", digest: str | None = None, load_s: float = 26.0, set_by: float = 0.0
    ) -> None:
        """The launcher's engine answers its first request; the clock was set forward by `set_by` during its start."""
        now = time.time()
        state: dict[str, object] = {"engine": instance, "start": os.urandom(4).hex(), "phase": "serving", "message": ""}
        state |= {
            "started": now - load_s - set_by,
            "ready": now,
            "phases": {"starting": load_s - 6.5, "loading": 6.5},
            "digest": self.digest(instance) if digest is None else digest,
        }
        self._put(names.engine_state(instance, str(self.run)), state)
        self.systemd.set(unit(instance), ActiveState="active", SubState="running")

    def started_with(self, instance: str = "chat", **more: object) -> None:
        """The launcher says what it starts vLLM with."""
        state = {"phase": "loading", "started": time.time(), "ready": None, "digest": self.digest(instance)}
        self._put(names.engine_state(instance, str(self.run)), state | more)

    def die(self, instance: str = "chat", status: int = 71, cause: str = "engine-died", message: str = "gone",
            hint: str = "") -> None:  # fmt: skip
        """The launcher writes its verdict and ends."""
        verdict: dict[str, object] = {"engine": instance, "start": os.urandom(4).hex(), "at": time.time()}
        verdict |= {"phase": "serving", "requested": False, "cause": cause, "message": message, "hint": hint}
        verdict |= {"exit_status": 0}
        self._put(names.engine_verdict(instance, str(self.run)), verdict)
        self.systemd.die(unit(instance), status)

    def runtime(self, **state: object) -> None:
        """The builder says how far it is."""
        self._put(str(self.run / "runtime/state.json"), {"models": {}, **state})

    def _put(self, path: str, value: dict[str, object]) -> None:
        Path(path).parent.mkdir(exist_ok=True)
        files.replace_json(path, value)

    # --- the supervisor ---

    def start(self, *, helper: bool = True) -> None:
        if helper and self.helper is None:
            self.helper = Helper(self.run / "unitctl.sock", self.environment)
        with open(self.errors, "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "appliance", "supervisor", "--config", str(self.config)],
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )
        self.wait(lambda: self.ask("status")[-1].get("ok"), "the supervisor answers")

    def kill(self) -> None:
        """SIGKILL: nothing of it is left but what is on disk."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(LIMIT)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(LIMIT)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        if self.helper is not None:
            self.helper.close()

    def ask(self, op: str, limit: float = LIMIT, **fields: object) -> list[dict[str, Any]]:
        """All lines of one order; empty when nobody listens."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(limit)
                connection.connect(str(self.run / "supervisor/control.sock"))
                connection.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")
                with connection.makefile("rb") as lines:
                    return [json.loads(line) for line in lines]
        except (FileNotFoundError, ConnectionError):
            return [{}]

    # --- what is seen ---

    def fleet(self, instance: str = "chat") -> dict[str, Any]:
        value = files.read_json(self.run / "supervisor/fleet.json") or {}
        engines: dict[str, Any] = value.get("engines", {})  # type: ignore[assignment]
        return dict(engines.get(instance, {}))

    @property
    def drift(self) -> Any:
        """Where the supervisor says that the disk and what runs differ."""
        return (files.read_json(self.run / "supervisor/fleet.json") or {}).get("drift")

    def ledger(self, instance: str = "chat") -> dict[str, Any]:
        value = files.read_json(self.state / "supervisor/ledger.json") or {}
        engines: dict[str, Any] = value.get("engines", {})  # type: ignore[assignment]
        return dict(engines.get(instance, {}))

    @property
    def journal(self) -> str:
        """What was told, where there is no journal."""
        return self.errors.read_text()

    def wait(self, condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
        try:
            return wait_until(condition, limit, what, pause=0.03)
        except AssertionError as error:
            told = self.journal if self.errors.exists() else ""
            raise AssertionError(f"{error}\nfleet {self.fleet()}\ncalls {self.systemd.calls}\n{told}") from None

    def wait_state(self, state: str, instance: str = "chat") -> dict[str, Any]:
        self.wait(lambda: self.fleet(instance).get("state") == state, f"{instance} is {state}")
        return self.fleet(instance)

    def wait_started(self, count: int, instance: str = "chat") -> None:
        """Until so many starts were asked for."""
        self.wait(lambda: self.starts(instance) >= count, f"{instance} was started {count} times")

    def starts(self, instance: str = "chat") -> int:
        return sum(1 for verb, *units in self.systemd.calls if verb in ("start", "restart") and unit(instance) in units)

    def serving(self, instance: str = "chat") -> None:
        """Through a start into service."""
        self.wait(lambda: self.systemd.get(unit(instance))["ActiveState"] == "activating", f"{instance} was started")
        self.serve(instance)
        self.wait_state("serving", instance)


@contextmanager
def staged(directory: Path, text: str = CHAT) -> Iterator[Stage]:
    """A stage that leaves no process behind."""
    stage = Stage(directory, text)
    try:
        yield stage
    finally:
        stage.close()
