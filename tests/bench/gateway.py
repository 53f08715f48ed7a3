"""Our gateway as it is measured: one process, with everything that it can do switched on.

Keys with every limit, the fair queue, the limit that adapts to the engine, comments in silences, usage that is asked of
the engine for the ledger and hidden from the client, the ledger and its chain on disk, metrics. Standard error is a
socket as the journal's, which a thread of this process empties.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from appliance.config.model import KeyLimits
from appliance.host import keystore
from tests.support.webserver import free_ports

from . import packaged
from .engine import Engine
from .load import load
from .proxies import Proxy, stop, until_healthy

MODEL = "bench"  # as the load asks for it
MANY = 1_000_000_000
LIMITS = KeyLimits(rpm=MANY, tpm=MANY, parallel=MANY, daily_tokens=MANY, monthly_tokens=MANY, max_tokens=100_000,
                   max_prompt=8 << 20, stream_time=3600)  # fmt: skip
CONFIG = """
[gateway]
listen = ["127.0.0.1:{port}"]
admin_listen = "127.0.0.1:{admin}"
[gateway.admission]
max_in_flight = {limit}
queue_size = 16384        # while the limit is being learned, thousands wait
queue_timeout = "120s"
[auth]
keys_file = "{here}/keys.toml"
[audit]
directory = "{here}/audit"
[[engine]]
model = "/models/bench"
remote = {engines}
[engine.vllm]
max_num_seqs = 8192
"""


def write_keys(directory: Path, count: int) -> Path:
    """So many keys with all limits in `keys.toml`; a file with their secrets, a line each."""
    secrets = [keystore.new_secret() for _ in range(count)]
    keystore.write(
        str(directory / "keys.toml"),
        [
            keystore.Key(id=f"k-{n:08x}", name=f"bench-{n}", hash=keystore.hash_of(secret), created=1.0, limits=LIMITS)
            for n, secret in enumerate(secrets)
        ],
    )
    path = directory / "secrets"
    path.write_text("".join(f"{secret}\n" for secret in secrets))
    return path


class Gateway(Proxy):
    """One that runs."""

    admin = 0

    def limit(self) -> int:
        """Requests that may be at work now on all engines together."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=10)
        try:
            connection.request("GET", "/status")
            engines = json.loads(connection.getresponse().read())["engines"]
        finally:
            connection.close()
        return sum(replica["limit"] for engine in engines for replica in engine["replicas"])


@contextmanager
def gateway(engines: Sequence[int], directory: Path, keys: Path, limit: int | None = None) -> Iterator[Gateway]:
    """One in front of the engines at these ports, which are one model's; `keys.toml` lies in the directory.

    `limit`: of requests at work at once on an engine, instead of the one that adapts.
    """
    port, admin = free_ports(2)
    (directory / "audit").mkdir()
    (directory / "run/gateway").mkdir(parents=True)
    (directory / "state/gateway").mkdir(parents=True)
    urls = [f"http://127.0.0.1:{engine}" for engine in engines]
    config = directory / "config.toml"
    config.write_text(
        CONFIG.format(
            port=port, admin=admin, here=directory, engines=json.dumps(urls), limit=json.dumps(limit or "auto")
        )
    )
    command = packaged.command("gateway", "--config", str(config), "--run", str(directory / "run"))
    with _journal() as (stream, said):
        status = os.fstat(stream)
        environment = {
            **os.environ,
            "LLM_APPLIANCE_STATE": str(directory / "state"),
            "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}",
        }
        process = subprocess.Popen(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment
        )
        try:
            until_healthy(process, port, "/readyz", said)
            made = Gateway("gateway", port, keys, process)
            made.admin = admin
            yield made
        finally:
            stop(process)


@contextmanager
def _journal() -> Iterator[tuple[int, Callable[[], str]]]:
    """A stream for a process's words, and the latest of them."""
    ours, theirs = socket.socketpair()
    said = bytearray()

    def read() -> None:
        while data := ours.recv(1 << 16):
            said[:] = (said + data)[-(1 << 16) :]

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield theirs.fileno(), lambda: said.decode(errors="replace")
    finally:
        theirs.close()
        thread.join(5)
        ours.close()


def learn(gateway: Gateway, engine: Engine, streams: int) -> None:
    """Load it until the limit that it learns lets so many streams run at once. Raises RuntimeError when it does not."""
    engine.pace(20, 200)
    for _ in range(6):
        if gateway.limit() >= streams:
            return
        load(gateway.port, gateway.keys, clients=streams * 5 // 4, requests=streams * 2, tokens=5, timeout=150)
    raise RuntimeError(f"after so much load the limit is {gateway.limit()} requests, not {streams}")
