from __future__ import annotations

import json

import pytest

from appliance.errors import API_CODES, ApiError
from appliance.wire.apierror import engine_error, error_body, error_event
from appliance.wire.openai import Shape


@pytest.mark.parametrize("code", sorted(API_CODES))
@pytest.mark.parametrize("shape", Shape)
def test_every_code_has_a_body_and_an_event(code: str, shape: Shape) -> None:
    error = ApiError(code, 'say "why"\n\nnow', param="model")
    body = json.loads(error_body(error, shape))
    event = error_event(error, shape, 7)
    assert event.endswith(b"\n\n") and event.count(b"\n\n") == 1
    data = json.loads(event.partition(b"data: ")[2])
    if shape is Shape.ANTHROPIC:
        assert body["type"] == "error" and body["error"]["message"] == error.message and body["error"]["code"] == code
        assert data == body and event.startswith(b"event: error\n")
        return
    assert body == {"error": {"message": error.message, "type": error.type, "param": "model", "code": code}}
    if shape is Shape.RESPONSES:
        assert data["type"] == "error" and data["code"] == code and data["sequence_number"] == 7
        assert data["error"]["code"] == code and data["error"]["message"] == data["message"]
        assert event.startswith(b"event: error\n")
    else:
        assert data == body and event.startswith(b"data: ")


@pytest.mark.parametrize(
    ("body", "message"),
    [(b'{"error":{"message":"too long"}}', "too long"), (b'{"message":"flat"}', "flat"),
     (b"oops", "the engine answered 400"),
     (b'{"detail":"Not Found"}', "Not Found"), (b"[1]", "the engine answered 400"), (b"", "the engine answered 400")],
)  # fmt: skip
def test_an_engines_words_are_kept(body: bytes, message: str) -> None:
    assert engine_error(400, body).message == message


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"error":' * 100_000, b"\xff", b"", b'{"error": {"message": "\\ud800"}}']
)
def test_an_engines_error_of_any_kind_can_be_told(body: bytes) -> None:
    error = engine_error(500, body)
    assert error.code == "engine_error"
    for shape in Shape:
        json.loads(error_body(error, shape))
        error_event(error, shape).decode()
