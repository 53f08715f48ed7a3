"""Token counts as engines report them, found in the last bytes of an answer without reading the rest."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_COUNT = rb"(0|[1-9]\d{0,14})"
_VLLM = re.compile(  # the whole object as vLLM writes it, which is nearly always so
    rb':\{"prompt_tokens":%b,"total_tokens":%b,"completion_tokens":%b'
    rb'(?:,"prompt_tokens_details":(?:null|\{"cached_tokens":%b\}))?\}' % (_COUNT, _COUNT, _COUNT, _COUNT)
)
_VALUE = re.compile(rb"\s*:\s*(?=\{)")
# An object is looked for so far from the end, so many times: a hostile body costs no more. All that a relay keeps of an
# answer is less, for some bodies begin with it.
TAIL, TRIES = 1 << 17, 16
_DECODER = json.JSONDecoder()


@dataclass(slots=True)
class Usage:
    """What one call used. `estimated` marks a count of events; of the prompt the engine's figures, None: unknown."""

    prompt_tokens: int | None
    completion_tokens: int
    cached_tokens: int | None = 0
    estimated: bool = False


def find_usage(text: bytes | bytearray) -> Usage | None:
    """The last usage object in a body, an event or the end of one; None when there is none that can be read.

    Behind a backslash `"usage"` is text: inside a JSON string the quote would be escaped, else it is a key.
    """
    text = text[-TAIL:]
    end = len(text)
    for _ in range(TRIES):
        end = text.rfind(b'"usage"', 0, end)
        if end < 0:
            break
        if text[end - 1 : end] == b"\\":
            continue
        match = _VLLM.match(text, end + 7)
        if match is not None:
            prompt, _, completion, cached = match.groups(b"0")
            return Usage(int(prompt), int(completion), int(cached))
        match = _VALUE.match(text, end + 7)
        if match is None:
            continue
        try:
            value, _ = _DECODER.raw_decode(text[match.end() :].decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        usage = read_usage(value)
        if usage is not None:
            return usage
    return None


def read_usage(value: object) -> Usage | None:
    """OpenAI's, Anthropic's and Responses' usage objects; None for anything else."""
    if not isinstance(value, dict):
        return None
    prompt = _count(value, "prompt_tokens", "input_tokens")
    total = _count(value, "total_tokens")
    completion = _count(value, "completion_tokens", "output_tokens")
    if prompt is None and total is None:
        return None
    if prompt is None:
        prompt = (total or 0) - (completion or 0)
    details = value.get("prompt_tokens_details") or value.get("input_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else _count(value, "cache_read_input_tokens")
    return Usage(max(prompt, 0), completion or 0, cached or 0)


def _count(value: dict[str, object], *names: str) -> int | None:
    for name in names:
        count = value.get(name)
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
    return None
