"""One client of a load: a connection kept alive, one request at a time, its answer timed as its bytes arrive.

A protocol on the transport, without coroutine or JSON for a token: what a token costs here is what the load cannot
measure below. Every failure ends in a `Request` with its kind; nothing is tried twice but a kept connection that was
closed before it took the request.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import dataclass, field
from typing import cast

from appliance import clock
from appliance.policy.loadfigures import Request
from appliance.wire import sse
from appliance.wire.answerstream import AnswerReader, named_error
from appliance.wire.chunked import ChunkDecoder, FramingError
from appliance.wire.headers import HEAD_LIMIT, BadHead, ResponseHead, parse_head

from .frontclient import Place

CONNECT_LIMIT = 15.0
BODY_LIMIT = 1 << 20  # of an answer that is no stream
BROKEN, TIMEOUT, EMPTY, NO_HTTP, STALE = "broken off", "timeout", "no token", "no HTTP", "closed without an answer"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go, and with what. `here`: it is this machine's gateway."""

    place: Place
    key: str
    path: str
    tls: ssl.SSLContext | None
    timeout: float
    here: bool

    def head(self, length: int, method: str = "POST", path: str = "") -> bytes:
        """A request head."""
        host = f"[{self.place.host}]" if ":" in self.place.host else self.place.host
        lines = [f"{method} {self.place.prefix}{path or self.path} HTTP/1.1", f"Host: {host}:{self.place.port}"]
        lines += ["User-Agent: llm-appliance-bench", "Accept-Encoding: identity"]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        if method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


@dataclass(slots=True)
class Answer:
    """What came of one request; `body` is that of an answer that is no stream."""

    sent: float
    reader: AnswerReader = field(default_factory=AnswerReader)
    head: ResponseHead | None = None
    body: bytearray = field(default_factory=bytearray)
    failure: str = ""
    whole: bool = False

    @property
    def message(self) -> str:
        """What the other side said about a failure."""
        return named_error(bytes(self.body))[1] if self.body else self.reader.message

    def as_request(self) -> Request:
        """The answer as a figure."""
        reader = self.reader
        failure = self.failure or reader.failure or self._refusal()
        if not failure and not reader.first:
            failure = EMPTY
        elif not failure and not (self.whole and reader.done):
            failure = BROKEN
        if failure:
            return Request(failure=failure)
        used = reader.usage
        return Request(
            ttft=reader.first - self.sent,
            e2el=reader.last - self.sent,
            gaps=reader.gaps,
            input_tokens=(used.prompt_tokens or 0) if used else 0,
            output_tokens=(used.completion_tokens if used else 0) or reader.events,
            cached_tokens=(used.cached_tokens or 0) if used else 0,
            estimated=used is None or not used.completion_tokens,
        )

    def _refusal(self) -> str:
        if self.head is None or (self.head.status == 200 and self.head.is_stream):
            return ""
        if self.head.status == 200:
            return "no stream"
        return f"{self.head.status} {named_error(bytes(self.body))[0]}".strip()


class Client(asyncio.Protocol):
    """A client of an endpoint. `close` aborts what is under way: the engine sees it and stops its work."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None
        self._held = b""  # the beginning of a response head
        self._chunks: ChunkDecoder | None = None
        self._left: int | None = None  # bytes of a body whose length is known
        self._answer: Answer | None = None
        self._ended: asyncio.Future[None] | None = None
        self.until_first = False  # whether an answer is cut after its first token

    async def ask(self, body: bytes, method: str = "POST", path: str = "") -> Answer:
        """Send a request and read its answer to the end, within the endpoint's time."""
        request = self._endpoint.head(len(body), method, path) + body
        kept = self._transport is not None
        answer = await self._once(request)
        if kept and answer.failure == STALE:
            answer = await self._once(request)
        return answer

    async def _once(self, request: bytes) -> Answer:
        answer = Answer(clock.monotonic())
        try:
            if self._transport is None:
                await asyncio.wait_for(self._connect(), min(CONNECT_LIMIT, self._endpoint.timeout))
            assert self._transport is not None
            self._answer, self._ended = answer, asyncio.get_running_loop().create_future()
            self._held, self._chunks, self._left = b"", None, None
            self._transport.write(request)
            await asyncio.wait_for(self._ended, self._endpoint.timeout)
        except (asyncio.TimeoutError, TimeoutError):
            answer.failure = TIMEOUT
        except ssl.SSLCertVerificationError as error:
            answer.failure = f"the certificate does not hold: {error.verify_message}"
        except OSError as error:
            answer.failure = _words(error)
        finally:
            self._answer = self._ended = None
            if answer.head is None or not (answer.whole and answer.head.keep_alive):
                self.close()
        return answer

    async def _connect(self) -> None:
        place = self._endpoint.place
        await asyncio.get_running_loop().create_connection(lambda: self, place.host, place.port, ssl=self._endpoint.tls)

    def close(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # --- the transport's side ---------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now = clock.monotonic()
        answer = self._answer
        if answer is None:  # nobody asked
            self.close()
            return
        try:
            if answer.head is None:
                data = self._head(answer, data)
            if answer.head is not None:
                self._body(answer, data, now)
        except (BadHead, FramingError, sse.EventTooLong) as error:
            self._end(answer, NO_HTTP if isinstance(error, BadHead) else BROKEN)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        answer = self._answer
        if answer is None:
            return
        if answer.head is not None and self._chunks is None and self._left is None:  # the end of such a body
            answer.whole = True
            self._end(answer, "")
        else:
            self._end(answer, BROKEN if answer.head is not None or self._held else STALE)

    def _head(self, answer: Answer, data: bytes) -> bytes:
        """The bytes behind the head; while it is not whole they are held."""
        data = self._held + data
        block, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            if len(data) > HEAD_LIMIT:
                raise BadHead("the head is too long")
            self._held = data
            return b""
        head = parse_head(block)
        if head.status < 200:
            self._held = b""
            return self._head(answer, rest) if rest else b""
        answer.head, self._held = head, block[:1]
        self._chunks = ChunkDecoder() if head.chunked else None
        self._left = head.length
        return rest

    def _body(self, answer: Answer, data: bytes, now: float) -> None:
        assert answer.head is not None
        if self._chunks is not None:
            pieces, ended = self._chunks.feed(data), self._chunks.done
        else:
            if self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
            pieces, ended = [data] if data else [], self._left == 0
        if answer.head.is_stream:
            for piece in pieces:
                answer.reader.feed(piece, now)
            if self.until_first and answer.reader.first:
                self._end(answer, "")
        else:
            answer.body += b"".join(pieces)
            if len(answer.body) > BODY_LIMIT:
                raise FramingError("the answer is too long")
        if ended:
            answer.whole = True
            self._end(answer, "")

    def _end(self, answer: Answer, failure: str) -> None:
        answer.failure = answer.failure or failure
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def _words(error: OSError) -> str:
    """Why there is no connection, in the same words whichever loop tells it."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or type(error).__name__).lower()
