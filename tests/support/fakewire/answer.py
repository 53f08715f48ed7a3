"""What a fake model answers, before any API dresses it: words, a JSON document that fits a schema, or a tool call."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

WORDS = ("The", " capital", " of", " France", " is", " Paris", ".", " It", " lies", " on", " the", " Seine")
PROMPT_TOKENS = 7
PIECE = 6  # characters of a JSON document in one delta


@dataclass(frozen=True, slots=True)
class Said:
    """An answer in pieces, one a token; with `tool` they are the arguments of a call of that tool."""

    pieces: tuple[str, ...]
    tool: str = ""
    finish: str = "length"  # OpenAI's word for the end of a stream

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def event(body: dict[str, Any], name: str = "") -> bytes:
    """One server-sent event."""
    return (f"event: {name}\n" if name else "").encode() + f"data: {compact(body)}\n\n".encode()


def words(count: int) -> tuple[str, ...]:
    return tuple(WORDS[n % len(WORDS)] for n in range(count))


def said(request: dict[str, Any], count: int) -> Said:
    """A tool is called while its result is not among the messages; a schema is obeyed; else `count` words."""
    tools = request.get("tools")
    if isinstance(tools, list) and tools and request.get("tool_choice") != "none" and not _has_result(request):
        tool = tools[0].get("function") or tools[0]
        schema = tool.get("parameters") or tool.get("input_schema") or {}
        return Said(_cut(compact(sample(schema))), tool["name"], "tool_calls")
    schema = _answer_schema(request)
    return Said(words(count)) if schema is None else Said(_cut(compact(sample(schema))), finish="stop")


def sample(schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
    """A value that fits a JSON schema of the kind that SDKs make."""
    root = schema if root is None else root
    if "$ref" in schema:
        return sample(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {name: sample(part, root) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        return [sample(schema.get("items", {}), root)]
    return {"integer": 7, "number": 0.5, "boolean": True, "null": None}.get(str(kind), "Paris")


def _has_result(request: dict[str, Any]) -> bool:
    """Whether a tool's result is among what the client sent, in any API's form."""
    given = [*_list(request.get("messages")), *_list(request.get("input"))]
    parts = [part for one in given if isinstance(one, dict) for part in _list(one.get("content"))]
    return any(
        isinstance(one, dict)
        and (one.get("role") == "tool" or one.get("type") in ("tool_result", "function_call_output"))
        for one in [*given, *parts]
    )


def _answer_schema(request: dict[str, Any]) -> dict[str, Any] | None:
    for wanted in (request.get("response_format"), (request.get("text") or {}).get("format")):
        if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
            schema: dict[str, Any] = (wanted.get("json_schema") or wanted)["schema"]
            return schema
    return None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _cut(text: str) -> tuple[str, ...]:
    return tuple(text[at : at + PIECE] for at in range(0, len(text), PIECE))
