from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.gateway.relay import HEAD_OF_BODY, KEPT
from appliance.wire.usage import Usage, find_usage, read_usage


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}, Usage(7, 3)),
        ({"prompt_tokens": 7, "total_tokens": 7}, Usage(7, 0)),
        ({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(7, 3, 4)),
        ({"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 2}, Usage(7, 3, 2)),
        ({"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 1}}, Usage(7, 3, 1)),
        ({"total_tokens": 9}, Usage(9, 0)),
        ({"type": "duration", "seconds": 3}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": -1}, None),
        ({}, None),
        (None, None),
    ],
)
def test_usage_objects_of_the_apis(value: object, usage: Usage | None) -> None:
    assert read_usage(value) == usage
    if usage is not None:
        assert find_usage(json.dumps({"a": 1, "usage": value, "z": [2]}).encode()) == usage


counts = st.integers(0, 10**15) | st.integers(-1, 9)


@given(counts, counts, counts, st.none() | st.just({}) | st.builds(lambda cached: {"cached_tokens": cached}, counts))
def test_an_object_that_is_known_by_its_look_is_read_as_any_other(
    prompt: int, total: int, completion: int, details: dict[str, int] | None
) -> None:
    value: dict[str, object] = {"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": completion}
    for told in (value, {**value, "prompt_tokens_details": details}):
        body = json.dumps({"usage": told, "prompt_logprobs": None}, separators=(",", ":")).encode()
        assert find_usage(body) == read_usage(told)
        assert find_usage(body.replace(b":", b" : ")) == read_usage(told)


def test_the_last_one_counts_and_a_cut_body_is_enough() -> None:
    first, last = (
        '"usage":{"prompt_tokens":1,"completion_tokens":1}',
        '"usage":{"prompt_tokens":7,"completion_tokens":3}',
    )
    assert find_usage(f'{{"message":{{{first}}},{last}}}'.encode()) == Usage(7, 3)
    assert find_usage(f'f text"}}],{last},"x":null}}'.encode()) == Usage(7, 3)
    assert find_usage(b'{"usage":{"prompt_tokens":7') is None
    assert find_usage(b'{"usage":null}') is None


@given(st.text(max_size=40))
def test_text_that_looks_like_usage_is_not(text: str) -> None:
    said = text + '"usage":{"prompt_tokens":999,"completion_tokens":999}'
    body = {"choices": [{"message": {"content": said}}], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    assert find_usage(json.dumps(body).encode()) == Usage(7, 3)
    assert find_usage(json.dumps({"choices": [{"message": {"content": said}}]}).encode()) is None


@given(st.binary(max_size=100))
def test_nothing_raises(body: bytes) -> None:
    find_usage(b'"usage":{' + body)


def test_a_large_body_may_begin_with_it() -> None:
    """As answers to a rerank do."""
    body = b'{"id":"r","model":"m","usage":{"total_tokens":7},"results":[' + b'{"index":0},' * 10_000
    assert find_usage(body[:HEAD_OF_BODY] + body[-KEPT:]) == Usage(7, 0)


@pytest.mark.parametrize("piece", [b'"usage":{', b'{"usage":', b'"usage":{"a":[', b'"usage"' + b" " * 50])
def test_a_hostile_body_costs_little(piece: bytes) -> None:
    begun = time.process_time()
    assert find_usage(piece * 200_000) is None
    assert time.process_time() - begun < 1
