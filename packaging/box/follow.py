"""Watching an installation come to life: the runtime's and the engines' own words, until a model answers."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import IO, Any

from .hostside import Target
from .places import BoxError

RUNTIME = "/run/llm-appliance/runtime/state.json"
ENGINES = "/run/llm-appliance/engines"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback is never behind a proxy
QUESTION = "What is the capital of France?"


class Progress:
    """Says which step runs and how long all has taken; keeps the one deadline."""

    def __init__(self, limit: float) -> None:
        self._started = time.monotonic()
        self._limit = limit
        self._last = ""

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def step(self, number: int, steps: int, words: str) -> None:
        """A step begins."""
        print(f"[{self.elapsed():4.0f} s] {number}/{steps} {words}", flush=True)

    def tell(self, words: str) -> None:
        """Something changed within a step; said once."""
        if words != self._last:
            self._last = words
            print(f"[{self.elapsed():4.0f} s]     {words}", flush=True)

    def check(self, waiting_for: str) -> None:
        """Raises TimeoutError when the whole has taken too long."""
        if self.elapsed() > self._limit:
            raise TimeoutError(f"gave up after {self.elapsed():.0f} s, waiting for {waiting_for}")

    @contextlib.contextmanager
    def log(self, name: str) -> Iterator[IO[bytes]]:
        """A file for a command's output."""
        with tempfile.TemporaryFile(prefix=name.rpartition("/")[2]) as file:
            yield file


def follow(target: Target, progress: Progress, each: Callable[[], None], port: int = 8080) -> None:
    """Wait until the gateway is ready, calling `each` every second.

    Raises BoxError when the runtime or an engine says that it will not get better.
    """
    spoken = -10.0
    while True:
        ready, words = _ready(port)
        if ready:
            return
        each()
        _refuse_what_will_not_get_better(target)
        words = _words(target) or words
        if progress.elapsed() - spoken >= 5:
            progress.tell(words)
            spoken = progress.elapsed()
        progress.check(words)
        time.sleep(1)


def _ready(port: int) -> tuple[bool, str]:
    try:
        with DIRECT.open(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            return answer.status == 200, ""
    except urllib.error.HTTPError as problem:
        return False, _message(problem.read(3000))
    except OSError as problem:
        return False, f"the gateway: {problem}"


def _message(body: bytes) -> str:
    """The sentence in an error's body."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode(errors="replace").strip()


def _words(target: Target) -> str:
    runtime = _json(target, RUNTIME)
    if runtime and runtime.get("phase") != "complete":
        percent = runtime.get("percent")
        return f"runtime: {runtime.get('message')}" + (
            f" ({percent:.0f} %)" if isinstance(percent, (int, float)) else ""
        )
    for engine in _engines(target):
        state = _json(target, f"{ENGINES}/{engine}/state.json")
        if state and state.get("phase") != "serving":
            return f"engine {engine}: {state.get('phase')}: {state.get('message')}"
    return ""


def _refuse_what_will_not_get_better(target: Target) -> None:
    fleet = _json(target, "/run/llm-appliance/supervisor/fleet.json") or {}
    engines = fleet.get("engines", {})
    held = {name: entry for name, entry in engines.items() if entry.get("state") == "held"}
    if engines and len(held) == len(engines):
        name, entry = next(iter(held.items()))
        raise BoxError(f"engine {name} is held: {entry.get('cause')}: {entry.get('reason')}")
    runtime = _json(target, RUNTIME) or {}
    if runtime.get("phase") == "failed":
        unit = target.sh("systemctl show -P ActiveState llm-runtime.service", check=False).out.strip()
        if unit == "failed":  # while it tries again by itself it is `activating`
            raise BoxError(f"the runtime could not be built: {runtime.get('message')}")


def _engines(target: Target) -> list[str]:
    try:
        return sorted(entry.name for entry in target.path(ENGINES).iterdir())
    except OSError:
        return []


def _json(target: Target, inside: str) -> dict[str, Any] | None:
    try:
        value = json.loads(target.path(inside).read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def prove(key: str, port: int = 8080) -> str:
    """Ask the first model and return its answer. Raises BoxError when the default model does not say Paris."""
    model = json.loads(_when_known(key, port))["data"][0]["id"]
    body = {"model": model, "temperature": 0, "max_tokens": 40, "messages": [{"role": "user", "content": QUESTION}]}
    answer = str(json.loads(_call(key, port, "/v1/chat/completions", body))["choices"][0]["message"]["content"])
    if model == "smollm2-135m" and "Paris" not in answer:
        raise BoxError(f"the model answered, but not rightly: {answer!r}")
    return answer.strip()


def _when_known(key: str, port: int) -> bytes:
    """/v1/models, a little patient: the gateway sees a new key within a second or two."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return _call(key, port, "/v1/models")
        except BoxError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _call(key: str, port: int, route: str, body: dict[str, Any] | None = None) -> bytes:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{route}", data, headers)
    try:
        with DIRECT.open(request, timeout=120) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as problem:
        said = problem.read(2000).decode(errors="replace")
        raise BoxError(f"{route} answered {problem.code}: {said}") from problem
