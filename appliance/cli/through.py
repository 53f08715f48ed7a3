"""`doctor --through URL`: how answers travel through what stands in front of the gateway.

The gateway makes the stream that is judged (`wire/deliveryprobe`), so no model need serve; what a real model sends is
looked at last. What was seen becomes findings in `policy/delivery`.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from appliance import clock
from appliance.policy import delivery
from appliance.policy.finding import Finding, Verdict
from appliance.quantity import format_size
from appliance.wire import deliveryprobe, sse
from appliance.wire.deliveryprobe import Plan, Seen

from .frontclient import TIMEOUT, Front, Reader

CHAT = "/v1/chat/completions"
LARGE = 8 << 20  # bytes of a large prompt; nginx takes 1 MiB by default
RENEW = 14 * 86400.0  # seconds before its end in which a certificate should have been renewed
MODEL_TOKENS = 48
MODEL_LIMIT = 120.0


@dataclass(slots=True)
class _Heard:
    """One probe's stream as it was heard."""

    events: list[delivery.Event]
    seen: Seen | None = None
    whole: bool = False
    comments: int = 0


def findings(front: Front, silence: float) -> Iterator[Finding]:
    """One after the other, as they are found. Raises Unreachable where nothing answers."""
    sound = yield from _transport(front)
    if not sound:
        return
    known = yield from _errors(front)
    if known:
        yield from _stream(front, silence)
        yield _large_body(front)
    yield _real_model(front)


def _transport(front: Front) -> Generator[Finding, None, bool]:
    """TLS; whether the key may be sent."""
    if not front.place.tls:
        if front.place.is_loopback:
            yield Finding("tls", Verdict.OK, "no TLS, and nothing leaves this machine")
        else:
            yield Finding(
                "tls", Verdict.WARN, "no TLS: keys and prompts can be read on the way",
                "put a proxy with a certificate in front, or set [gateway] tls_certificate and tls_key",
            )  # fmt: skip
        return True
    try:
        version, until = front.peer()
    except ssl.SSLCertVerificationError as error:
        yield Finding(
            "tls", Verdict.FAIL, f"the certificate does not hold: {error.verify_message}; the key was not sent",
            "serve the whole chain for this name and renew it in time; --ca FILE trusts an authority of your own",
        )  # fmt: skip
        return False
    except ssl.SSLError as error:
        yield Finding("tls", Verdict.FAIL, f"no TLS is spoken there: {(error.reason or 'error').lower()}",
                      "ask with http://, or turn TLS on at that port")  # fmt: skip
        return False
    left = until - clock.wall()
    seen = f"{version}, the certificate holds for {left / 86400:.0f} days"
    if left < RENEW:
        yield Finding("tls", Verdict.WARN, seen, "renew it, and let it be renewed by a timer")
    else:
        yield Finding("tls", Verdict.OK, seen)
    return True


def _errors(front: Front) -> Generator[Finding, None, bool]:
    """Whether the gateway's own refusals arrive; whether it knows the probe and the key."""
    body = json.dumps({"model": deliveryprobe.MODEL + "/none", "messages": []}).encode()
    with front.ask("POST", CHAT, body) as response:
        text = _text(response)
        status, kind = response.status, response.getheader("Content-Type") or "nothing"
    code = _code(text)
    if status == 404 and code == "model_not_found":
        yield Finding("errors", Verdict.OK, "the gateway's refusal arrives with its status and body")
        return True
    if status == 401 and code:
        yield Finding("key", Verdict.FAIL, "the gateway knows no such key, or the key was taken out on the way",
                      "give a key with --key-file FILE; let Authorization pass")  # fmt: skip
    elif 300 <= status < 400:
        where = response.getheader("Location") or "?"
        yield Finding("errors", Verdict.FAIL, f"a redirect to {where[:200]}, which clients do not follow with a call",
                      "use the address that it names as base URL")  # fmt: skip
    elif status in (502, 504):
        yield Finding("errors", Verdict.FAIL, f"what stands in front answers {status}: it does not reach the gateway",
                      "systemctl status llm-gateway; compare its address with [gateway] listen")  # fmt: skip
    else:
        seen = f"a refusal should be 404 in JSON, and arrives as {status} in {kind[:60]}"
        yield Finding("errors", Verdict.FAIL, seen,
                      "let error pages of the gateway pass: nginx without `proxy_intercept_errors`")  # fmt: skip
    return False


