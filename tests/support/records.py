"""Records of finished calls."""

from __future__ import annotations

from typing import Any

from appliance.gateway.record import Record


def record(**fields: Any) -> Record:
    """A stream that went well, but for what is given."""
    values: dict[str, Any] = {
        "at": 1_800_000_000.0, "request_id": "r-1", "key_id": "k-1", "client": "127.0.0.1", "route": "/v1/completions",
        "model": "m", "engine": "chat", "status": 200, "outcome": "ok", "code": "", "stream": True, "queue_ms": 1.25,
        "first_token_ms": 20.0, "total_ms": 100.0, "events": 4, "prompt_tokens": 7, "cached_tokens": 2,
        "completion_tokens": 3, "estimated": False, "resent": 0,
    }  # fmt: skip
    return Record(**{**values, **fields})
