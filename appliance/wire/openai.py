"""The envelope of an API request: what the gateway must know of a body that it forwards as it came.

A body is parsed once, into a `Call`; text of prompts is looked at by nobody. Bodies are JSON objects (`requestjson`) or
multipart forms for audio. Where a key stands twice the last one counts, here as in vLLM, so a second `model` cannot
slip past the allowlist.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from appliance.errors import ApiError

from . import requestjson


class Shape(enum.Enum):
    """Whose error bodies and events a route speaks."""

    __hash__ = object.__hash__  # each is one object; Enum's own is a call of Python's for each look into a table
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    RESPONSES = "responses"


@dataclass(frozen=True, slots=True)
class Route:
    """One relayed route. `meters` says that usage of a stream must be asked for with `stream_options`.

    `limits` are the fields that bound the answer's tokens, the first that is given counts; `unbounded` is what an
    engine does without one: so many tokens, None for as many as fit. `counts` are fields that ask for several answers
    to one prompt; with `prompts`, there may be a list of them. `free` routes run no model.
    """

    path: str
    shape: Shape = Shape.OPENAI
    streams: bool = False
    meters: bool = False
    multipart: bool = False
    limits: tuple[str, ...] = ()
    unbounded: int | None = None
    counts: tuple[str, ...] = ()
    prompts: bool = False
    free: bool = False


ROUTES: Mapping[str, Route] = {
    route.path: route
    for route in (
        Route("/v1/chat/completions", streams=True, meters=True, limits=("max_completion_tokens", "max_tokens"),
              counts=("n",)),
        Route("/v1/completions", streams=True, meters=True, limits=("max_tokens",), unbounded=16,
              counts=("n", "best_of"), prompts=True),
        Route("/v1/responses", Shape.RESPONSES, streams=True, limits=("max_output_tokens",)),
        Route("/v1/messages", Shape.ANTHROPIC, streams=True, limits=("max_tokens",)),
        Route("/v1/messages/count_tokens", Shape.ANTHROPIC, free=True),
        Route("/v1/embeddings"),
        Route("/v1/rerank"),
        Route("/v1/score"),
        Route("/tokenize", free=True),
        Route("/detokenize", free=True),
        Route("/v1/audio/transcriptions", streams=True, multipart=True),
    )
}  # fmt: skip


class Call(NamedTuple):
    """One API request as parsed. `size` is the body's bytes; `max_tokens` None where the client set no limit.

    `answers` is how many the engine makes: of each prompt of a list so many as `n` or `best_of` say. Each may have
    `max_tokens`.
    `structured`: the answer must keep to a grammar or a schema, which the engine compiles first, on a CPU.
    """

    model: str
    stream: bool
    size: int
    max_tokens: int | None = None
    answers: int = 1
    include_usage: bool = False  # the client asked for the usage event itself
    stream_options: Mapping[str, object] | None = None
    structured: bool = False


def parse_call(route: Route, body: bytes, content_type: str = "application/json") -> Call:
    """The call that a body holds. Raises ApiError with the reason."""
    if route.multipart:
        return _form_call(body, content_type)
    value = requestjson.read(body)
    model = value.get("model")
    if not isinstance(model, str) or not model:
        raise ApiError("invalid_request", _model_fault(model), param="model")
    if not model.isascii() and _SURROGATE.search(model):  # such a name could be written to no log
        raise ApiError("invalid_request", "model must be text: it holds half a surrogate pair", param="model")
    stream = value.get("stream", False)
    if stream is not True and stream is not False:
        stream = _flag(value, "stream")
    limit = _limit(value, route.limits)
    if value.keys().isdisjoint(_SELDOM):
        return Call(model, stream and route.streams, len(body), limit)
    options = value.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ApiError("invalid_request", "stream_options must be an object", param="stream_options")
    asked = (options or {}).get("include_usage")
    if asked is not None and not isinstance(asked, bool):  # an engine takes "no" for no, and would tell no usage
        raise ApiError("invalid_request", "include_usage must be true or false", param="stream_options")
    return Call(
        model=model,
        stream=stream and route.streams,
        size=len(body),
        max_tokens=limit,
        answers=_answers(value, route),
        include_usage=bool(asked),
        stream_options=options,
        structured=_is_structured(value),
    )


Pieces = tuple[bytes | memoryview, ...]  # of a body; a large one is not copied


def usage_asked(call: Call) -> bytes:
    """The field that asks for a stream's usage. A `stream_options` of the client is repeated with the addition."""
    if not call.stream_options:
        return b',"stream_options":{"include_usage":true}'
    options = {**call.stream_options, "include_usage": True}
    return b',"stream_options":%b' % json.dumps(options, separators=(",", ":")).encode()


