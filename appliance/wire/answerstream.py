"""One streamed answer as its client reads it: when tokens came, what the engine says was used, and how it ended.

A token event is one with choices, whatever text it carries, as `vllm bench serve` counts them; a chat's opening event,
which names the role and has no text, is none.
"""

from __future__ import annotations

import json

from . import sse
from .openai import Shape
from .usage import Usage, find_usage

_OPENING = (b'"content":""', b'"content": ""', b'"content":null', b'"content": null')
UNNAMED = "error in the stream"


class AnswerReader:
    """Feed payload with its moment. `failure` is what an error event was called; `done` that the answer is whole."""

    __slots__ = ("_splitter", "done", "failure", "first", "gaps", "last", "message", "usage")

    def __init__(self) -> None:
        self._splitter = sse.EventSplitter()
        self.first = self.last = 0.0  # moments of the first and the newest token; 0: none yet
        self.gaps: list[float] = []
        self.usage: Usage | None = None
        self.failure = self.message = ""
        self.done = False

    @property
    def events(self) -> int:
        """Token events so far."""
        return len(self.gaps) + 1 if self.first else 0

    def feed(self, payload: bytes, now: float) -> None:
        """Bytes that arrived at `now`. Raises sse.EventTooLong."""
        for event in self._splitter.feed(payload):
            kind = sse.kind(event, Shape.OPENAI)
            if kind is sse.Kind.DELTA:
                if self.first:
                    self.gaps.append(now - self.last)
                elif _opens(event):
                    continue
                else:
                    self.first = now
                self.last = now
            elif kind is sse.Kind.USAGE:
                self.usage = find_usage(event) or self.usage
            elif kind is sse.Kind.DONE:
                self.done = True
            elif kind is sse.Kind.ERROR and not self.failure:
                name, self.message = named_error(sse.data_of(event) or b"")
                self.failure = name or UNNAMED


def _opens(event: bytes) -> bool:
    return b'"role"' in event and any(mark in event for mark in _OPENING) and b'"text"' not in event


def named_error(body: bytes) -> tuple[str, str]:
    """Code and sentence of an error body or event, of the gateway, of vLLM or of anybody; empty where it says none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    told = value.get("error", value) if isinstance(value, dict) else None
    if isinstance(told, str):
        return "", told
    if not isinstance(told, dict):
        return "", ""
    code = next((told[key] for key in ("code", "type") if isinstance(told.get(key), str) and told[key]), "")
    return code, str(told.get("message") or told.get("detail") or "")
