"""Calls with both SDKs in one process, so that it can run in a box's network: `sdktour.py URL KEY MODEL [tools]`.

Prints one JSON object: what each call brought, or the error that it raised as `{"error": ...}`. With `tools` only calls
that an engine must be configured for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pydantic

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


class Trip(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=12)
    days: int = pydantic.Field(ge=0, le=9)


TOOL: Any = {"type": "function", "function": {"name": "book", "parameters": Trip.model_json_schema()}}


def plain(client: openai.OpenAI, other: anthropic.Anthropic, model: str) -> dict[str, Callable[[], Any]]:
    """Calls that any chat model answers."""
    ask: Any = {"model": model, "max_tokens": 40, "messages": QUESTION, "extra_body": {"temperature": 0}}
    respond: Any = {"model": model, "input": QUESTION[0]["content"], "temperature": 0, "max_output_tokens": 40}

    def responses_stream() -> Any:
        with client.responses.stream(**respond) as stream:
            pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
            return {"pieces": len(pieces), "text": stream.get_final_response().output_text}

    def messages_stream() -> Any:
        with other.messages.stream(**ask) as stream:
            pieces = list(stream.text_stream)
            return {
                "pieces": len(pieces),
                "tokens": stream.get_final_message().usage.output_tokens,
                "text": "".join(pieces),
            }

    def usage() -> Any:
        stream: Any = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask)
        last = list(stream)[-1]
        return {"tokens": last.usage.completion_tokens, "choices": last.choices}

    def post(path: str, body: dict[str, Any]) -> Any:
        return client.with_options(base_url=str(client.base_url).removesuffix("/v1/")).post(
            path, body={"model": model, **body}, cast_to=object
        )

    def parsed() -> Any:
        answer: Any = client.chat.completions.parse(response_format=Trip, **ask)
        return answer.choices[0].message.parsed.model_dump()

    return {
        "parsed": parsed,
        "completion": lambda: client.completions.create(
            model=model, prompt="The capital of France is", max_tokens=3, temperature=0
        ).choices[0].text,
        "usage": usage,
        "responses": lambda: client.responses.create(**respond).output_text,
        "responses_stream": responses_stream,
        "messages": lambda: other.messages.create(**ask).content[0].text,  # type: ignore[union-attr]
        "messages_stream": messages_stream,
        "counted": lambda: other.messages.count_tokens(model=model, messages=QUESTION).input_tokens,
        "tokens": lambda: post("/tokenize", {"prompt": "The capital of France"}),
        "too_long": lambda: client.chat.completions.create(**{**ask, "max_tokens": 1_000_000}),
        "too_long_message": lambda: other.messages.create(**{**ask, "max_tokens": 1_000_000}),
    }  # fmt: skip


def tools(client: openai.OpenAI, model: str) -> dict[str, Callable[[], Any]]:
    """A call that must be made, so that the smallest model makes it."""
    ask: Any = {"model": model, "max_tokens": 60, "messages": QUESTION, "temperature": 0, "tools": [TOOL]}

    def called() -> Any:
        call: Any = client.chat.completions.create(tool_choice="required", **ask).choices[0].message.tool_calls
        return [call[0].function.name, json.loads(call[0].function.arguments)]

    def streamed() -> Any:
        with client.chat.completions.stream(tool_choice="required", **ask) as stream:
            pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
            final: Any = stream.get_final_completion().choices[0].message.tool_calls
        return [final[0].function.name, json.loads(final[0].function.arguments), len(pieces)]

    return {"called": called, "streamed": streamed}


def main() -> None:
    """Make all calls, one after the other."""
    base, key, model, *only = sys.argv[1:]
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, timeout=120)
    other = anthropic.Anthropic(base_url=base, api_key=key, max_retries=0, timeout=120)
    said: dict[str, Any] = {}
    for name, call in (tools(client, model) if only else plain(client, other, model)).items():
        try:
            said[name] = call()
        except (openai.OpenAIError, anthropic.AnthropicError) as error:
            said[name] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
