from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire import sse
from appliance.wire.openai import Shape
from appliance.wire.sse import EventSplitter, EventTooLong, Kind, data_of, kind

DELTA = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}\n\n'
ERROR = b'data: {"error":{"message":"EngineCore encountered an issue.","type":"X","param":null,"code":500}}\n\n'
DONE = b"data: [DONE]\n\n"


def split(pieces: list[bytes]) -> tuple[list[bytes], EventSplitter]:
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)], splitter


def test_comments_for_one_that_waits_are_comments() -> None:
    assert sse.queued(3, 4) == b": queued position=3 expected_wait_s=4\n\n"
    assert sse.queued(512, None) == b": queued position=512\n\n"
    assert all(kind(comment, Shape.OPENAI) is Kind.COMMENT for comment in (sse.queued(1, 0), sse.queued(1, None)))


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_every_cut_in_two_gives_the_same_events(end: bytes) -> None:
    events = [b"data: a" + end, b": c" + end, b"event: x" + end[: len(end) // 2] + b"data: b" + end]
    wire = b"".join(events) + b"data: tail"
    whole, _ = split([wire])
    assert [event.strip() for event in whole] == [event.strip() for event in events]
    for cut in range(len(wire) + 1):
        got, splitter = split([wire[:cut], wire[cut:]])
        assert [event.strip() for event in got] == [event.strip() for event in events], cut
        assert len(b"".join(got)) + splitter.held == len(wire)


@given(st.lists(st.sampled_from([DELTA, USAGE, DONE, b": c\n\n", b"data: a\ndata: b\n\n", "data: 北京\n\n".encode()]),
                max_size=8), st.lists(st.integers(0, 2000), max_size=10))  # fmt: skip
def test_any_cuts_give_the_same_events(events: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(events)
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    got, splitter = split([wire[a:b] for a, b in pairwise(edges)])
    assert got == events and splitter.held == 0


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_no_byte_is_lost(wire: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    got, splitter = split([wire[a:b] for a, b in pairwise(edges)])
    assert wire.startswith(b"".join(got)) and len(b"".join(got)) + splitter.held == len(wire)


def test_an_event_without_an_end_is_given_up() -> None:
    splitter = EventSplitter()
    with pytest.raises(EventTooLong):
        for _ in range(20):
            splitter.feed(b"x" * (1 << 20))


@pytest.mark.parametrize(
    ("event", "shape", "expected"),
    [
        (DELTA, Shape.OPENAI, Kind.DELTA),
        (USAGE, Shape.OPENAI, Kind.USAGE),
        (USAGE.replace(b'"choices":[]', b'"choices" : [ ]'), Shape.OPENAI, Kind.USAGE),
        (ERROR, Shape.OPENAI, Kind.ERROR),
        (b'data: {"object":"error","message":"x","error":null}\n\n', Shape.OPENAI, Kind.ERROR),
        (DONE, Shape.OPENAI, Kind.DONE),
        (b"data:[DONE]\r\n\r\n", Shape.OPENAI, Kind.DONE),
        (b": keep-alive\n\n", Shape.OPENAI, Kind.COMMENT),
        (b": note\ndata: [DONE]\n\n", Shape.OPENAI, Kind.DONE),
        (b"event: error\ndata: {}\n\n", Shape.ANTHROPIC, Kind.ERROR),
        (b"event: message_stop\ndata: {}\n\n", Shape.ANTHROPIC, Kind.DONE),
        (b"event: content_block_delta\ndata: {}\n\n", Shape.ANTHROPIC, Kind.DELTA),
        (b"event: message_delta\ndata: {}\n\n", Shape.ANTHROPIC, Kind.OTHER),
        (b"event: ping\ndata: {}\n\n", Shape.ANTHROPIC, Kind.OTHER),
        (b'data: {"error":{"message":"x"}}\n\n', Shape.ANTHROPIC, Kind.ERROR),
        (b"event: response.output_text.delta\ndata: {}\n\n", Shape.RESPONSES, Kind.DELTA),
        (b"event: response.completed\ndata: {}\n\n", Shape.RESPONSES, Kind.DONE),
        (b"event: response.incomplete\ndata: {}\n\n", Shape.RESPONSES, Kind.DONE),
        (b"event: response.failed\ndata: {}\n\n", Shape.RESPONSES, Kind.ERROR),
        (b"\n\n", Shape.OPENAI, Kind.OTHER),
    ],
)
def test_kinds(event: bytes, shape: Shape, expected: Kind) -> None:
    assert kind(event, shape) is expected


@given(st.text(max_size=60))
def test_text_of_a_completion_never_looks_like_something_else(text: str) -> None:
    """Whatever a model says, also our own markers, stays a delta."""
    for said in (
        text,
        text + '"choices":[],"usage":{}',
        '{"error":{"message":"x"}}',
        "data: [DONE]",
        '"usage":{"a":1}',
    ):
        body = {"choices": [{"index": 0, "delta": {"content": said}}]}
        event = f"data: {json.dumps(body, separators=(',', ':'), ensure_ascii=False)}\n\n".encode("utf-8", "replace")
        if b"\r" in event:
            continue
        assert kind(event, Shape.OPENAI) is Kind.DELTA


@pytest.mark.parametrize("event", [USAGE, ERROR, DONE, b": c\n\n", USAGE.replace(b"}}\n", b'},"choices":[]}\n')])
def test_the_quick_look_takes_none_but_deltas(event: bytes) -> None:
    suffixes = sse.PROFILES[Shape.OPENAI].suffixes
    assert not sse.chunk(event).endswith(suffixes)
    assert sse.chunk(DELTA).endswith(suffixes)


def test_data_lines_are_joined() -> None:
    assert data_of(b"id: 1\ndata: a\ndata: b\n\n") == b"a\nb"
    assert data_of(b"event: x\n\n") is None
    assert sse.chunk(b"ab") == b"2\r\nab\r\n"


@pytest.mark.parametrize("shape", Shape)
def test_an_event_nested_without_end_has_a_kind(shape: Shape) -> None:
    assert kind(b'data: {"error":' + b"[" * 100_000 + b"\n\n", shape) in Kind
