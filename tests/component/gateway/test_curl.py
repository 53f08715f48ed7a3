"""curl against the gateway: streams as they come, compression that is offered, HTTP/1.0, a body that waits."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.gatewayprocess import FakeEngine, Gateway, chat, fault
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"


def command(gateway: Gateway, *options: str, path: str = CHAT) -> list[str]:
    return ["curl", "-sS", "-m", "30", *options, f"http://127.0.0.1:{gateway.port}{path}"]


def curl(gateway: Gateway, *options: str, body: Any = None, path: str = CHAT) -> str:
    data = [] if body is None else ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    done = subprocess.run(command(gateway, *data, *options, path=path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_stream_line_by_line(gateway: Gateway, engine: FakeEngine) -> None:
    """`-N`: an event is sent only after curl has printed the one before it."""
    body = json.dumps(fault("gate,tokens=3", stream=True, stream_options={"include_usage": True}))
    argv = command(gateway, "-N", "-H", "Content-Type: application/json", "-d", body)
    engine.release()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        events = []
        for line in process.stdout:
            if line.startswith("data: "):
                events.append(line)
                if len(events) < 6:
                    engine.release()
        assert process.wait(30) == 0
    assert len(events) == 6 and events[-1] == "data: [DONE]\n"


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_never_compressed(gateway: Gateway, stream: bool) -> None:
    out = curl(gateway, "--compressed", "-i", body=chat(stream=stream))
    head, _, rest = out.replace("\r", "").partition("\n\n")
    assert "content-encoding" not in head.lower() and "200 OK" in head
    assert "Paris" in rest


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0(gateway: Gateway, stream: bool) -> None:
    out = curl(gateway, "--http1.0", "-i", body=chat(stream=stream))
    head, _, rest = out.replace("\r", "").partition("\n\n")
    assert "connection: close" in head.lower() and "transfer-encoding" not in head.lower()
    assert rest.endswith("data: [DONE]\n\n") if stream else json.loads(rest)["choices"]


def test_a_large_body_waits_to_be_asked_for(gateway: Gateway, tmp_path: Path) -> None:
    """curl says `Expect: 100-continue` by itself for what is large, and sends at once when told to."""
    file = tmp_path / "body"
    file.write_text(json.dumps(chat("x" * 2_000_000)))
    said = subprocess.run(
        command(gateway, "-v", "--expect100-timeout", "20", "-H", "Expect: 100-continue", "-d", f"@{file}"),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "HTTP/1.1 100 Continue" in said.stderr and "HTTP/1.1 200 OK" in said.stderr
    assert json.loads(said.stdout)["choices"]


def test_a_refusal_comes_before_the_body(gateway: Gateway, tmp_path: Path) -> None:
    """A body that is too large is not asked for: the answer comes, and nothing of the body goes."""
    file = tmp_path / "body"
    with file.open("wb") as out:
        out.truncate((64 << 20) + 1)
    said = subprocess.run(
        command(gateway, "-v", "-H", "Expect: 100-continue", "--data-binary", f"@{file}"),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert json.loads(said.stdout)["error"]["code"] == "request_too_large", said.stderr[-2000:]
    assert "100 Continue" not in said.stderr


def test_a_form_with_a_file(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF\0\xff\r\n--")
    file = ["-F", f"file=@{tmp_path / 'a.wav'}"]
    out = curl(gateway, *file, "-F", "model=smollm2-135m", path="/v1/audio/transcriptions")
    assert "Paris" in json.loads(out)["text"]


def test_ctrl_c_ends_the_engine_s_work(gateway: Gateway, engine: FakeEngine) -> None:
    argv = command(gateway, "-N", "-H", "X-Request-Id: interrupted", "-d", json.dumps(fault("stall=2", stream=True)))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline().startswith(b"data: ")
        process.terminate()
        process.wait(30)
    wait_until(lambda: (engine.marked("interrupted") or {}).get("aborted"), 10, "it is ended", 0.02)
