"""A gateway that only answers GET /status, with the object that a test gives."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any

from tests.support.stage import LIMIT


class Gateway:
    """Answers GET /status with what a test gives."""

    def __init__(self) -> None:
        self.body = b"{}"
        gateway = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(gateway.body)))
                self.end_headers()
                self.wfile.write(gateway.body)

            def log_message(self, *_: Any) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(LIMIT)

    def tell(self, value: dict[str, Any]) -> None:
        """Answer with this from now on."""
        self.body = json.dumps(value).encode()


def told(*replicas: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A status object with the fields that people are shown."""
    engines = [
        {
            "name": r["name"],
            "model": "m",
            "served_names": ["smollm2"],
            "serving": r["state"] == "serving",
            "replicas": [r],
        }
        for r in replicas
    ]
    gateway = {"listen": ["127.0.0.1:8080"], "running": 3, "queued": 1, "tokens_per_second": 41.0}
    return {
        "v": 1,
        "at": 1000.0,
        "state": "serving",
        "versions": {"appliance": "0.1.0", "vllm": "0.32.0", "device": "cpu"},
        "gateway": gateway,
        "config": {"valid": True, "origin": "file", "problems": []},
        "keys": {"required": True, "count": 1, "problem": None, "hint": None},
        "runtime": None,
        "engines": engines,
        **more,
    }


def replica(name: str, state: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "since": 1000.0, "in_flight": 1, "limit": 64, "restarts": 0, **more}
