"""OpenAI's Responses API, as vLLM writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .answer import PROMPT_TOKENS, Said, event, said
from .openai import error_event as error_event  # vLLM writes the same one here


def events(model: str, path: str, request: dict[str, Any], answer: Said) -> Iterator[bytes]:
    """The stream of a response: one item, a message or a function call."""
    bodies = _tool_bodies(answer) if answer.tool else _text_bodies(answer)
    begun = _response(model, [], "in_progress", None)
    numbered = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *bodies,
        {"type": "response.completed",
         "response": _response(model, [_item(answer, "completed")], "completed", len(answer.pieces))},
    ]  # fmt: skip
    for number, body in enumerate(numbered):
        yield event(body | {"sequence_number": number}, body["type"])


def whole(model: str, path: str, request: dict[str, Any], count: int) -> dict[str, Any]:
    """A response that is not streamed."""
    answer = said(request, count)
    return _response(model, [_item(answer, "completed")], "completed", len(answer.pieces))


def _text_bodies(answer: Said) -> list[dict[str, Any]]:
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": None}
    done = part | {"text": answer.text}
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": _item(Said(()), "in_progress")},
        {"type": "response.content_part.added", **at, "part": part},
        *({"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []} for piece in answer.pieces),
        {"type": "response.output_text.done", **at, "text": answer.text, "logprobs": []},
        {"type": "response.content_part.done", **at, "part": done},
        {"type": "response.output_item.done", "output_index": 0, "item": _item(answer, "completed")},
    ]


def _tool_bodies(answer: Said) -> list[dict[str, Any]]:
    at = {"item_id": "fc_1", "output_index": 0}
    kind = "response.function_call_arguments"
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": _item(Said((), answer.tool), "in_progress")},
        *({"type": f"{kind}.delta", **at, "delta": piece} for piece in answer.pieces),
        {"type": f"{kind}.done", **at, "name": answer.tool, "arguments": answer.text},
        {"type": "response.output_item.done", "output_index": 0, "item": _item(answer, "completed")},
    ]


def _item(answer: Said, status: str) -> dict[str, Any]:
    if answer.tool:
        return {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": answer.tool,
                "arguments": answer.text, "status": status}  # fmt: skip
    part: dict[str, Any] = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": None}
    content = [part] if answer.pieces else []
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": content}


def _response(model: str, output: list[dict[str, Any]], status: str, count: int | None) -> dict[str, Any]:
    usage = None if count is None else {
        "input_tokens": PROMPT_TOKENS, "output_tokens": count, "total_tokens": PROMPT_TOKENS + count,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    return {"id": "resp_fake", "object": "response", "created_at": 1, "status": status, "model": model,
            "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None,
            "incomplete_details": None, "instructions": None, "metadata": None, "temperature": 1.0, "top_p": 1.0,
            "usage": usage}  # fmt: skip