def _stream(front: Front, silence: float) -> Iterator[Finding]:
    plan = Plan(silence=silence)
    body = deliveryprobe.request_body(plan, stream=True)
    begun = clock.monotonic()
    with front.ask("POST", CHAT, body, timeout=TIMEOUT + silence) as response:
        if response.status != 200:
            message = _text(response)[:200].decode(errors="replace")
            yield Finding("delivery", Verdict.UNKNOWN, f"the probe was answered with {response.status}: {message}")
            return
        reader = Reader(response)
        heard = _hear(reader)
        ended = clock.monotonic()
        version = "1.0" if response.version == 10 else "1.1"
    seen = heard.seen
    stream = delivery.Stream(
        interval=plan.interval,
        silence=silence,
        events=tuple(heard.events),
        whole=heard.whole,
        lasted=ended - begun,
        quiet=ended - reader.at,
        encoding=reader.encoding,
        client_version=version,
        gateway_version=seen.http if seen is not None else "?",
    )
    for judge in (
        delivery.one_by_one, delivery.uncompressed, delivery.http_version, delivery.comments, delivery.held_open,
    ):  # fmt: skip
        yield judge(stream)
    if seen is not None:
        yield delivery.address(seen.client, seen.forwarded)


def _hear(reader: Reader) -> _Heard:
    """Read a probe's stream to its end."""
    heard, splitter = _Heard([]), sse.EventSplitter()
    for at, data in reader.pieces():
        for event in splitter.feed(data):
            if event.startswith(b":"):
                heard.comments += 1
                continue
            said = sse.data_of(event) or b""
            heard.whole = heard.whole or said == b"[DONE]"
            told = deliveryprobe.read_event(said)
            if told is not None:
                heard.seen = told.seen or heard.seen
                heard.events.append(
                    delivery.Event(
                        sent=told.sent, arrived=at, comments_sent=told.comments, comments_seen=heard.comments
                    )
                )
    return heard


def _large_body(front: Front) -> Finding:
    body = deliveryprobe.request_body(Plan(), stream=False, padding=LARGE)
    size = format_size(LARGE)
    try:
        with front.ask("POST", CHAT, body) as response:
            text, status = _text(response), response.status
    except OSError as error:
        return Finding("bodies", Verdict.FAIL, f"a request of {size} ends the connection: {error.strerror or error}",
                       "raise the limit on the way: nginx `client_max_body_size 0;`")  # fmt: skip
    if status == 200:
        return Finding("bodies", Verdict.OK, f"a request of {size} arrives")
    if _code(text) == "request_too_large":
        return Finding("bodies", Verdict.OK, f"a request of {size} is refused by the gateway itself (max_body)")
    return Finding("bodies", Verdict.FAIL, f"a request of {size} is answered with {status}, and not by the gateway",
                   "raise the limit on the way: nginx `client_max_body_size 0;`")  # fmt: skip


def _real_model(front: Front) -> Finding:
    """A stream of the first model that the key may use."""
    with front.ask("GET", "/v1/models") as response:
        text, status = _text(response), response.status
    try:
        model = str(json.loads(text)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        return Finding("model", Verdict.UNKNOWN, f"no list of models: {status}")
    question = {"model": model, "stream": True, "max_tokens": MODEL_TOKENS,
                "messages": [{"role": "user", "content": "Count from one to one hundred."}]}  # fmt: skip
    begun = clock.monotonic()
    arrived: list[float] = []
    whole, splitter = False, sse.EventSplitter()
    with front.ask("POST", CHAT, json.dumps(question).encode(), timeout=MODEL_LIMIT) as response:
        if response.status != 200:
            message = _text(response)[:200].decode(errors="replace")
            return Finding("model", Verdict.UNKNOWN, f"{model} is not asked: {response.status} {message}")
        for at, data in Reader(response).pieces():
            for event in splitter.feed(data):
                said = sse.data_of(event)
                whole = whole or said == b"[DONE]"
                if said not in (None, b"[DONE]"):
                    arrived.append(at - begun)
    return delivery.tokens(tuple(arrived), clock.monotonic() - begun, whole, model)


def _text(response: http.client.HTTPResponse) -> bytes:
    """A short body, decoded."""
    return b"".join(piece for _, piece in Reader(response).pieces())


def _code(body: bytes) -> str:
    """The code in the gateway's error; empty for anybody else's."""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, LookupError, TypeError):
        return ""