def limit_set(route: Route, tokens: int) -> bytes:
    """The field that bounds the answer's tokens, for a call that names no bound."""
    return b',"%b":%d' % (route.limits[-1].encode(), tokens)


def extended(body: bytes, fields: bytes) -> Pieces:
    """The body with fields added at its end, where they are the ones that count; its other bytes are unchanged."""
    return memoryview(body)[: body.rindex(b"}")], fields + b"}"


def models(entries: Sequence[tuple[str, str]], created: int) -> dict[str, object]:
    """The body of `GET /v1/models` for (served name, root model) pairs."""
    return {"object": "list", "data": [model_card(name, root, created) for name, root in entries]}


def model_card(name: str, root: str, created: int) -> dict[str, object]:
    """One model as OpenAI shows it."""
    return {"id": name, "object": "model", "created": created, "owned_by": "llm-appliance", "root": root}


MOST_TOKENS = (1 << 31) - 1  # of an answer: beyond any context, and a number that all arithmetic can bear


def _model_fault(model: object) -> str:
    if model is None:
        return "you must name a model: GET /v1/models lists them"
    return "model must be a string that is not empty"


def _flag(value: Mapping[str, object], name: str) -> bool:
    flag = value.get(name)
    if flag is None or isinstance(flag, bool):
        return bool(flag)
    raise ApiError("invalid_request", f"{name} must be true or false", param=name)


# Each of vLLM's ways to ask for a grammar; `guided_*` are the names before 0.12.
_GRAMMARS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


# What is looked at where it is there; most calls have none of it.
_SELDOM = frozenset(
    {*_GRAMMARS, "response_format", "text", "tools", "stream_options", "prompt", "prompt_embeds"}
    | {name for route in ROUTES.values() for name in route.counts}
)


def _is_structured(value: Mapping[str, object]) -> bool:
    text = value.get("text")  # the Responses API's place for the format
    formats = [value.get("response_format"), text.get("format") if isinstance(text, dict) else None]
    if any(isinstance(each, dict) and each.get("type") not in (None, "text") for each in formats):
        return True
    if any(value.get(name) is not None for name in _GRAMMARS):
        return True
    tools, choice = value.get("tools"), value.get("tool_choice")
    if not isinstance(tools, list) or not tools:
        return False
    return isinstance(choice, dict) or choice == "required" or any(_is_strict(tool) for tool in tools)


def _is_strict(tool: object) -> bool:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return isinstance(function, dict) and function.get("strict") is True


_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def _limit(value: Mapping[str, object], counting: tuple[str, ...]) -> int | None:
    """The most tokens that the answer may have, by the names that count on this route; the others are only checked."""
    for name in _LIMITS:
        limit = value.get(name)
        if limit is None:
            continue
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MOST_TOKENS:
            raise ApiError("invalid_request", f"{name} must be a whole number from 0 to {MOST_TOKENS}", param=name)
    for name in counting:
        limit = value.get(name)
        # A 0 is none for engines that ask whether it is true, and pass on to the next name.
        if isinstance(limit, int) and (limit or name == counting[-1]):
            return limit
    return None


def _answers(value: Mapping[str, object], route: Route) -> int:
    """How many answers the engine makes for this one request."""
    most = 1
    for name in route.counts:
        count = value.get(name)
        if count is None:
            continue
        if isinstance(count, float) and count.is_integer():  # some languages know no other number, and engines take it
            count = int(count)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ApiError("invalid_request", f"{name} must be a whole number, 1 or more", param=name)
        most = max(most, count)
    prompts = sum(_prompts(value.get(name)) for name in ("prompt", "prompt_embeds")) if route.prompts else 1
    return most * max(prompts, 1)


