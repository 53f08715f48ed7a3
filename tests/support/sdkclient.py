"""The OpenAI SDK as a client in a process of its own, so that it can run in a box's network.

    python sdkclient.py chat|stream|embed --base URL --key KEY --model MODEL --text TEXT [--tokens N] [--all-tokens]

Prints one JSON object a line: for `stream` one for each delta as it comes, then, as always, one with `text` or
`vectors`, `finish`, and `error` (None, or what the SDK raised).
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import openai


def main() -> None:
    """Make one call and say how it went."""
    parser = argparse.ArgumentParser()
    parser.add_argument("call", choices=("chat", "stream", "embed"))
    for option in ("--base", "--key", "--model", "--text"):
        parser.add_argument(option, required=True)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--all-tokens", action="store_true", help="go on past the model's own end (vLLM's ignore_eos)")
    args = parser.parse_args()
    client = openai.OpenAI(base_url=args.base, api_key=args.key, max_retries=0, timeout=120)
    try:
        result = {"chat": _chat, "stream": _stream, "embed": _embed}[args.call](client, args)
    except (openai.OpenAIError, OSError) as problem:
        result = {"error": f"{type(problem).__name__}: {problem}", "status": getattr(problem, "status_code", None)}
    print(json.dumps({"error": None, "text": "", "finish": None, **result}), flush=True)


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    messages = [{"role": "user", "content": args.text}]
    extra = {"extra_body": {"ignore_eos": True}} if args.all_tokens else {}
    return {"model": args.model, "messages": messages, "temperature": 0, "max_tokens": args.tokens, **extra}


def _chat(client: openai.OpenAI, args: argparse.Namespace) -> dict[str, Any]:
    answer = client.chat.completions.create(**_asked(args))
    choice = answer.choices[0]
    usage = answer.usage.completion_tokens if answer.usage else None
    return {"text": choice.message.content, "finish": choice.finish_reason, "tokens": usage, "model": answer.model}


def _stream(client: openai.OpenAI, args: argparse.Namespace) -> dict[str, Any]:
    text, finish = "", None
    try:
        for chunk in client.chat.completions.create(stream=True, **_asked(args)):
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                if choice.delta.content:
                    text += choice.delta.content
                    print(json.dumps({"delta": choice.delta.content}), flush=True)
    except Exception as problem:  # whatever a broken stream makes the SDK raise is the finding
        return {"text": text, "finish": finish, "error": f"{type(problem).__name__}: {problem}"}
    return {"text": text, "finish": finish}


def _embed(client: openai.OpenAI, args: argparse.Namespace) -> dict[str, Any]:
    answer = client.embeddings.create(model=args.model, input=args.text.split("|"))
    return {"vectors": [entry.embedding for entry in answer.data]}


if __name__ == "__main__":
    main()
