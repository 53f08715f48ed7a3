"""The real gateway process on loopback, fake engines beside it, and raw HTTP as tests need it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from appliance.host.files import replace_json
from tests.support import fakeengine
from tests.support.waiting import wait_until

MODEL = "smollm2-135m"
ROOT = Path(__file__).resolve().parents[2]


class FakeEngine:
    """A fake engine in a thread of this process; `log` is what it saw."""

    def __init__(self, *, uds: Path | None = None, port: int = 0, **options: Any) -> None:
        self.engine = fakeengine.Engine(options.pop("model", MODEL), **options)
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.AbstractServer | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._where = str(uds) if uds else None
        self._port = port
        self.place = ""
        self.up()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def up(self) -> None:
        """Listen (again, at the same place)."""
        start = fakeengine.serve(
            self.engine, uds=self._where, port=int(self.place or self._port or 0) if not self._where else 0
        )
        self._server, self.place = asyncio.run_coroutine_threadsafe(start, self._loop).result(10)

    def down(self) -> None:
        """Stop listening; connections that are open stay so."""

        async def stop() -> None:
            assert self._server is not None
            self._server.close()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)
        if self._where:
            Path(self._where).unlink(missing_ok=True)

    def let_go(self, number: float, *, open_: bool = True) -> None:
        """Let streams with `hold=number` go on; or let later ones wait again."""
        gate = self.engine.held(number)
        self._loop.call_soon_threadsafe(gate.set if open_ else gate.clear)

    @property
    def log(self) -> list[dict[str, Any]]:
        return self.engine.log

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.place}"

    def marked(self, mark: str) -> dict[str, Any] | None:
        """The newest request whose id is `mark`."""
        return next((entry for entry in reversed(self.log) if entry["headers"].get("x-request-id") == mark), None)

    def release(self, count: int = 1) -> None:
        """Let so many events pass the gate."""
        for _ in range(count):
            self._loop.call_soon_threadsafe(self.engine.gate.release)

    def close(self) -> None:
        """End the thread."""

        async def stop() -> None:
            # Until none is left, with turns of the loop between: a connection may just be appearing, a task may take
            # its first cancellation for another's, and a closed connection needs a turn.
            for _ in range(20):
                tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for _ in range(5):
                    await asyncio.sleep(0)
                if not tasks:
                    break
            asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)

        self.down()
        asyncio.run_coroutine_threadsafe(stop(), self._loop)
        self._thread.join(10)
        self._loop.close()


class Gateway:
    """`python -m appliance gateway` with a configuration in a directory of its own."""

    def __init__(self, directory: Path, config: str, *, wait: bool = True, **environment: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.run = directory, directory / "run"
        (self.run / "gateway").mkdir(parents=True, exist_ok=True)
        self.config_file = directory / "config.toml"
        self.config_file.write_text(config)
        self.log_file = directory / "log"
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), **environment}
        self.port = self.admin_port = 0
        self.incidents: list[dict[str, Any]] | None = None  # what `fleet` tells of them
        self.fleet_at: float | None = None  # when `fleet` says that it was written; None: now
        self.drift: list[dict[str, Any]] | None = None
        self.process = self._start()
        if wait:
            self.wait_ready()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "appliance", "gateway", "--config", str(self.config_file), "--run", str(self.run)]

    def start_again(self) -> None:
        """A new process with the same configuration, at ports of its own."""
        self.log_file.unlink()
        self.process = self._start()
        self.wait_ready()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log_file.open("ab") as log:
            return subprocess.Popen(self.command(), stdout=log, stderr=log, env=self.environment, cwd="/")

    def wait_ready(self) -> None:
        """Until it says where it listens."""

        def listening() -> re.Match[str] | None:
            assert self.process.poll() is None, f"the gateway ended: {self.text()}"
            return re.search(r"listening on \S*?:(\d+)[^\n]*, admin on \S*:(\d+)", self.text())

        found = wait_until(listening, 30, "the gateway listens", 0.02)
        assert found
        self.port, self.admin_port = int(found[1]), int(found[2])

    def text(self) -> str:
        """All that it has printed."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def reload(self) -> None:
        before = self.text().count("were read again")
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.text().count("were read again") > before, 10, "the reload", 0.02)

    def stop(self, limit: float = 15) -> int:
        """SIGTERM, and how it ended."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the gateway did not stop within {limit:g} s: {self.text()[-2000:]}") from None

    def kill(self) -> None:
        """End it without more ado."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def engine_state(self, name: str, phase: str, **fields: Any) -> None:
        """What the launcher of engine `name` would have written."""
        directory = self.run / "engines" / name
        directory.mkdir(parents=True, exist_ok=True)
        now = time.time()
        state = {"engine": name, "start": "a", "pid": 1, "phase": phase, "message": "", "since": now, "started": now}
        replace_json(
            directory / "state.json", {**state, "ready": None, "digest": "", "model": "", "served": [], **fields}
        )

    def fleet(self, **engines: dict[str, Any]) -> None:
        """What the supervisor would have written."""
        (self.run / "supervisor").mkdir(exist_ok=True)
        value: dict[str, object] = {"at": self.fleet_at or time.time(), "mode": "act", "engines": engines}
        value |= {name: told for name in ("incidents", "drift") if (told := getattr(self, name)) is not None}
        replace_json(self.run / "supervisor" / "fleet.json", value)

    def request(
        self, method: str, path: str, body: object = None, *, port: int = 0, limit: float = 20, **fields: str
    ) -> Response:
        """One request on a connection of its own, read to the end; `limit` seconds for each silence."""
        with self.open(method, path, body, port=port, limit=limit, **fields) as response:
            return Response(response.status, dict_of(response), response.read())

    @contextlib.contextmanager
    def open(
        self, method: str, path: str, body: Any = None, *, port: int = 0, limit: float = 20, **fields: str
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=limit)
        data = body if body is None or isinstance(body, (bytes, str, Iterator)) else json.dumps(body)
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        try:
            yield response
        finally:
            response.close()
            connection.close()

    def admin(self, path: str) -> Any:
        """JSON of the admin listener."""
        return json.loads(self.request("GET", path, port=self.admin_port).body)

    def metric(self, name: str) -> float:
        """One figure without labels of the gateway's own."""
        text = self.request("GET", "/metrics", port=self.admin_port).body
        found = re.search(rb"^llm_appliance_%b (\S+)" % name.encode(), text, re.MULTILINE)
        assert found, f"there is no {name}"
        return float(found[1])

    def control(self, path: str) -> Any:
        """JSON of the control socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.run / "gateway" / "control.sock"))
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            data = b"".join(iter(lambda: connection.recv(65536), b""))
        return json.loads(data.partition(b"\r\n\r\n")[2])

    def serves(self, name: str) -> bool:
        """Whether it sends calls to the replica of that name."""
        replicas = (replica for engine in self.admin("/status")["engines"] for replica in engine["replicas"])
        return any(replica["name"] == name and replica["serving"] for replica in replicas)

    def wait_serving(self, name: str) -> None:
        wait_until(lambda: self.serves(name), 10, f"the gateway sends calls to {name}", 0.05)

    def idle(self) -> bool:
        """Whether nothing is counted as running or waiting."""
        status = self.admin("/status")
        return bool(status["gateway"]["running"] == 0 and status["gateway"]["queued"] == 0)


class Response:
    """A whole response; header names in lower case."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error's code."""
        return str(self.json["error"]["code"])

    @property
    def events(self) -> list[bytes]:
        """The events of a stream, comments left out."""
        return [event for event in self.body.split(b"\n\n") if event and not event.startswith(b":")]

    @property
    def comments(self) -> int:
        return sum(event.startswith(b":") for event in self.body.split(b"\n\n"))


def dict_of(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def chat(text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A chat request's body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def fault(script: str, **fields: Any) -> dict[str, Any]:
    """A chat request that the fake engine answers by `script`."""
    return chat(f"[[fault:{script}]]", **fields)


def config(engines: str, *, gateway: str = "", rest: str = "", auth: str = "required = false") -> str:
    """A configuration that listens where the kernel says."""
    return (
        f'[gateway]\nlisten = ["127.0.0.1:0"]\nadmin_listen = "127.0.0.1:0"\n{gateway}\n[auth]\n{auth}\n'
        f"[audit]\nenabled = false\n{rest}\n{engines}\n"
    )


def remote(*urls: str, **fields: Any) -> str:
    """An `[[engine]]` elsewhere."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["[[engine]]", 'model = "builtin:smollm2-135m"', f"remote = {json.dumps(list(urls))}", *lines])
