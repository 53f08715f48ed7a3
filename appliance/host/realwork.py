"""One real unit of work for whatever an engine serves: proof that it works, at a start and after a long rest.

`/health` is 200 for engines that die at their first request, so it is never asked. A route that the engine does not
have answers 404 and the next one is tried: what kind of model it is, is vLLM's to know.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from .unixhttp import UnixConnection

REQUEST_LIMIT_S = 900.0  # the first request compiles kernels on some GPUs
_BOUNDARY = "llm-appliance-ready"


class Work(NamedTuple):
    """One kind of request; `proof(answer)` says whether the answer holds work done."""

    path: str
    kind: str
    body: Callable[[str], tuple[str, bytes]]
    proof: Callable[[dict[str, Any]], bool]


class Outcome(NamedTuple):
    """What the probe came to: `proven` False when every route refused the request though the engine answers."""

    proven: bool
    message: str


def _json(**fields: object) -> Callable[[str], tuple[str, bytes]]:
    return lambda model: ("application/json", json.dumps({"model": model, **fields}).encode())


def _silence(model: str) -> tuple[str, bytes]:
    """A form with one second of silence, 16 kHz, 16 bit, one channel."""
    samples = bytes(32_000)
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, 1, 1, 16_000, 32_000,
                       2, 16, b"data", len(samples))  # fmt: skip
    form = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="silence.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    ).encode()
    return f"multipart/form-data; boundary={_BOUNDARY}", form + head + samples + f"\r\n--{_BOUNDARY}--\r\n".encode()


def _has_data(answer: dict[str, Any]) -> bool:
    return bool(answer.get("data"))


# Audio first: an audio model may list routes for text that it cannot do.
WORKS: tuple[Work, ...] = (
    Work("/v1/audio/transcriptions", "second of audio", _silence, lambda answer: "text" in answer),
    Work("/v1/completions", "token", _json(prompt="Hi", max_tokens=1, temperature=0),
         lambda answer: bool(answer.get("choices")) and answer.get("usage", {}).get("completion_tokens", 1) > 0),
    Work("/v1/embeddings", "embedding", _json(input="Hi"),
         lambda answer: bool(answer.get("data")) and bool(answer["data"][0].get("embedding"))),
    Work("/score", "score", _json(text_1="Hi", text_2="Hello"), _has_data),
    Work("/classify", "classification", _json(input="Hi"), _has_data),
    Work("/pooling", "pooling", _json(input="Hi"), _has_data),
)  # fmt: skip


def listening(path: str) -> bool:
    """Whether someone accepts on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def attempt(path: str, model: str, limit_s: float = REQUEST_LIMIT_S) -> Outcome | None:
    """Try each kind of work once; None when the engine failed at it and should be asked again. Blocks."""
    refused: list[str] = []
    for work in WORKS:
        try:
            status, answer = _ask(path, work, model, limit_s)
        except (OSError, http.client.HTTPException):
            return None
        if status == 200 and work.proof(answer):
            return Outcome(True, f"one {work.kind} was made")
        if status >= 500 or status == 200:
            return None
        if status not in (404, 405):
            refused.append(f"{work.path} answers {status}")
    if not refused:
        return Outcome(False, "the engine has no route that this version knows how to try")
    return Outcome(False, f"no unit of work could be tried: {', '.join(refused)}")


def _ask(path: str, work: Work, model: str, limit_s: float) -> tuple[int, dict[str, Any]]:
    connection = UnixConnection(path, limit_s)
    try:
        kind, body = work.body(model)
        connection.request("POST", work.path, body, {"Content-Type": kind, "X-Request-Id": "llm-appliance-ready"})
        response = connection.getresponse()
        text = response.read(8 << 20)
    finally:
        connection.close()
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    return response.status, answer if isinstance(answer, dict) else {}
