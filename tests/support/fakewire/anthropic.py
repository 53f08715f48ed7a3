"""Anthropic's messages, as vLLM writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .answer import PROMPT_TOKENS, Said, event, said


def events(model: str, path: str, request: dict[str, Any], answer: Said) -> Iterator[bytes]:
    """The stream of a message: one content block, of text or of a tool's arguments."""
    message = _message(model, [], None, 0)
    block = {"type": "tool_use", "id": "toolu_1", "name": answer.tool, "input": {}} if answer.tool else {
        "type": "text", "text": ""}  # fmt: skip
    yield _event({"type": "message_start", "message": message})
    yield _event({"type": "content_block_start", "index": 0, "content_block": block})
    for piece in answer.pieces:
        delta = {"type": "text_delta", "text": piece}
        if answer.tool:
            delta = {"type": "input_json_delta", "partial_json": piece}
        yield _event({"type": "content_block_delta", "index": 0, "delta": delta})
    yield _event({"type": "content_block_stop", "index": 0})
    yield _event({"type": "message_delta", "delta": {"stop_reason": _stop(answer), "stop_sequence": None},
                  "usage": _usage(len(answer.pieces))})  # fmt: skip
    yield _event({"type": "message_stop"})


def error_event() -> bytes:
    return _event({"type": "error", "error": {"type": "internal_error", "message": "EngineCore encountered an issue."}})


def whole(model: str, path: str, request: dict[str, Any], count: int) -> dict[str, Any]:
    """A message, or the count of a prompt's tokens."""
    if path.endswith("/count_tokens"):
        return {"input_tokens": PROMPT_TOKENS}
    answer = said(request, count)
    block: dict[str, Any] = {"type": "text", "text": answer.text}
    if answer.tool:
        block = {"type": "tool_use", "id": "toolu_1", "name": answer.tool, "input": json.loads(answer.text)}
    return _message(model, [block], _stop(answer), len(answer.pieces))


def _message(model: str, content: list[dict[str, Any]], stop: str | None, count: int) -> dict[str, Any]:
    return {"id": "msg_fake", "type": "message", "role": "assistant", "content": content, "model": model,
            "stop_reason": stop, "stop_sequence": None, "usage": _usage(count)}  # fmt: skip


def _stop(answer: Said) -> str:
    return "tool_use" if answer.tool else "end_turn"


def _usage(count: int) -> dict[str, Any]:
    return {"input_tokens": PROMPT_TOKENS, "output_tokens": count}


def _event(body: dict[str, Any]) -> bytes:
    return event(body, body["type"])
