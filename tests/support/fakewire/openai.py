"""OpenAI's chat, completions and embeddings, and the routes that only vLLM has, as vLLM writes them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

from .answer import PROMPT_TOKENS, Said, event, said

ERROR = {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
         "type": "InternalServerError", "param": None, "code": 500}  # fmt: skip
CHAT = "/v1/chat/completions"
VECTOR = (0.6, 0.8)


def usage(count: int) -> dict[str, Any]:
    return {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + count, "completion_tokens": count,
            "prompt_tokens_details": None}  # fmt: skip


def error_event() -> bytes:
    return event({"error": ERROR})


def events(model: str, path: str, request: dict[str, Any], answer: Said) -> Iterator[bytes]:
    """The stream of a chat or a completion, `[DONE]` included."""
    chat = path == CHAT
    options = request.get("stream_options") or {}
    continuous = bool(options.get("continuous_usage_stats"))
    base: dict[str, Any] = {
        "id": "chatcmpl-fake" if chat else "cmpl-fake",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 1, "model": model,
    }  # fmt: skip

    def choice_event(choice: dict[str, Any], done: int) -> bytes:
        body = base | {"choices": [choice]}
        if continuous:
            body["usage"] = usage(done)
        elif not chat:
            body["usage"] = None
        return event(body)

    if chat:
        delta: dict[str, Any] = {"role": "assistant", "content": ""}
        yield choice_event({"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}, 0)
    for number, piece in enumerate(answer.pieces, 1):
        part = {"delta": _delta(answer, piece, number)} if chat else {"text": piece}
        last = number == len(answer.pieces)
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": answer.finish if last else None}
        yield choice_event(choice | ({"stop_reason": None} if last else {}) | {"token_ids": None}, number)
    if options.get("include_usage"):
        yield event(base | {"choices": [], "usage": usage(len(answer.pieces))})
    yield b"data: [DONE]\n\n"


def _delta(answer: Said, piece: str, number: int) -> dict[str, Any]:
    if not answer.tool:
        return {"content": piece}
    named = {"id": "call_1", "type": "function"} if number == 1 else {}
    function = {"name": answer.tool, "arguments": piece} if number == 1 else {"arguments": piece}
    return {"tool_calls": [{"index": 0, **named, "function": function}]}


def whole(model: str, path: str, request: dict[str, Any], count: int) -> dict[str, Any]:
    """The body of an answer that is not streamed; for a path that is none of these, a score."""
    base: dict[str, Any] = {"id": "fake", "created": 1, "model": model}
    answer = said(request, count)
    if path == CHAT:
        return base | {"object": "chat.completion", "choices": [_chat_choice(answer)],
                       "usage": usage(len(answer.pieces))}  # fmt: skip
    if path == "/v1/completions":
        choice = {"index": 0, "text": answer.text, "logprobs": None, "finish_reason": "stop"}
        return base | {"object": "text_completion", "choices": [choice], "usage": usage(count)}
    if path == "/v1/embeddings":
        given = request.get("input")
        data = [{"index": n, "object": "embedding", "embedding": _vector(request)}
                for n in range(len(given) if isinstance(given, list) else 1)]  # fmt: skip
        spent = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
        return base | {"object": "list", "data": data, "usage": spent}
    if path == "/v1/rerank":
        return {"id": "fake", "model": model, "usage": {"total_tokens": PROMPT_TOKENS},
                "results": [{"index": 0, "relevance_score": 0.9}]}  # fmt: skip
    if path == "/tokenize":
        return {"count": 3, "max_model_len": 2048, "tokens": [1, 2, 3], "token_strs": None}
    if path == "/detokenize":
        return {"prompt": "The capital of"}
    if path == "/v1/audio/transcriptions":
        return {"text": answer.text, "usage": {"type": "duration", "seconds": 1}}
    return base | {"object": "list", "data": [{"index": 0, "object": "score", "score": 0.5}], "usage": usage(count)}


def _chat_choice(answer: Said) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": answer.tool, "arguments": answer.text}}
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "tool_calls": []}
    if answer.tool:
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    finish = "tool_calls" if answer.tool else "stop"
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}


def _vector(request: dict[str, Any]) -> object:
    """As numbers, or as the base64 that OpenAI's SDK asks for by itself."""
    if request.get("encoding_format") != "base64":
        return list(VECTOR)
    return base64.b64encode(struct.pack(f"<{len(VECTOR)}f", *VECTOR)).decode()


def models(model: str) -> dict[str, Any]:
    card = {"id": model, "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 2048}
    return {"object": "list", "data": [card]}


def scripted(status: int) -> dict[str, Any]:
    """The body of an error with a status of the script's choosing."""
    return {"error": {"message": f"scripted status {status}", "type": "BadRequestError", "param": None, "code": status}}
