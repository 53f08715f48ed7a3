"""The client's side of one call: the response head, the bytes, and how an answer ends or breaks.

A comment or a byte of the answer commits the status; after that an error can only be an event.
"""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from appliance import clock
from appliance.errors import ApiError
from appliance.policy.retry import hint
from appliance.wire import apierror, headers, sse
from appliance.wire.openai import Shape

from .outlet import Outlet

STREAM = "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
REASONS = {int(status): status.phrase for status in HTTPStatus}


@lru_cache(maxsize=2)
def date_of(epoch: int) -> str:
    """A Date field's value; the same for all answers of a second."""
    return formatdate(epoch, usegmt=True)


class Answer:
    """One response. `stream` says that the client asked for events, so comments may fill silence."""

    __slots__ = (
        "bodyless",
        "broken",
        "chunked",
        "committed",
        "ended",
        "extra",
        "keep_alive",
        "outlet",
        "pending",
        "request_id",
        "shape",
        "status",
        "stream",
    )

    def __init__(
        self,
        outlet: Outlet,
        *,
        shape: Shape,
        request_id: str,
        http11: bool,
        keep_alive: bool,
        extra: str = "",
    ) -> None:
        self.outlet = outlet
        self.shape = shape
        self.request_id = request_id
        self.chunked = http11  # HTTP/1.0 knows no chunks: there the end of the connection ends the answer
        self.keep_alive = keep_alive and http11
        self.extra = extra  # fields for every kind of answer, as lines
        self.stream = False
        self.committed = False
        self.pending = b""  # a head that waits for the first bytes behind it
        self.ended = False
        self.bodyless = False  # a HEAD request
        self.broken = False  # it ended with an error event
        self.status = 0

    def begin_stream(self, fields: str = "") -> None:
        """Write a stream's head; `fields` are lines of the engine's and ours that go on."""
        if not self.committed:
            self._head(200, fields + STREAM, None)

    def begin_body(self, status: int, fields: str, length: int | None) -> None:
        """Write the head of an answer that is no stream; without a length it is chunked."""
        self._head(status, fields, length)
        if length is not None:
            self.chunked = False

    def _head(self, status: int, fields: str, length: int | None) -> None:
        self.committed, self.status = True, status
        framing = ""
        if length is not None:
            if status != 204:  # it has no body by definition, and must not say how long it is
                framing = f"Content-Length: {length}\r\n"
        elif self.chunked:
            framing = "Transfer-Encoding: chunked\r\n"
        else:
            self.keep_alive = False
        if not self.keep_alive:
            framing += "Connection: close\r\n"
        self.pending = (
            f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}\r\n{fields}{framing}X-Request-Id: {self.request_id}\r\n"
            f"Date: {date_of(int(clock.wall()))}\r\n{self.extra}\r\n"
        ).encode("latin-1", "replace")

    def frame(self, payload: bytes) -> bytes:
        """A piece of the body, framed as the head said."""
        return sse.chunk(payload) if self.chunked else payload

    def send(self, payload: bytes) -> None:
        """Write a piece of the body."""
        self.write(self.frame(payload))

    def write(self, data: bytes) -> None:
        """Write framed bytes, a head that waits before them."""
        if self.pending:
            data, self.pending = self.pending + data, b""
        self.outlet.write(data)

    def comment(self, fields: str, text: bytes = sse.COMMENT) -> None:
        """Fill a silence; the first comment commits the stream."""
        if not self.committed:
            self.begin_stream(fields)
        self.send(text)

    def end(self, last: bytes = b"") -> None:
        """The answer is whole; `last` are framed bytes that go before its end."""
        last = self.pending + last + b"0\r\n\r\n" if self.chunked else self.pending + last
        self.pending = b""
        if last:
            self.outlet.write_late(last)
        self.ended = True

    def break_off(self, event: bytes) -> None:
        """A committed stream ends with an error event, no `[DONE]`, and the connection soon after it."""
        self.broken = True
        self.end(self.frame(event))

    def fail(self, error: ApiError, sequence: int = 0) -> None:
        """Tell the client of an error in the way that is still open."""
        if self.ended:
            return
        if not self.committed or self.pending:  # a head that only waits can still be another one
            self.pending = b""
            self.refuse(error)
        elif self.stream:
            self.break_off(apierror.error_event(error, self.shape, sequence))
        else:
            self.cut()

    def refuse(self, error: ApiError, fields: Iterable[tuple[str, str]] | None = None) -> None:
        """An error with its own status and body."""
        own = [("Content-Type", "application/json"), *(fields or [])]
        told = hint(error.status, error.code, error.retry_after, self.request_id, final=error.final)
        if told.seconds is not None:
            own += [("Retry-After", str(told.seconds)), ("Retry-After-Ms", str(told.milliseconds))]
        if told.never:
            own.append(("X-Should-Retry", "false"))
        if error.status == 401:
            own.append(("WWW-Authenticate", "Bearer"))
        self.reply(error.status, apierror.error_body(error, self.shape), own)

    def reply(self, status: int, body: bytes, fields: Iterable[tuple[str, str]]) -> None:
        """A whole answer at once."""
        self.begin_body(status, headers.render_fields(fields), len(body))
        self.end(b"" if self.bodyless else body)

    def cut(self) -> None:
        """A body that cannot be finished is cut, so that it cannot look whole."""
        self.keep_alive = False
        self.ended = True
        self.outlet.cut()

    @property
    def keeps_connection(self) -> bool:
        """Whether another request may follow on the connection."""
        return self.keep_alive and self.ended
