from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ApiError
from appliance.wire.openai import ROUTES, Shape, extended, form_fields, limit_set, models, parse_call, usage_asked

CHAT = ROUTES["/v1/chat/completions"]
AUDIO = ROUTES["/v1/audio/transcriptions"]


def test_a_call_holds_what_the_gateway_needs() -> None:
    body = b'{"model":"m","stream":true,"max_tokens":5,"stream_options":{"include_usage":true},"x":[1]}'
    call = parse_call(CHAT, body)
    assert (call.model, call.stream, call.max_tokens, call.include_usage, call.size) == ("m", True, 5, True, len(body))


@pytest.mark.parametrize(
    ("body", "limit"),
    [(b'{"model":"m"}', None), (b'{"model":"m","max_completion_tokens":3,"max_tokens":9}', 3),
     (b'{"model":"m","max_output_tokens":4}', None), (b'{"model":"m","max_tokens":null}', None),
     (b'{"model":"m","max_completion_tokens":0,"max_tokens":9}', 9), (b'{"model":"m","max_completion_tokens":0}', None),
     (b'{"model":"m","max_completion_tokens":0,"max_tokens":0}', 0), (b'{"model":"m","max_tokens":0}', 0)],
)  # fmt: skip
def test_the_limit_has_many_names(body: bytes, limit: int | None) -> None:
    assert parse_call(CHAT, body).max_tokens == limit


@pytest.mark.parametrize(
    ("path", "fields", "answers"),
    [("chat/completions", {}, 1), ("chat/completions", {"n": None, "best_of": 9, "prompt": ["a", "b"]}, 1),
     ("chat/completions", {"n": 3}, 3), ("chat/completions", {"n": 3.0}, 3),
     ("completions", {"n": 2, "best_of": 5}, 5), ("completions", {"prompt": "a"}, 1),
     ("completions", {"prompt": [1, 2, 3]}, 1), ("completions", {"prompt": ["a", "b", "c"], "n": 4}, 12),
     ("completions", {"prompt": [[1, 2], [3]], "best_of": 2}, 4), ("completions", {"prompt": []}, 1),
     ("completions", {"prompt": ["a"], "prompt_embeds": ["x", "y"]}, 3), ("embeddings", {"n": 7}, 1),
     ("responses", {"n": 7}, 1)],
)  # fmt: skip
def test_every_answer_is_counted_that_the_engine_will_make(path: str, fields: dict[str, object], answers: int) -> None:
    body = json.dumps({"model": "m", **fields}).encode()
    assert parse_call(ROUTES[f"/v1/{path}"], body).answers == answers


@pytest.mark.parametrize("count", [0, -1, 0.0, True, 2.5, "3", [1]])
@pytest.mark.parametrize(
    ("path", "name"), [("chat/completions", "n"), ("completions", "n"), ("completions", "best_of")]
)
def test_a_count_that_an_engine_could_read_otherwise_is_refused(path: str, name: str, count: object) -> None:
    with pytest.raises(ApiError) as caught:
        parse_call(ROUTES[f"/v1/{path}"], json.dumps({"model": "m", name: count}).encode())
    assert (caught.value.code, caught.value.param) == ("invalid_request", name)


@pytest.mark.parametrize(
    ("path", "counts"),
    [("/v1/chat/completions", 1), ("/v1/completions", 2), ("/v1/responses", 3), ("/v1/messages", 2),
     ("/v1/embeddings", None)],
)  # fmt: skip
def test_the_limit_is_the_one_that_the_engine_reads(path: str, counts: int | None) -> None:
    body = b'{"model":"m","max_completion_tokens":1,"max_tokens":2,"max_output_tokens":3}'
    assert parse_call(ROUTES[path], body).max_tokens == counts


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_a_limit_that_was_added_counts(path: str) -> None:
    body = b'{"model":"m","max_tokens":null, "max_output_tokens": null }\n'
    bounded = b"".join(extended(body, limit_set(ROUTES[path], 7)))
    assert parse_call(ROUTES[path], body).max_tokens is None
    assert parse_call(ROUTES[path], bounded).max_tokens == 7


