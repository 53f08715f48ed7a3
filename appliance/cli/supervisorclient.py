"""Orders to the supervisor over its control socket, as the verbs give them."""

from __future__ import annotations

import argparse
import json
import os
import socket
from collections.abc import Iterator, Mapping

from appliance import names
from appliance.errors import EXIT_FOUND, EXIT_OK, Unreachable
from appliance.host import places

from . import output

ANSWER_S = 150.0  # longest silence of an order that is not followed to its end


def order(op: str, *, silence_s: float = ANSWER_S, **fields: object) -> Iterator[Mapping[str, object]]:
    """Send an order; its event lines as they come, the last one has `done`. Raises Unreachable.

    Blocks up to `silence_s` for each line.
    """
    path = places.from_environment().under_run(names.SUPERVISOR_SOCKET)
    request = json.dumps({"op": op, **fields}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(silence_s)
            connection.connect(path)
            connection.sendall(request)
            with connection.makefile("rb") as lines:
                yield from _values(lines)
    except TimeoutError:
        raise Unreachable(f"the supervisor said nothing for {silence_s:.0f} s", hint=_hint()) from None
    except PermissionError:
        raise Unreachable("only root may give orders to the supervisor", hint="sudo llm-appliance ...") from None
    except OSError as error:
        words = (error.strerror or "no answer").lower()
        raise Unreachable(f"the supervisor does not answer at {path}: {words}", hint=_hint()) from None


def _values(lines: Iterator[bytes]) -> Iterator[Mapping[str, object]]:
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value
            if value.get("done"):
                return


def follow(op: str, *, silence_s: float = ANSWER_S, **fields: object) -> int:
    """Give an order, print what happens, return the exit status: 0 done, else why not, in the supervisor's word."""
    return ended(followed(op, silence_s=silence_s, **fields))


def followed(op: str, *, silence_s: float = ANSWER_S, **fields: object) -> Mapping[str, object]:
    """Give an order and print what happens until it is done; the last event. Raises Unreachable."""
    for event in order(op, silence_s=silence_s, **fields):
        if event.get("done"):
            return event
        text = sentence(event)
        if text:
            print(output.clean(text), flush=True)
    raise Unreachable("the supervisor ended before the order was done", hint=_hint())


def sentence(event: Mapping[str, object]) -> str:
    """An event as a line; empty for one that says nothing to people."""
    engine, message = event.get("engine", ""), str(event.get("message") or "")
    if event.get("event") == "state":
        return f"{engine}: {event.get('state')}" + (f": {message}" if message else "")
    if event.get("event") == "ended":
        return f"{engine}: {event.get('cause')}: {message}"
    if event.get("event") == "change":
        return f"{engine} {message}"
    return ""


def ended(event: Mapping[str, object]) -> int:
    """Print how an order ended; the exit status that says it."""
    message = str(event.get("message") or "")
    if event.get("ok") is True:
        if message:
            print(output.clean(message))
        return EXIT_OK
    output.note(f"llm-appliance: {message or 'the supervisor refused'}")
    status = event.get("status")
    return status if isinstance(status, int) and status else EXIT_FOUND


def engine_argument(parser: argparse.ArgumentParser) -> None:
    """`ENGINE`: an engine's name (all its replicas) or one replica's."""
    parser.add_argument("engine", metavar="ENGINE", help="an engine (all its replicas) or one replica, like chat-2")


def wait_argument(parser: argparse.ArgumentParser) -> None:
    """`--wait`."""
    parser.add_argument("--wait", action="store_true", help="return when it serves, failed, or was held")


def silence(wait: bool) -> float:
    """The silence to bear: a model may load for an hour without news. The deadline itself is the supervisor's."""
    return 4000.0 if wait else ANSWER_S


def _hint() -> str:
    if os.geteuid() != 0:
        return "run the command as root (sudo), or see systemctl status llm-supervisor"
    return "systemctl status llm-supervisor"
