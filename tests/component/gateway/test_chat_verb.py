"""`llm-appliance chat` against a real gateway."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from appliance.config.model import KeyLimits
from appliance.host import keystore
from tests.component.gateway.test_life import Activated
from tests.support.gatewayprocess import ROOT, FakeEngine, Gateway, config, remote
from tests.support.waiting import wait_until

MOST = 1_000  # tokens of an answer that the key may ask for


@pytest.fixture(scope="module")
def served(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, str]]:
    tmp_path = tmp_path_factory.mktemp("chat")
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in ("admin", "public")}
    _, secret = keystore.create(f"{tmp_path}/keys.toml", "me", time.time(), limits=KeyLimits(max_tokens=MOST))
    text = config(remote(engine.url), auth=f'keys_file = "{tmp_path}/keys.toml"')
    port = sockets["public"].getsockname()[1]
    made = Activated(tmp_path / "g", text.replace("127.0.0.1:0", f"127.0.0.1:{port}", 1), sockets)
    yield made, secret
    made.kill()
    for one in sockets.values():
        one.close()


def chat(gateway: Gateway, *words: str, key: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "appliance", "chat", "--config", str(gateway.config_file), *words]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT), "LLM_APPLIANCE_API_KEY": key},
    )  # fmt: skip


def test_an_answer_comes_and_errors_are_explained(served: tuple[Gateway, str]) -> None:
    gateway, secret = served
    asked = [
        chat(gateway, "What is the capital of France?", key=secret),
        chat(gateway, "hi", "--key", "sk-wrong"),
        chat(gateway, "hi"),
        chat(gateway, "hi", "--model", "no", key=secret),
        chat(gateway, "[[fault:reset=4]]", key=secret),
        chat(gateway, "hi", "--max-tokens", str(MOST + 1), key=secret),
    ]
    results = [(one.communicate(timeout=30), one.returncode) for one in asked]
    (good, wrong, keyless, unknown, broken, long) = results
    assert good[1] == 0 and "Paris" in good[0][0]
    assert wrong[1] == 1 and "not known" in wrong[0][1] and "keys list" in wrong[0][1]
    assert keyless[1] == 1 and "keys create" in keyless[0][1]
    assert unknown[1] == 1 and "no engine serves" in unknown[0][1] and "llm-appliance status" in unknown[0][1]
    assert broken[1] == 1 and "broke off" in broken[0][1] and "The capital" in broken[0][0]
    assert long[1] == 2 and str(MOST) in long[0][1]
    assert not any("Traceback" in err for (_, err), _ in results)


def test_the_key_may_come_from_a_file(served: tuple[Gateway, str], tmp_path: Path) -> None:
    gateway, secret = served
    file = tmp_path / "key"
    file.write_text(f"{secret}\n")
    asked = chat(gateway, "What is the capital of France?", "--key-file", str(file), key="sk-wrong")
    assert "Paris" in asked.communicate(timeout=30)[0] and asked.returncode == 0


def test_ctrl_c_ends_the_answer_and_the_engines_work(served: tuple[Gateway, str], engine: FakeEngine) -> None:
    gateway, secret = served
    engine.log.clear()
    asked = chat(gateway, "[[fault:gap=0.05,tokens=5000]]", key=secret)
    wait_until(lambda: engine.log and engine.log[-1]["events"] > 3, 15, "it streams", 0.05)
    asked.send_signal(signal.SIGINT)
    _, err = asked.communicate(timeout=10)
    assert asked.returncode == 130 and "Traceback" not in err
    wait_until(lambda: engine.log[-1]["aborted"], 3, "the engine stops", 0.05)


def test_no_gateway_is_3(tmp_path: Path, served: tuple[Gateway, str]) -> None:
    gateway, secret = served
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        file = tmp_path / "config.toml"
        file.write_text(gateway.config_file.read_text().replace(f":{gateway.port}", f":{free.getsockname()[1]}"))
        asked = chat(gateway, "hi", "--config", str(file), key=secret)
        _, err = asked.communicate(timeout=15)
    assert asked.returncode == 3 and "does not answer: connection refused\n" in err


class Told(BaseHTTPRequestHandler):
    """In the gateway's place: one answer, as a model can be brought to write it."""

    TEXT = "x\x1b]0;title\x07\x1b[8m\x9b2J\ny"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        event = json.dumps({"choices": [{"delta": {"content": self.TEXT}}]})
        body = f"data: {event}\n\ndata: [DONE]\n\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.mark.parametrize("terminal", [True, False])
def test_an_answer_does_not_steer_the_terminal_and_is_whole_in_a_pipe(tmp_path: Path, terminal: bool) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Told) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        text = config(remote("http://127.0.0.1:1")).replace("127.0.0.1:0", f"127.0.0.1:{server.server_port}", 1)
        (tmp_path / "config.toml").write_text(text)
        ours, theirs = os.openpty() if terminal else os.pipe()
        words = ("chat", "--config", f"{tmp_path}/config.toml", "--model", "m", "hi")
        command = [sys.executable, "-m", "appliance", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=theirs, env=environment, cwd="/", timeout=30, check=False
        )  # fmt: skip
        server.shutdown()
        thread.join()
    told = os.read(ours, 4096).decode()
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0
    if terminal:
        assert told.replace("\r\n", "\n") == "x?]0;title??[8m?2J\ny\n"
    else:
        assert told == Told.TEXT + "\n"
