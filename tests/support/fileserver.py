"""A file server on loopback that misbehaves on request: cuts, lies about length, sends other bytes, forgets ranges."""

from __future__ import annotations

import contextlib
import http.server
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = 16384


@dataclass
class Script:
    """What happens to one path. Each fault is taken off the list by one request; then the server behaves."""

    body: bytes
    faults: list[str] = field(default_factory=list)
    ranges: bool = True


@dataclass
class FileServer:
    """`files` maps a path to its script; `seen` has (path, Range header or None, Authorization or None)."""

    url: str
    files: dict[str, Script] = field(default_factory=dict)
    seen: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    sent: int = 0
    on_block: Callable[[int], None] | None = None  # called with the bytes sent so far


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: FileServer

    def do_GET(self) -> None:
        served = self.served
        served.seen.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        script = served.files.get(self.path)
        if script is None:
            return self._plain(404)
        fault = script.faults.pop(0) if script.faults else ""
        if fault.isdecimal():
            return self._plain(int(fault))
        body = script.body
        start = 0
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "") or "")
        if match is not None and script.ranges and fault != "ignore-range":
            start = int(match[1])
            if start >= len(body):
                return self._plain(416)
        whole = len(body)
        if match is not None and match[2] and script.ranges and fault != "ignore-range":
            body = body[: int(match[2]) + 1]
        if fault == "wrong-bytes":
            body = bytes(len(body))
        length = len(body) - start
        part = start or len(body) < whole
        self.send_response(206 if part else 200)
        if part:
            first = start + 1 if fault == "wrong-range" else start
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{whole}")
        self.send_header("Content-Length", str(length + 7 if fault == "long-length" else length))
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        end = len(body) - length // 2 if fault in ("cut", "reset") else len(body)
        if fault.startswith("cut-at-"):
            end = start + int(fault.removeprefix("cut-at-"))
        for offset in range(start, end, BLOCK):
            block = body[offset : min(offset + BLOCK, end)]
            served.sent += len(block)
            self.wfile.write(block)
            if served.on_block is not None:
                served.on_block(served.sent)
        if fault == "reset":
            linger_off = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_off)
        self.close_connection = True
        return None

    def _plain(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that left is no error here."""


@contextlib.contextmanager
def file_server(certificate: Path | None = None) -> Iterator[FileServer]:
    """Serve on a port of the kernel's choice; over TLS with a certificate (`key.pem` lies beside it)."""
    server = _Server(("127.0.0.1", 0), _Handler)
    served = FileServer(f"http{'s' * (certificate is not None)}://127.0.0.1:{server.server_address[1]}")
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.parent / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.RequestHandlerClass = type("Handler", (_Handler,), {"served": served})
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
