"""Client frameworks against a gateway, in the environment that has them: `frameworkclient.py NAME URL MODEL`.

Prints one JSON object: what each call brought. A process of its own for each framework, since importing one takes
seconds and replaces logging, exception hooks and event loops at will. Nothing asks the internet.
"""

from __future__ import annotations

import json
import sys
from typing import Any

QUESTION = "hi"
BROKEN = "[[fault:reset=3]]"
SCHEMA = {
    "title": "weather",
    "description": "The weather of a city.",
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def langchain(base: str, model: str) -> dict[str, Any]:
    """ChatOpenAI and OpenAIEmbeddings as their users write them."""
    from langchain_core.messages import ToolMessage
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    chat: Any = ChatOpenAI(model=model, base_url=base, api_key="sk-any", max_retries=0, timeout=30)  # type: ignore[arg-type]
    answer = chat.invoke(QUESTION)
    pieces = list(chat.stream(QUESTION, stream_usage=True))
    with_tool = chat.bind_tools([{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}])
    called = with_tool.invoke(QUESTION)
    streamed: Any = None
    for piece in with_tool.stream(QUESTION):
        streamed = piece if streamed is None else streamed + piece
    told = with_tool.invoke([("user", QUESTION), called, ToolMessage("rain", tool_call_id=called.tool_calls[0]["id"])])
    try:
        broken = "".join(piece.content for piece in chat.stream(BROKEN))
    except Exception as error:  # whatever it raises is the finding
        broken = type(error).__name__
    embeddings: Any = OpenAIEmbeddings(
        model=model, base_url=base, api_key="sk-any", check_embedding_ctx_length=False, max_retries=0  # type: ignore[arg-type]
    )  # fmt: skip
    return {
        "text": answer.content,
        "usage": answer.usage_metadata["output_tokens"],
        "pieces": sum(bool(piece.content) for piece in pieces),
        "streamed_usage": [piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata],
        "tool": called.tool_calls[0]["args"],
        "streamed_tool": streamed.tool_calls[0]["args"],
        "told": told.content,
        "form": chat.with_structured_output(SCHEMA, method="json_schema").invoke(QUESTION),
        "broken": broken,
        "vectors": embeddings.embed_documents(["a", "b"]),
    }


def litellm(base: str, model: str) -> dict[str, Any]:
    """litellm as a client of an OpenAI-compatible server."""
    import litellm

    named: dict[str, Any] = {"model": f"openai/{model}", "api_base": base, "api_key": "sk-any", "max_retries": 0}
    messages = [{"role": "user", "content": QUESTION}]
    answer: Any = litellm.completion(**named, messages=messages)
    chunks = list(litellm.completion(**named, messages=messages, stream=True))
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    called: Any = litellm.completion(**named, messages=messages, tools=tools)
    try:
        stream = litellm.completion(**named, messages=[{"role": "user", "content": BROKEN}], stream=True)
        broken = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    except Exception as error:  # whatever it raises is the finding
        broken = type(error).__name__
    try:
        litellm.completion(**{**named, "model": "openai/no"}, messages=messages)
        refused = ""
    except litellm.NotFoundError as error:
        refused = str(error)
    vectors: Any = litellm.embedding(**named, input=["a", "b"])
    return {
        "text": answer.choices[0].message.content,
        "usage": answer.usage.completion_tokens,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "pieces": sum(bool(chunk.choices[0].delta.content) for chunk in chunks),
        "tool": json.loads(called.choices[0].message.tool_calls[0].function.arguments),
        "broken": broken,
        "refused": refused,
        "vectors": [one["embedding"] for one in vectors.data],
    }


if __name__ == "__main__":
    print(json.dumps({"langchain": langchain, "litellm": litellm}[sys.argv[1]](sys.argv[2], sys.argv[3])))