@pytest.mark.parametrize(
    ("asks", "structured"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, True),
        ({"text": {"format": {"type": "json_schema"}}}, True),
        ({"text": {"verbosity": "low"}}, False),
        ({"structured_outputs": {"regex": "a+"}}, True),
        ({"guided_json": None}, False),
        ({"guided_grammar": "root ::= x"}, True),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, False),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, True),
        ({"tools": [{"name": "f", "strict": True}]}, True),
        ({"tools": [{"name": "f"}], "tool_choice": "required"}, True),
        ({"tools": [{"name": "f"}], "tool_choice": {"type": "function", "function": {"name": "f"}}}, True),
        ({"tools": [], "tool_choice": "required"}, False),
        ({"tools": ["x", {"function": 3}], "response_format": 5, "text": "x"}, False),
    ],
)
def test_an_answer_that_must_keep_to_a_grammar(asks: dict[str, object], structured: bool) -> None:
    assert parse_call(CHAT, json.dumps({"model": "m", **asks}).encode()).structured is structured


@pytest.mark.parametrize("asked", ["no", "off", "false", "", "true", 0, 1, 0.0, [], [1], {}])
def test_whether_usage_is_told_is_not_left_to_the_engines_reading(asked: object) -> None:
    body = {"model": "m", "stream": True, "stream_options": {"include_usage": asked}}
    with pytest.raises(ApiError) as caught:
        parse_call(CHAT, json.dumps(body).encode())
    assert (caught.value.code, caught.value.param) == ("invalid_request", "stream_options")


def test_a_route_that_cannot_stream_does_not() -> None:
    assert not parse_call(ROUTES["/v1/embeddings"], b'{"model":"m","stream":true}').stream


def test_the_last_of_two_keys_counts_as_in_the_engine() -> None:
    assert parse_call(CHAT, b'{"model":"allowed","model":"other"}').model == "other"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


option_values = st.sampled_from([None, {}, {"include_usage": False}, {"a": 1}])


@given(
    st.dictionaries(st.text(), json_values, max_size=5),
    option_values,
    st.booleans(),
    st.sampled_from(["", " ", "\n\t "]),
)
def test_splicing_adds_usage_and_changes_nothing_else(
    fields: dict[str, object], options: dict[str, object] | None, ascii_only: bool, tail: str
) -> None:
    value = {**fields, "model": "m", "stream": True}
    value.pop("stream_options", None)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        value.pop(name, None)
    if options is not None:
        value["stream_options"] = options
    body = (json.dumps(value, ensure_ascii=ascii_only) + tail).encode("utf-8", "surrogatepass")
    try:
        call = parse_call(CHAT, body)
    except ApiError as error:
        assert error.code == "invalid_json"  # lone surrogates are not UTF-8
        return
    spliced = b"".join(extended(body, usage_asked(call)))
    assert json.loads(spliced) == {**value, "stream_options": {**(options or {}), "include_usage": True}}
    assert spliced.startswith(body.rstrip()[:-1])


@given(st.binary(max_size=200))
def test_no_body_is_more_than_a_refusal(body: bytes) -> None:
    for route in ROUTES.values():
        try:
            parse_call(route, body, "multipart/form-data; boundary=b")
        except ApiError as error:
            assert error.status == 400


def form(*parts: tuple[str, bytes]) -> bytes:
    return b"".join(b"--bnd\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (head.encode(), text)
                    for head, text in parts) + b"--bnd--\r\n"  # fmt: skip


