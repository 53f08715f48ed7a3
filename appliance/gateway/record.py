"""One finished call as it is written: a line for the journal, an entry for the usage ledger. Never a prompt, never a
key.

Both are made for every call: what calls have in common, who asked what of which engine and how that ended, is put into
words once and remembered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

NULL = "null"
_json = json.JSONEncoder().encode


class Record(NamedTuple):
    """One finished call. Times in milliseconds, None where the call did not come that far; counts None if unknown.

    `outcome`: `ok` (answered, also with an engine's own 4xx), `engine_error` (an engine's own 5xx was passed on),
    `refused` (`code` says why), `broken` (the client has part of it, or an error event), `client_left`.
    """

    at: float = 0.0
    request_id: str = ""
    key_id: str = ""
    client: str = ""
    route: str = ""
    model: str = ""
    engine: str = ""
    status: int = 0
    outcome: str = ""
    code: str = ""
    stream: bool = False
    queue_ms: float | None = None
    first_token_ms: float | None = None
    total_ms: float = 0.0
    events: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    estimated: bool = False
    resent: int = 0


FIELDS = Record._fields
_WORDS = ("key", "client", "route", "model", "engine", "status", "outcome", "code")
_Common = tuple[str, str, str, str, str, int, str, str, bool]


def record_of(values: Mapping[str, Any]) -> Record:
    """A record from its fields as JSON; another version's process may know more of them, or fewer."""
    return Record(**{name: values[name] for name in FIELDS if name in values})


def line(record: Record) -> str:
    """The record as `key=value`, what is not known left out."""
    queue, first, total, events, prompt, _, completion, _, resent = record[11:]
    text = f"request={_word(record.request_id)}{_common(record[2:11])[0]}"
    if queue is not None:
        text += f" queue_ms={queue:.1f}"
    if first is not None:
        text += f" ttft_ms={first:.1f}"
    text += f" total_ms={total:.1f} events={events}"
    if prompt is not None:
        text += f" prompt_tokens={prompt}"
    if completion is not None:
        text += f" completion_tokens={completion}"
    return f"{text} resent={resent}" if resent else text


def entry(record: Record) -> str:
    """The record as the ledger keeps it: the members of a JSON object."""
    queue, first, total, events, prompt, cached, completion, estimated, resent = record[11:]
    return (
        f'"at":{_seconds(record.at)},"request_id":{_json(record.request_id)},{_common(record[2:11])[1]},'
        f'"queue_ms":{NULL if queue is None else f"{queue:.1f}"},'
        f'"first_token_ms":{NULL if first is None else f"{first:.1f}"},"total_ms":{total:.1f},"events":{events},'
        f'"prompt_tokens":{NULL if prompt is None else prompt},"cached_tokens":{NULL if cached is None else cached},'
        f'"completion_tokens":{NULL if completion is None else completion},'
        f'"estimated":{"true" if estimated else "false"},"resent":{resent}'
    )


@lru_cache(maxsize=1024)
def _common(values: _Common) -> tuple[str, str]:
    """What many calls have in common, `key_id` to `stream`: in the words of a line, and as members of an object."""
    words = "".join(
        [f" {name}={_word(str(value))}" for name, value in zip(_WORDS, values, strict=False) if value != ""]
    )
    members = ",".join(f'"{name}":{_json(value)}' for name, value in zip(FIELDS[2:11], values, strict=True))
    return words, members


def _word(text: str) -> str:
    # Names come from clients: one that holds a blank or a control character is quoted, so it cannot forge a field.
    return text if text.isascii() and text.isprintable() and " " not in text and '"' not in text else _json(text)


def _seconds(at: float) -> str:
    """To the millisecond, without zeros at the end, as JSON writes it: nine in ten have none, and are ready."""
    text = f"{at:.3f}"
    return text if text[-1] != "0" else repr(float(text))