def _prompts(value: object) -> int:
    """How many prompts stand in a field; a list of numbers is one, of tokens."""
    if not isinstance(value, list):
        return 0 if value is None else 1
    return len(value) if value and isinstance(value[0], (str, list)) else 1


_SURROGATE = re.compile("[\ud800-\udfff]")
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"\\]{1,70})"|([^\s;,"\\]{1,70}))\s*(?:;|$)', re.IGNORECASE)
_PART_FIELD = re.compile(rb"([A-Za-z-]+):(.*)", re.DOTALL)
_DISPOSITION = re.compile(rb'form-data((?:[ \t]*;[ \t]*[a-zA-Z*]+=(?:"(?:[^"\\]|\\.)*"|[^\s;"\\]+))+)', re.IGNORECASE)
_PARAMETER = re.compile(rb';[ \t]*([a-zA-Z*]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"\\]+))')
FIELD_BYTES = 65536  # of a text field that is looked at
PART_HEAD = 8192  # of a part's own head
PARTS = 128


def form_fields(body: bytes, content_type: str) -> dict[str, str]:
    """Text fields of a multipart form, files left out. Raises ApiError.

    Forms are read strictly: where two readers could disagree on what `model` says (a preamble, text behind the end, a
    field named twice, an escaped name), the form is refused, so that no model slips past an allowlist.
    """
    boundary = _BOUNDARY.search(content_type)
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "multipart/form-data" or boundary is None or content_type.lower().count("boundary") != 1:
        raise ApiError("invalid_request", "this route takes multipart/form-data with a boundary")
    mark = b"\r\n--" + (boundary[1] or boundary[2]).encode("latin-1", "replace")
    fields: dict[str, str] = {}
    if not body.startswith(mark[2:]):
        raise _bad_form("it does not begin with its boundary")
    position, parts = len(mark) - 2, 0
    while body[position : position + 2] == b"\r\n":
        head_end = body.find(b"\r\n\r\n", position)
        end = body.find(mark, head_end + 4) if head_end >= 0 else -1
        parts += 1
        if end < 0 or head_end - position > PART_HEAD or parts > PARTS:
            raise _bad_form("a part does not end, has a head that is too long, or there are too many")
        name, is_file = _part_name(body[position + 2 : head_end])
        if name in fields and name in ("model", "stream"):
            raise _bad_form(f"{name} stands twice")
        if not is_file and end - head_end <= FIELD_BYTES:
            fields[name] = body[head_end + 4 : end].decode("utf-8", "replace")
        elif name in ("model", "stream"):
            raise _bad_form(f"{name} is no text")
        position = end + len(mark)
    if body[position:] not in (b"--", b"--\r\n"):
        raise _bad_form("it does not end with its boundary")
    return fields


def _part_name(head: bytes) -> tuple[str, bool]:
    """A part's field name and whether it is a file."""
    named: list[tuple[str, bool]] = []
    for line in head.split(b"\r\n"):
        field = _PART_FIELD.fullmatch(line)
        if field is None or b"\n" in line or b"\r" in line:
            raise _bad_form("a part has a broken head")
        if field[1].lower() != b"content-disposition":
            continue
        value = field[2].strip(b" \t")
        parameters = _DISPOSITION.fullmatch(value)
        pairs = [(key.lower(), quoted or plain) for key, quoted, plain in _PARAMETER.findall(value)]
        keys = [key for key, _ in pairs]
        if parameters is None or len(set(keys)) != len(keys) or set(keys) - {b"name", b"filename", b"filename*"}:
            raise _bad_form("a part's Content-Disposition is unusual")
        name = dict(pairs).get(b"name", b"")
        if b"\\" in name:
            raise _bad_form("a field's name is escaped")
        named.append((name.decode("utf-8", "replace"), len(keys) > 1))
    if len(named) != 1 or not named[0][0]:
        raise _bad_form("a part needs one name")
    return named[0]


def _bad_form(why: str) -> ApiError:
    return ApiError("invalid_request", f"the form cannot be read: {why}")


def _form_call(body: bytes, content_type: str) -> Call:
    fields = form_fields(body, content_type)
    model = fields.get("model", "")
    if not model:
        raise ApiError("invalid_request", _model_fault(None), param="model")
    return Call(model=model, stream=fields.get("stream", "").strip().lower() in ("true", "1"), size=len(body))
