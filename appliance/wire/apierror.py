"""Errors as the three API families say them: bodies before the first byte, events after it."""

from __future__ import annotations

import json

from appliance.errors import ApiError

from .openai import Shape

# HTTP status -> Anthropic's error type; anything else is api_error
_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _compact(value: object) -> bytes:
    # What clients and engines say may hold half a surrogate pair, which no UTF-8 has: it becomes a question mark.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def error_object(error: ApiError) -> dict[str, object]:
    """What stands under `error` in OpenAI's bodies."""
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


def error_body(error: ApiError, shape: Shape) -> bytes:
    """The JSON body of a refused call."""
    if shape is Shape.ANTHROPIC:
        return _compact(
            {
                "type": "error",
                "error": {
                    "type": _ANTHROPIC.get(error.status, "api_error"),
                    "message": error.message,
                    "code": error.code,
                },
            }
        )
    return _compact({"error": error_object(error)})


def error_event(error: ApiError, shape: Shape, sequence: int = 0) -> bytes:
    """The last event of a stream that broke; `sequence` numbers it in Responses streams."""
    if shape is Shape.ANTHROPIC:
        return b"event: error\ndata: " + error_body(error, shape) + b"\n\n"
    if shape is Shape.RESPONSES:
        # Told twice: as the API's documents have it, and under `error`, without which OpenAI's SDK raises nothing and a
        # program that only joins deltas takes the broken answer for a whole one.
        told = error_object(error)
        value = {"sequence_number": sequence} | told | {"type": "error", "error": told}
        return b"event: error\ndata: " + _compact(value) + b"\n\n"
    return b"data: " + error_body(error, shape) + b"\n\n"


def engine_error(status: int, body: bytes) -> ApiError:
    """What an engine's own error body says, for a stream that has begun and so cannot carry its status."""
    message = ""
    try:
        value = json.loads(body)
        inner = value.get("error", value) if isinstance(value, dict) else None
        if isinstance(inner, dict):
            message = str(inner.get("message") or inner.get("detail") or "")
    except (ValueError, RecursionError):
        pass
    return ApiError("engine_error", message or f"the engine answered {status}")
