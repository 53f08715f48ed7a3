"""What stands between clients and engine: nothing, nginx, vllm-router. `gateway` has our own."""

from __future__ import annotations

import http.client
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support import provisions
from tests.support.waiting import wait_until
from tests.support.webserver import free_port, free_ports

from . import proctree

START = 30.0  # seconds that a proxy has to begin
STOP = 5.0

NGINX = """daemon off; worker_processes 1; worker_rlimit_nofile {files}; pid {here}/pid; error_log stderr warn;
{user}
events {{ worker_connections {connections}; }}
http {{
    access_log off; server_tokens off; keepalive_timeout 75; keepalive_requests 1000000;
    client_max_body_size 64m; client_body_buffer_size 2m;
    client_body_temp_path {here}/body; proxy_temp_path {here}/proxy; fastcgi_temp_path {here}/f;
    uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;
    map_hash_bucket_size 128;
    map $http_authorization $known {{ default 0; {keys} }}
    upstream engine {{ server 127.0.0.1:{engine}; keepalive 2048; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            if ($known = 0) {{ return 401; }}
            proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_buffering off; proxy_read_timeout 600s; proxy_send_timeout 600s;
        }}
        location = /health {{ proxy_pass http://engine; }}
    }}
}}
"""


class NotHere(Exception):
    """A proxy cannot be had on this machine; the text says why."""


class Proxy:
    """One that runs: its port, the file of keys that it takes, and its processes."""

    def __init__(self, name: str, port: int, keys: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self.name, self.port, self.keys, self.process = name, port, keys, process

    def family(self) -> list[int]:
        """Pids; none where nothing stands between."""
        return proctree.family(self.process.pid) if self.process is not None else []


@contextmanager
def direct(engine: int, directory: Path, keys: Path) -> Iterator[Proxy]:
    """The engine itself."""
    yield Proxy("direct", engine, keys)


@contextmanager
def nginx(engine: int, directory: Path, keys: Path) -> Iterator[Proxy]:
    """One worker that knows the keys, buffers no answer, and keeps connections to the engine."""
    try:
        found = provisions.nginx()
    except (OSError, RuntimeError) as error:
        raise NotHere(str(error)) from None
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    port = free_port()
    known = " ".join(f'"Bearer {key}" 1;' for key in keys.read_text().split())
    (directory / "nginx.conf").write_text(
        NGINX.format(here=directory, files=files, connections=files // 2, keys=known, engine=engine, port=port,
                     user="user root;" if os.geteuid() == 0 else "")
    )  # fmt: skip
    command = [str(found), "-p", str(directory), "-e", "stderr", "-c", "nginx.conf"]
    with running(command, directory, port, "/health") as process:
        yield Proxy("nginx", port, keys, process)


@contextmanager
def vllm_router(engine: int, directory: Path, keys: Path) -> Iterator[Proxy]:
    """As `vllm-router --worker-urls` runs; it has no keys of clients to look at."""
    try:
        found = provisions.vllm_router()
    except (OSError, RuntimeError) as error:
        raise NotHere(str(error)) from None
    port, prometheus = free_ports(2)
    command = [
        str(found), "--host", "127.0.0.1", "--port", str(port), "--worker-urls", f"http://127.0.0.1:{engine}",
        "--policy", "round_robin", "--prometheus-host", "127.0.0.1", "--prometheus-port", str(prometheus),
        "--log-level", "warning", "--request-timeout-secs", "600", "--worker-startup-timeout-secs", "30",
    ]  # fmt: skip
    with running(command, directory, port, "/health") as process:
        yield Proxy("vllm-router", port, keys, process)


@contextmanager
def running(command: Sequence[str], directory: Path, port: int, health: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server whose output goes to a file, from the moment at which it answers; it is stopped with all below it."""
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        until_healthy(process, port, health, lambda: log.read_text(errors="replace"))
        yield process
    finally:
        stop(process)


def until_healthy(process: subprocess.Popen[bytes], port: int, path: str, said: Callable[[], str]) -> None:
    """Until it answers 200. Raises RuntimeError with what it `said` where it ended or does not."""

    def healthy() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}: {said()[-2000:]}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    try:
        wait_until(healthy, START, f"{process.args!r} serves", 0.05)
    except AssertionError as error:
        raise RuntimeError(f"{error}: {said()[-2000:]}") from None


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and what is left below it."""
    below = proctree.family(process.pid)[1:]
    process.terminate()
    try:
        process.wait(STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in below:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory with a short name, for sockets' sake."""
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
