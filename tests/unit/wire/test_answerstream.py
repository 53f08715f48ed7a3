"""What a streamed answer tells, however its bytes were cut."""

from __future__ import annotations

import pytest

from appliance.wire.answerstream import UNNAMED, AnswerReader, named_error
from tests.support.fakewire import openai
from tests.support.fakewire.answer import said

REQUEST = {"stream_options": {"include_usage": True}}


def stream(path: str, tokens: int) -> list[bytes]:
    return list(openai.events("m", path, REQUEST, said(REQUEST, tokens)))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_tokens_are_timed_and_usage_is_kept(path: str) -> None:
    """One event a second: a chat's opening event and the usage event are no tokens."""
    reader = AnswerReader()
    events = stream(path, 5)
    for second, event in enumerate(events, 10):
        reader.feed(event, second)
    opening = len(events) - 7  # five tokens, usage, [DONE]
    assert (reader.first, reader.last) == (10 + opening, 14 + opening)
    assert (reader.gaps, reader.events) == ([1.0] * 4, 5)
    assert reader.usage is not None and reader.usage.completion_tokens == 5
    assert reader.done and not reader.failure


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_cuts_change_nothing(size: int) -> None:
    whole = b": keep-alive\n\n" + b"".join(stream("/v1/chat/completions", 9))
    reader = AnswerReader()
    for start in range(0, len(whole), size):
        reader.feed(whole[start : start + size], 1.0)
    assert (reader.events, reader.done, reader.usage and reader.usage.completion_tokens) == (9, True, 9)


def test_an_error_event_is_no_answer() -> None:
    reader = AnswerReader()
    reader.feed(b'data: {"error": {"message": "it stood still", "code": "stream_stalled"}}\n\n', 1.0)
    reader.feed(b'data: {"error": {"message": "later"}}\n\n', 1.0)
    assert (reader.failure, reader.message, reader.events) == ("stream_stalled", "it stood still", 0)
    reader = AnswerReader()
    reader.feed(openai.error_event(), 1.0)  # vLLM's codes are numbers
    assert reader.failure == "InternalServerError"
    reader = AnswerReader()
    reader.feed(b'data: {"error": {"message": 1}}\n\n', 1.0)
    assert reader.failure == UNNAMED


@pytest.mark.parametrize(
    ("body", "is_"),
    [
        (b'{"error": {"message": "m", "type": "t", "code": "c"}}', ("c", "m")),
        (b'{"error": {"message": "m", "type": "t", "code": 404}}', ("t", "m")),
        (b'{"object": "error", "message": "m", "type": "t"}', ("t", "m")),
        (b'{"error": "m"}', ("", "m")),
        (b'{"detail": "Not Found"}', ("", "Not Found")),
        (b"<html>", ("", "")),
        (b"[1]", ("", "")),
        (b"[" * 100_000, ("", "")),
    ],
)
def test_errors_of_all_kinds_are_read(body: bytes, is_: tuple[str, str]) -> None:
    assert named_error(body) == is_
