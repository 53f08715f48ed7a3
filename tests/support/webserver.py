"""nginx and Caddy in front of a gateway, each by the example that the package brings; only names and places differ."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.support import provisions
from tests.support.certificates import certificate, trusting
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "packaging/examples"
NAME = "llm.example.com"
# What nginx's own main file would say around a file of conf.d; everything that is written goes below one directory.
AROUND_NGINX = """daemon off; master_process off; pid {here}/pid; error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    default_type application/octet-stream; access_log off;
    gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any;
    client_body_temp_path {here}/body; proxy_temp_path {here}/proxy; fastcgi_temp_path {here}/f;
    uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;
{site}
}}
"""


class WebServer:
    """One running server with TLS on `port`. `changes` replace text of the example; text that is not there fails."""

    def __init__(self, kind: str, directory: Path, upstream: int, *changes: tuple[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.kind, self.directory = kind, directory
        self.certificate = certificate(directory, NAME)
        self.port = free_port()
        self.log = directory / "log"
        command = self._nginx(upstream, changes) if kind == "nginx" else self._caddy(upstream, changes)
        environment = {**os.environ, "HOME": str(directory), "XDG_DATA_HOME": str(directory), "GOMAXPROCS": "2"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        wait_until(self._answers, 30, f"{kind} listens", 0.02)

    def _nginx(self, upstream: int, changes: tuple[tuple[str, str], ...]) -> list[str]:
        site = _changed(
            (EXAMPLES / "nginx.conf").read_text(),
            ("listen 443 ssl", f"listen 127.0.0.1:{self.port} ssl"),
            ("server 127.0.0.1:8080;", f"server 127.0.0.1:{upstream};"),
            (f"/etc/ssl/certs/{NAME}.pem", str(self.certificate)),
            (f"/etc/ssl/private/{NAME}.key", str(self.directory / "key.pem")),
            *changes,
        )
        (self.directory / "nginx.conf").write_text(AROUND_NGINX.format(here=self.directory, site=site))
        return [str(provisions.nginx()), "-p", str(self.directory), "-e", "stderr", "-c", "nginx.conf"]

    def _caddy(self, upstream: int, changes: tuple[tuple[str, str], ...]) -> list[str]:
        key = self.directory / "key.pem"
        site = _changed(
            (EXAMPLES / "Caddyfile").read_text(),
            (f"\n{NAME} {{\n", f"\nhttps://localhost:{self.port} {{\n\ttls {self.certificate} {key}\n"),
            ("127.0.0.1:8080", f"127.0.0.1:{upstream}"),
            *changes,
        )
        own = "{\n\tadmin off\n\tauto_https disable_redirects\n\tdefault_bind 127.0.0.1\n}\n"
        (self.directory / "Caddyfile").write_text(own + site)
        return [str(provisions.caddy()), "run", "--config", str(self.directory / "Caddyfile"), "--adapter", "caddyfile"]

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")

    @property
    def context(self) -> ssl.SSLContext:
        """For a client that trusts its certificate."""
        return trusting(self.certificate)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def _changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text, f"the example does not say {old!r}"
        text = text.replace(old, new)
    return text


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many, each another one: they are looked for together."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]