def test_a_form_is_read_around_its_files() -> None:
    body = form(('name="file"; filename="x"', b'RIFF name="model"\r\n\r\nfake'), ('name="model"', b"whisper"),
                ("name=stream", b"true"))  # fmt: skip
    call = parse_call(AUDIO, body, 'multipart/form-data; boundary="bnd"')
    assert (call.model, call.stream) == ("whisper", True)
    assert form_fields(body[:-2], 'Multipart/Form-Data; charset="utf-8"; Boundary=bnd')["model"] == "whisper"


A, B = ('name="model"', b"a"), ('name="model"', b"b")


@pytest.mark.parametrize(
    "body",
    [
        b"preamble\r\n" + form(A),
        form(A) + form(B),  # text behind the end
        form(A) + b"\r\n--bnd\r\n",
        form(A, B),
        form(A, ("name=model", b"b")),
        form(A, ('name="mo\\del"', b"b")),
        form(A, ("name*=utf-8''model", b"b")),
        form(A, ('name*0="mo"; name*1="del"', b"b")),
        form(A, ('x-name="model"', b"b")),
        form(A, ('name="x"; name="model"', b"b")),
        form(A, ('name="x"\r\nContent-Disposition: form-data; name="model"', b"b")),
        form(A, ('name="x"\r\n ; name="model"', b"b")),
        form(A, ('name="x"\nContent-Disposition: form-data; name="model"', b"b")),
        form(A, ('filename="model"', b"b")),
        form(('name="model"; filename="x"', b"a")),
        form(('name="model"', b"a" * 70_000)),
        form(A, ('name="x"; filename="' + "y" * 9000 + '"', b"")),
        form(A, *[(f'name="f{n}"', b"") for n in range(200)]),
        form(A).replace(b"\r\n", b"\n"),
        form(A)[:-9],
        form(A).replace(b"--bnd--", b"--bndx--"),
        b"--bnd\r\n\r\na\r\n--bnd--",
    ],
)
def test_a_form_that_two_readers_could_take_differently_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_call(AUDIO, body, "multipart/form-data; boundary=bnd")
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize(
    "kind",
    ["multipart/form-data; boundary=bnd; boundary=x", "multipart/form-data; x-boundary=bnd",
     "multipart/form-data; boundary=x; x-boundary=bnd", 'multipart/form-data; boundary="b\\nd"',
     "multipart/form-datax; boundary=bnd",
     "multipart/form-data; boundary*=utf-8''bnd"],
)  # fmt: skip
def test_a_boundary_that_two_readers_could_take_differently_is_refused(kind: str) -> None:
    with pytest.raises(ApiError):
        form_fields(form(A), kind)


def test_a_model_that_no_log_could_hold_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        parse_call(CHAT, b'{"model": "\\ud800"}')
    assert (caught.value.code, caught.value.param) == ("invalid_request", "model")
    assert parse_call(CHAT, b'{"model": "\\ud83d\\ude00"}').model == "\U0001f600"


@pytest.mark.parametrize(
    ("body", "kind"),
    [(form(("name=x", b"1")), "multipart/form-data; boundary=bnd"), (b"{}", "application/json"),
     (b"", "multipart/form-data; boundary=bnd"), (form(("name=model", b"")), "multipart/form-data; boundary=bnd"),
     (form(("name=model", b"m")), "multipart/form-data")],
)  # fmt: skip
def test_a_form_without_a_model_is_refused(body: bytes, kind: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_call(AUDIO, body, kind)
    assert caught.value.code == "invalid_request"


def test_routes_are_the_contracts() -> None:
    assert set(ROUTES) == {
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
        "/v1/embeddings", "/v1/rerank", "/v1/score", "/tokenize", "/detokenize", "/v1/audio/transcriptions",
    }  # fmt: skip
    assert ROUTES["/v1/messages"].shape is Shape.ANTHROPIC
    assert models([("a", "org/a")], 5)["data"] == [
        {"id": "a", "object": "model", "created": 5, "owned_by": "llm-appliance", "root": "org/a"}
    ]
