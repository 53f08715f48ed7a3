"""A body as an object: the fast reader and Python's own agree, and what holds too much is not parsed at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.errors import ApiError
from appliance.wire import requestjson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
TEXT = b"x" * requestjson.LARGE


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5), st.booleans(), st.sampled_from(["", " ", "\r\n\t"]))
def test_an_object_is_what_pythons_own_reader_takes_it_for(
    value: dict[str, object], ascii_only: bool, blank: str
) -> None:
    body = (blank + json.dumps(value, ensure_ascii=ascii_only) + blank).encode("utf-8", "surrogatepass")
    try:
        expected = json.loads(body.decode())
    except UnicodeDecodeError:  # half a pair that is not written as an escape
        with pytest.raises(ApiError, match="not UTF-8"):
            requestjson.read(body)
    else:
        assert requestjson.read(body) == expected


@given(st.binary(max_size=12) | st.text('{}[]":,\\u0d8e1.-+ \n', max_size=12).map(str.encode))
@example(b"NaN")
@example(b"-Infinity")
@example(b"1e999")
@example(b'"\\ud800"')
@example(b'"\\ud800\\u0041"')
@example(b"-0")
@example(b"01")
@example(b"\x7f")
@example(b'"\x1f"')
@example(b"\xef\xbb\xbf1")
def test_nothing_is_taken_that_pythons_own_reader_refuses_and_nothing_is_refused_that_it_takes(piece: bytes) -> None:
    body = b'{"a":' + piece + b"}"

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        expected = json.loads(body.decode(), parse_constant=refuse)
    except ValueError:
        with pytest.raises(ApiError):
            requestjson.read(body)
    else:
        assert requestjson.read(body) == expected


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON at position 0"),
        (b'{"a": 1,}', "not valid JSON at position [78]"),  # of the comma since Python 3.13
        (b'{"a": NaN}', "not valid JSON"),
        (b"\xff{}", "not UTF-8"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
    ],
)
def test_a_refusal_says_why(body: bytes, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        requestjson.read(body)


def large(*parts: bytes) -> bytes:
    return b'{"text":"' + TEXT + b'",' + b",".join(parts) + b"}"


MANY = b"0," * (requestjson.MAX_VALUES + 1) + b"0"
NESTED = b"[]," * (requestjson.MAX_CONTAINERS + 1) + b"[]"


@pytest.mark.parametrize(
    "body",
    [
        large(b'"a":[%b]' % MANY),
        large(b'"a":[%b]' % NESTED),
        large(b'"a":"\\"","b":[%b]' % MANY),  # an escaped quote, and the text ends behind it
        large(b'"a":"\\\\","b":[%b]' % MANY),  # an escaped backslash: the quote is none
        large(b'"a":"\\\\\\"","b":[%b]' % MANY),
        large(b'"a":[%b],"b":[%b]' % (b'"",' * requestjson.QUOTES + b'""', MANY)),  # more quotes than are followed
        b'{"a":[' + MANY + b'],"text":"' + TEXT + b'"}',
        b'{"a":[' + MANY + b"]" + b" " * requestjson.LARGE,  # broken, and not looked at
        b'{"a":[' + MANY + b'],"text":"' + TEXT,
    ],
)  # fmt: skip
def test_too_many_values_are_refused_before_they_are_parsed(body: bytes) -> None:
    with pytest.raises(ApiError, match="too many values"):
        requestjson.read(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"text":"' + b",[{" * requestjson.LARGE + b'"}',  # a table as text
        b'{"text":"' + b'\\",[' * (requestjson.QUOTES // 2) + TEXT + b'"}',
        large(b'"a":[%b]' % (b"123456," * 200_000 + b"0")),  # tokens
        large(b'"a":[%b]' % (b'"",' * requestjson.QUOTES + b'""')),
        b'{"a":[' + b'{"role":"user","content":"yes"},' * 40_000 + b"{}]}",
    ],
)  # fmt: skip
def test_a_large_request_is_taken(body: bytes) -> None:
    assert len(body) > requestjson.LARGE
    assert requestjson.read(body) == json.loads(body)
