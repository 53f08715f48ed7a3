"""The delivery probe: a stream that the gateway itself makes, to be judged by whoever asked for it.

    POST /v1/chat/completions {"model": "llm-appliance/delivery", "stream": true, "messages": [],
                               "delivery": {"events": 12, "interval_ms": 250, "silence_ms": 25000}}

The answer has the shape of a chat, on the route of a chat, so that it takes the way of a chat through everything in
front. Each event has a `delivery` object: `number`, `sent_ms` since the stream began, `comments` sent before it; the
first also what the gateway saw of the request. Not streamed, the answer is one object at once: it shows that a body
arrived. No engine is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from appliance.errors import ApiError

MODEL = "llm-appliance/delivery"
COMMENTS = 3  # sent behind the events, as far apart as they, before the silence
MOST_EVENTS, LONGEST_INTERVAL, LONGEST_SILENCE = 200, 2.0, 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for; seconds."""

    events: int = 12
    interval: float = 0.25
    silence: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the gateway saw of a request; `forwarded` is absent, ignored or believed."""

    http: str
    client: str
    forwarded: str


@dataclass(frozen=True, slots=True)
class Told:
    """What one event says."""

    number: int
    sent: float
    comments: int
    seen: Seen | None


def parse_plan(body: bytes) -> Plan:
    """The plan in a request's body, which has been parsed as a call before. Raises ApiError."""
    value = json.loads(body).get("delivery", {})
    if not isinstance(value, dict):
        raise ApiError("invalid_request", "delivery must be an object", param="delivery")
    default = Plan()
    return Plan(
        int(_number(value, "events", default.events, MOST_EVENTS)),
        _number(value, "interval_ms", default.interval * 1000, LONGEST_INTERVAL * 1000) / 1000,
        _number(value, "silence_ms", default.silence, LONGEST_SILENCE * 1000) / 1000,
    )


def _number(value: Mapping[str, Any], name: str, default: float, most: float) -> float:
    given = value.get(name, default)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= most:
        raise ApiError("invalid_request", f"delivery.{name} must be a number from 0 to {most:g}", param="delivery")
    return given


def request_body(plan: Plan, *, stream: bool, padding: int = 0) -> bytes:
    """A request for that plan; `padding` makes it so many bytes larger."""
    value = {
        "model": MODEL,
        "stream": stream,
        "messages": [{"role": "user", "content": "x" * padding}],
        "delivery": {
            "events": plan.events,
            "interval_ms": plan.interval * 1000,
            "silence_ms": plan.silence * 1000,
        },
    }
    return json.dumps(value).encode()


def event(request_id: str, told: Told, *, last: bool = False) -> bytes:
    """One event of the stream."""
    delivery: dict[str, object] = {
        "number": told.number,
        "sent_ms": round(told.sent * 1000, 1),
        "comments": told.comments,
    }
    if told.seen is not None:
        delivery["seen"] = {"http": told.seen.http, "client": told.seen.client, "forwarded": told.seen.forwarded}
    choice = {"index": 0, "delta": {"content": f"{told.number} "}, "finish_reason": "stop" if last else None}
    return b"data: " + _dump({**_head(request_id, "chat.completion.chunk"), "choices": [choice]}, delivery) + b"\n\n"


def whole(request_id: str, size: int) -> bytes:
    """The answer that is no stream; `size` is the request's body."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "delivered"}, "finish_reason": "stop"}
    return _dump({**_head(request_id, "chat.completion"), "choices": [choice]}, {"size": size})


def read_event(data: bytes) -> Told | None:
    """What an event's data say; None for an event that is not of a probe."""
    try:
        value = json.loads(data)["delivery"]
        seen = value.get("seen")
        return Told(
            int(value["number"]),
            float(value["sent_ms"]) / 1000,
            int(value["comments"]),
            None if seen is None else Seen(str(seen["http"]), str(seen["client"]), str(seen["forwarded"])),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _head(request_id: str, kind: str) -> dict[str, object]:
    return {"id": request_id, "object": kind, "created": 0, "model": MODEL}


def _dump(value: Mapping[str, object], delivery: Mapping[str, object]) -> bytes:
    return json.dumps({**value, "delivery": delivery}, separators=(",", ":")).encode()
