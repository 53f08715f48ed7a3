"""Readiness against an HTTP server on a unix socket that has only the routes of a case."""

from __future__ import annotations

import contextlib
import json
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from appliance.engine.ready import Probe
from appliance.host.realwork import Outcome, attempt, listening

Routes = dict[str, tuple[int, Any]]
TOKEN = {"choices": [{"text": "-"}], "usage": {"completion_tokens": 1}}
VECTOR = {"data": [{"embedding": [0.1, 0.2]}]}


@contextlib.contextmanager
def server(routes: Routes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = routes.get(self.path, (404, {"detail": "Not Found"}))
            body = json.dumps(answer).encode() if answer is not None else b"not JSON"
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "test"

        def log_message(self, format: str, *args: Any) -> None:
            return

    with contextlib.ExitStack() as stack:
        path = f"{stack.enter_context(tempfile.TemporaryDirectory())}/vllm.sock"
        listener = stack.enter_context(socketserver.ThreadingUnixStreamServer(path, Handler))
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(listener.shutdown)
        yield path


@pytest.mark.parametrize(
    ("routes", "outcome"),
    [
        ({"/v1/completions": (200, TOKEN)}, Outcome(True, "one token was made")),
        ({"/v1/embeddings": (200, VECTOR)}, Outcome(True, "one embedding was made")),
        ({"/score": (200, {"data": [{"score": 0.5}]})}, Outcome(True, "one score was made")),
        ({"/classify": (200, {"data": [{}]})}, Outcome(True, "one classification was made")),
        ({"/v1/audio/transcriptions": (200, {"text": ""})}, Outcome(True, "one second of audio was made")),
        ({"/v1/audio/transcriptions": (400, {}), "/v1/completions": (200, TOKEN)}, Outcome(True, "one token was made")),
        ({"/v1/completions": (500, {"error": {}})}, None),
        ({"/v1/completions": (200, None)}, None),
        ({"/v1/completions": (200, {"choices": []})}, None),
        ({"/v1/embeddings": (200, {"data": [{"embedding": []}]})}, None),
        ({"/v1/completions": (400, {})}, Outcome(False, "no unit of work could be tried: /v1/completions answers 400")),
        ({}, Outcome(False, "the engine has no route that this version knows how to try")),
    ],
)
def test_work(routes: Routes, outcome: Outcome | None) -> None:
    with server(routes) as path:
        assert listening(path)
        assert attempt(path, "m", 5.0) == outcome


def test_nobody_listens(tmp_path: Any) -> None:
    assert not listening(str(tmp_path / "none"))
    assert attempt(str(tmp_path / "none"), "m", 5.0) is None


def test_the_probe_tells_its_two_steps() -> None:
    told: list[Outcome | None] = []
    done = threading.Event()

    def tell(outcome: Outcome | None) -> None:
        told.append(outcome)
        if outcome is not None:
            done.set()

    with server({"/v1/completions": (200, TOKEN)}) as path:
        Probe(path, "m", tell).start()
        assert done.wait(5.0)
    assert told == [None, Outcome(True, "one token was made")]


class Slow(dict[str, tuple[int, Any]]):
    """Routes whose first request for a token waits until the test says so."""

    def __init__(self) -> None:
        super().__init__({"/v1/completions": (200, TOKEN)})
        self.asked, self.released = threading.Event(), threading.Event()

    def get(self, path: str, default: Any = None) -> Any:
        if path == "/v1/completions":
            self.asked.set()
            assert self.released.wait(5.0)
        return super().get(path, default)


def test_a_stopped_probe_tells_nothing_more() -> None:
    """The launcher closes its end then: the descriptor's number may be another file's."""
    told: list[Outcome | None] = []
    routes = Slow()
    with server(routes) as path:
        probe = Probe(path, "m", told.append)
        probe.start()
        assert routes.asked.wait(5.0)
        probe.stop()
        routes.released.set()
        thread = next(thread for thread in threading.enumerate() if thread.name == "readiness")
        thread.join(5.0)
        assert not thread.is_alive()
    assert told == [None]
