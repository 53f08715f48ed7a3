"""OpenAI's SDK against the gateway: every route that it knows, what it parses, what it raises, how long it waits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import pytest

from tests.support.fakewire.openai import VECTOR
from tests.support.gatewayprocess import MODEL, FakeEngine, Gateway
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import openai
    import pydantic

HI: Any = [{"role": "user", "content": "hi"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "weather", "strict": True, "parameters": WEATHER}}]
TOOLS: Any = [{"type": "function", "name": "weather", "strict": True, "parameters": WEATHER}]
ASKED = {"city": "Paris", "days": 7}


@pytest.fixture(scope="module")
def form() -> type[pydantic.BaseModel]:
    """A form that an answer must have."""
    import pydantic

    return pydantic.create_model("Town", name=str, size=Literal["large", "small"], rivers=list[str], age=int)


@pytest.fixture
def client(gateway: Gateway) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=gateway.base, api_key="sk-any", max_retries=0, timeout=20)


def script(text: str) -> Any:
    return [{"role": "user", "content": f"[[fault:{text}]]"}]


# --- chat -----------------------------------------------------------------------------------------------------------
def test_an_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=6)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage and answer.usage.completion_tokens == 6


def test_a_stream_without_the_usage_that_nobody_asked_for(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=HI, stream=True))
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_with_the_usage_that_was_asked_for(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=MODEL, messages=HI, stream=True, stream_options=options))
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens == 8 and chunks[-1].choices == []


def test_a_tool_is_called_and_told_its_result(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HI, tools=CHAT_TOOLS)
    assert answer.choices[0].finish_reason == "tool_calls"
    message = answer.choices[0].message
    assert message.tool_calls
    call: Any = message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments) == ASKED
    told: Any = [*HI, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    after = client.chat.completions.create(model=MODEL, messages=told, tools=CHAT_TOOLS)
    assert "Paris" in (after.choices[0].message.content or "")


def test_a_tool_is_called_in_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HI, tools=CHAT_TOOLS) as stream:
        pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion()
    assert len(pieces) > 2
    calls = final.choices[0].message.tool_calls
    assert calls and calls[0].function.parsed_arguments == ASKED and final.choices[0].finish_reason == "tool_calls"


def test_an_answer_of_a_given_form(client: openai.OpenAI, form: type[pydantic.BaseModel]) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=HI, response_format=form)
    assert answer.choices[0].message.parsed == form(name="Paris", size="large", rivers=["Paris"], age=7)
    with client.chat.completions.stream(model=MODEL, messages=HI, response_format=form) as stream:
        assert [event.type for event in stream].count("content.delta") > 2
    assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed


# --- the other routes -----------------------------------------------------------------------------------------------
def test_responses(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="hi", max_output_tokens=6)
    assert "Paris" in answer.output_text and answer.usage and answer.usage.output_tokens == 8
    with client.responses.stream(model=MODEL, input="hi", max_output_tokens=6) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert "Paris" in text and final.output_text == text and final.usage and final.usage.output_tokens == 6


def test_responses_with_tools_and_forms(client: openai.OpenAI, form: type[pydantic.BaseModel]) -> None:
    call: Any = client.responses.create(model=MODEL, input="hi", tools=TOOLS).output[0]
    assert call.type == "function_call" and json.loads(call.arguments) == ASKED
    with client.responses.stream(model=MODEL, input="hi", tools=TOOLS) as stream:
        assert [event.type for event in stream].count("response.function_call_arguments.delta") > 2
        streamed: Any = stream.get_final_response().output[0]
    assert streamed.parsed_arguments == ASKED
    parsed = client.responses.parse(model=MODEL, input="hi", text_format=form).output_parsed
    assert parsed and parsed.model_dump()["size"] == "large"


def test_completions(client: openai.OpenAI) -> None:
    assert "Paris" in client.completions.create(model=MODEL, prompt="x").choices[0].text
    text = "".join(c.choices[0].text for c in client.completions.create(model=MODEL, prompt="x", stream=True))
    assert "Paris" in text


def test_embeddings_as_numbers_and_as_the_sdk_asks_for_them_by_itself(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    for form in ({"encoding_format": "float"}, {}):
        answer = client.embeddings.create(model=MODEL, input=["a", "b"], **form)  # type: ignore[arg-type]
        assert [pytest.approx(VECTOR) == one.embedding for one in answer.data] == [True, True]


def test_a_transcription(client: openai.OpenAI) -> None:
    answer = client.audio.transcriptions.create(model=MODEL, file=("a.wav", b"RIFF\0\xff\r\n--x", "audio/wav"))
    assert "Paris" in answer.text


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "llm-appliance"


# --- what goes wrong ------------------------------------------------------------------------------------------------
def test_errors_are_the_sdk_s_own(client: openai.OpenAI) -> None:
    import openai

    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="no", messages=HI)
    assert missing.value.code == "model_not_found" and missing.value.param == "model" and missing.value.request_id
    with pytest.raises(openai.BadRequestError, match="stream_options must be an object"):
        client.chat.completions.create(model=MODEL, messages=HI, stream_options=[])  # type: ignore[call-overload]
    with pytest.raises(openai.NotFoundError, match="there is no route /v1/files"):
        client.files.list()


@pytest.mark.parametrize("break_", ["reset=3", "error=3", "eof=3"])
def test_a_broken_stream_raises_in_every_api(client: openai.OpenAI, break_: str) -> None:
    import openai

    with pytest.raises(openai.APIError):
        list(client.chat.completions.create(model=MODEL, messages=script(break_), stream=True))
    with pytest.raises(openai.APIError):
        list(client.completions.create(model=MODEL, prompt=f"[[fault:{break_}]]", stream=True))
    with pytest.raises(openai.APIError):
        list(client.responses.create(model=MODEL, input=f"[[fault:{break_}]]", stream=True))


def test_a_client_that_waits_no_longer_ends_the_engine_s_work(client: openai.OpenAI, engine: FakeEngine) -> None:
    import openai

    impatient = client.with_options(timeout=0.5)
    for stream in (False, True):
        mark = f"impatient-{stream}"

        def reached(mark: str = mark, stream: bool = stream) -> dict[str, Any] | None:
            """On a busy machine a call may be given up before the gateway has passed it on."""
            with pytest.raises(openai.APITimeoutError):
                impatient.chat.completions.create(
                    model=MODEL, messages=script("first=60"), stream=stream, extra_headers={"X-Request-Id": mark}
                )
            return engine.marked(mark)

        entry = wait_until(reached, 30, "a call is at the engine")
        assert entry
        wait_until(lambda entry=entry: entry["aborted"], 10, "it is ended", 0.02)  # type: ignore[misc]


def test_a_stream_that_is_left_ends_the_engine_s_work(client: openai.OpenAI, engine: FakeEngine) -> None:
    mark = {"X-Request-Id": "left"}
    with client.chat.completions.create(
        model=MODEL, messages=script("stall=3"), stream=True, extra_headers=mark
    ) as stream:
        assert next(stream).choices
    wait_until(lambda: (engine.marked("left") or {}).get("aborted"), 10, "it is ended", 0.02)
