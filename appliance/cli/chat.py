"""`llm-appliance chat [MESSAGE]`: a conversation with a model through the gateway, streamed to the terminal.

With a message: one answer, then the end. Without: lines from the terminal until Ctrl-D. Ctrl-C ends an answer, and the
engine's work for it with the connection.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from appliance.config import source
from appliance.config.model import Config
from appliance.errors import EXIT_FOUND, EXIT_OK, ApplianceError, Failed, Unreachable, UsageError

from . import output, values
from .frontclient import Place
from .gatewayclient import public_place

KEY_VARIABLE = "LLM_APPLIANCE_API_KEY"
TIMEOUT = 660.0  # longer than the gateway waits for a first token


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("message", nargs="*", metavar="MESSAGE", help="what to say; without it, a conversation")
    parser.add_argument("--model", metavar="M", help="a served name (default: the first that the key may use)")
    add_key_arguments(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system prompt")
    parser.add_argument("--max-tokens", type=values.count, metavar="N", help="the longest answer")


def run(args: argparse.Namespace) -> int:
    """Talk."""
    gateway = Gateway(args.config, key_of(args))
    model = args.model or gateway.first_model()
    messages: list[dict[str, str]] = [{"role": "system", "content": args.system}] if args.system else []
    words = " ".join(args.message) or ("" if sys.stdin.isatty() else sys.stdin.read().strip())
    if words:
        return EXIT_OK if _turn(gateway, model, messages, words, args.max_tokens) else EXIT_FOUND
    if not sys.stdin.isatty():
        raise UsageError("there is no message", hint="llm-appliance chat MESSAGE")
    output.note(f"talking to {model}; Ctrl-D ends")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return EXIT_OK
        if line:
            try:
                _turn(gateway, model, messages, line, args.max_tokens)
            except KeyboardInterrupt:  # ends the answer, not the conversation
                print()


def add_key_arguments(parser: argparse.ArgumentParser) -> None:
    """`[--key KEY | --key-file FILE]`, for every verb that calls the API."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--key", metavar="API_KEY", help=f"the API key, for all here to see (default: ${KEY_VARIABLE})")
    group.add_argument("--key-file", metavar="FILE", help="a file with the API key")


def key_of(args: argparse.Namespace) -> str:
    """The key by these arguments; empty where none is given. Raises UsageError."""
    if args.key_file is not None:
        return read_key(args.key_file)
    return str(args.key or os.environ.get(KEY_VARIABLE, "")).strip()


def read_key(path: str) -> str:
    """The key in a file. Raises UsageError."""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or 'no text'}") from None


def _turn(gateway: Gateway, model: str, messages: list[dict[str, str]], words: str, limit: int | None) -> bool:
    """One question and its answer; whether there was one."""
    messages.append({"role": "user", "content": words})
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": True}
    if limit is not None:
        body["max_tokens"] = limit
    said: list[str] = []
    is_terminal = output.is_terminal()
    for piece in gateway.stream(body):
        said.append(piece)
        sys.stdout.write(output.shown(piece) if is_terminal else piece)
        sys.stdout.flush()
    print()
    messages.append({"role": "assistant", "content": "".join(said)})
    return bool(said)


class Gateway:
    """The gateway's public listener, by the configuration."""

    def __init__(self, config_path: str, key: str) -> None:
        self._place = public_place(source.effective(config_path).config or Config())
        self._key = key

    def first_model(self) -> str:
        """The first model that the key may use. Raises Failed, Unreachable."""
        connection, response = self._ask("GET", "/v1/models", None)
        try:
            entries = json.loads(response.read()).get("data", [])
        finally:
            connection.close()
        if not entries:
            raise Failed("this key may use no model", hint="llm-appliance keys list")
        return str(entries[0]["id"])

    def stream(self, body: dict[str, Any]) -> Iterator[str]:
        """The pieces of an answer as they come. Raises Failed, UsageError, Unreachable."""
        connection, response = self._ask("POST", "/v1/chat/completions", json.dumps(body).encode())
        try:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise Failed(f"the answer broke off: {event['error'].get('message')}")
                for choice in event.get("choices", []):
                    piece = choice.get("delta", {}).get("content")
                    if piece:
                        yield piece
            raise Failed("the answer broke off")
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the connection to the gateway ended: {error}") from None
        finally:
            connection.close()

    def _ask(
        self, method: str, path: str, body: bytes | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = _connection(self._place)
        fields = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        try:
            connection.request(method, path, body, fields)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            words = (getattr(error, "strerror", None) or str(error)).lower()
            raise Unreachable(
                f"the gateway at {self._place.host}:{self._place.port} does not answer: {words}",
                hint="systemctl status llm-gateway",
            ) from None
        if response.status != 200:
            failure = _failure(response.status, response.read(), bool(self._key))
            connection.close()
            raise failure
        return connection, response


def _connection(place: Place) -> http.client.HTTPConnection:
    """A connection to the listener; on a loopback address the certificate's name cannot fit, so it is not checked."""
    if not place.tls:
        return http.client.HTTPConnection(place.host, place.port, timeout=TIMEOUT)
    context = ssl.create_default_context()
    if place.is_loopback:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(place.host, place.port, timeout=TIMEOUT, context=context)


def _failure(status: int, body: bytes, has_key: bool) -> ApplianceError:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the gateway answered {status}"
    if status == 400:  # what was asked for cannot be had, like more --max-tokens than the key or the model allows
        return UsageError(message)
    if status != 401:
        return Failed(message, hint="llm-appliance status names the models" if status == 404 else "")
    made = "sudo llm-appliance keys create me"
    hint = "llm-appliance keys list" if has_key else f"{KEY_VARIABLE}=$({made}) llm-appliance chat"
    return Failed(message, hint=hint)
