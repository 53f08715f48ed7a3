"""One attempt of one call at one engine: bytes from the engine's transport to the client's.

A token costs a look at its chunk's frame and its last bytes, a count, a clock reading and a write; no JSON, no
coroutine, no log. Bytes that are anything but whole chunks of whole token events go through the decoder and the event
splitter; only whole events are passed on there, so a comment or an error event never lands inside one.

Law: what the client gets is what the engine sent, but for the usage event that only the gateway asked for and `[DONE]`
after an error. A stream that ends without its `[DONE]` (or its API's last event) is broken, and said to be.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance import clock
from appliance.errors import ApiError
from appliance.wire import sse
from appliance.wire.apierror import engine_error
from appliance.wire.chunked import ChunkDecoder, FramingError, whole_chunk
from appliance.wire.headers import HEAD_LIMIT, BadHead, ResponseHead, parse_head
from appliance.wire.openai import Call, Pieces, Route
from appliance.wire.tokenchunks import OPENINGS, SHORT, plain
from appliance.wire.usage import find_usage

from .answer import Answer
from .finish import COMPLETE, LOST, End, Finish
from .upstream import EngineConnection

KEPT = 65536  # bytes at an answer's end in which its usage is looked for
HEAD_OF_BODY = 4096  # and at its beginning: some bodies tell it there
USAGE = 2048  # and that it takes, where it stands in the middle
END = b"0\r\n\r\n"  # the last chunk, without trailers
INTERIM = 8  # heads with a status below 200 before an answer


class Relay:
    """The pump of one attempt. `ended` is called exactly once; after that neither side is touched."""

    __slots__ = (
        "answer", "begun", "body_at", "call", "clean", "connection", "decoder", "done", "done_seen",
        "ended", "events", "excused_at", "failed", "fields", "first_at", "head", "heard_before", "hide_usage",
        "interim", "kept", "last_at", "left", "paused_at", "profile", "progress_at", "route", "sent_at", "splitter",
        "start", "status", "suffixes", "usage_event", "write",
    )  # fmt: skip

    def __init__(
        self,
        answer: Answer,
        call: Call,
        route: Route,
        ended: Callable[[Finish], None],
        *,
        hide_usage: bool,
        fields: str,
    ) -> None:
        self.answer, self.call, self.route, self.ended = answer, call, route, ended
        self.hide_usage, self.fields = hide_usage, fields
        self.connection: EngineConnection | None = None
        self.start = b""  # bytes of a head that is not whole
        self.head: ResponseHead | None = None
        self.status = 0
        self.interim = 0  # heads before the answer's
        self.decoder: ChunkDecoder | None = None
        self.splitter = sse.EventSplitter()
        self.left = 0  # bytes of a body with a length still to come
        self.kept = bytearray()
        self.clean = False  # at a chunk's and an event's beginning, client and engine both framed in chunks
        self.begun = False  # a byte of the answer went to the client
        self.done_seen = self.failed = self.done = False
        self.events = 0
        self.usage_event = b""
        self.profile = sse.PROFILES[route.shape]
        self.suffixes = () if self.profile.prefixes else self.profile.suffixes  # of chunks that are surely token events
        self.write: Callable[[bytes], None] | None = None  # to the client, when its head is out
        self.sent_at = self.last_at = self.progress_at = self.excused_at = clock.monotonic()
        self.heard_before: float | None = None  # `heard_at` when `progress_at` was last set without a byte
        self.first_at: float | None = None
        self.body_at: float | None = None
        self.paused_at: float | None = None

    @property
    def heard_at(self) -> float | None:
        """When the engine last sent a byte of the answer, comments left out; None before the first one."""
        return self.progress_at if self.progress_at > self.excused_at else self.heard_before

    # --- life -----------------------------------------------------------------------------------------------------
    def send(self, connection: EngineConnection, head: bytes, body: Pieces) -> None:
        """Hand the request to the engine."""
        self.connection = connection
        connection.send(self, self.read_head, (head, *body))

    def finish(self, finish: Finish, *, keep: bool = False) -> None:
        """Let go of the engine and report; a second call does nothing."""
        if self.done:
            return
        self.done = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.release(keep=keep)
        self.ended(finish)

    def engine_lost(self, connection: EngineConnection) -> None:
        """The engine's connection ended: for a body without framing its close is the end, everything else a loss."""
        self.connection, head = None, self.head
        if head is not None and not (self.decoder or head.length is not None or connection.broke or self.done):
            self._body_end()
        elif self.body_at is None:
            self.finish(LOST)
        else:
            self._break(ApiError("engine_died", "the engine stopped in the middle of this answer"))

    def pause(self) -> None:
        """The client reads too slowly: stop reading from the engine."""
        self.paused_at = clock.monotonic()
        if self.connection is not None and self.connection.transport is not None:
            self.connection.transport.pause_reading()

    def resume(self) -> None:
        """The client has caught up."""
        self.paused_at = None
        # A pause of the client's making is not the engine's silence, and its end is no byte.
        self.heard_before = self.heard_at
        self.last_at = self.progress_at = self.excused_at = clock.monotonic()
        if self.connection is not None and self.connection.transport is not None:
            self.connection.transport.resume_reading()

    def fail(self, error: ApiError) -> None:
        """Stop the attempt and tell the client."""
        if self.answer.committed:
            self._break(error)
        else:
            self.finish(Finish(End.REFUSED, error))

    # --- the head -------------------------------------------------------------------------------------------------
    def read_head(self, data: bytes) -> None:
        """Bytes before the body."""
        self.last_at = clock.monotonic()
        data, self.start = self.start + data, b""
        while True:
            end = data.find(b"\r\n\r\n")
            if (end if end >= 0 else len(data)) > HEAD_LIMIT:
                self.fail(ApiError("engine_error", "the engine's response head is too long"))
                return
            if end < 0:
                self.start = data
                if not data.startswith(b"HTTP/1."[: len(data)]):
                    self.fail(ApiError("engine_error", "the engine does not answer in HTTP/1"))
                return
            try:
                head = parse_head(data[:end])
            except BadHead as error:
                self.fail(ApiError("engine_error", str(error)))
                return
            data = data[end + 4 :]
            if head.status >= 200:
                self._use_head(head, data)
                return
            self.interim += 1  # 100 Continue and its like
            if self.interim > INTERIM:
                self.fail(ApiError("engine_error", "the engine keeps announcing an answer"))
                return

    def _use_head(self, head: ResponseHead, rest: bytes) -> None:
        self.head, self.status = head, head.status
        self.decoder = ChunkDecoder() if head.chunked else None
        self.left = head.length or 0
        connection = self.connection
        assert connection is not None
        if head.is_stream and head.status == 200 and self.call.stream:
            self.clean = head.chunked and self.answer.chunked
            connection.feed = self.read_stream
        else:
            connection.feed = self.read_body
            if not self.answer.committed:
                self.body_at = self.first_at = self.progress_at = self.last_at
                self.begun = True
                self.answer.stream = False
                self.answer.begin_body(head.status, head.onward + self.fields, head.length)
        if head.length == 0:
            self.left -= len(rest)  # bytes behind an answer without a body: what they belong to, nobody knows
            self._body_end()
        elif rest:
            connection.feed(rest)

    # --- a stream ---------------------------------------------------------------------------------------------------
    def read_stream(self, data: bytes) -> None:
        """Bytes of a stream. Whole chunks of whole token events are passed on as they came; the rest is looked at."""
        write, size = self.write, len(data)
        if (  # what most reads are
            self.clean
            and write is not None
            and size < SHORT
            and data.startswith(OPENINGS[size])
            and data.endswith(self.suffixes)
        ):
            self.events += 1
            self.last_at = self.progress_at = clock.monotonic()
            write(data)
            return
        now = self.last_at = clock.monotonic()
        ready = b""
        if self.clean:
            position, events, done = plain(data, self.profile)
            if position:
                self.events += events
                self.done_seen = self.done_seen or done
                self.progress_at = now
                if position == size and write is not None:
                    write(data)
                    return
                ready, data = data[:position], data[position:]
                if not data:
                    self._pass([], ready)
                    return
            if data == END and self.done_seen:
                self._stream_end([], ready)
                return
        self._look(data, ready)

    def _begin(self, now: float) -> None:
        """The first event: the head goes out before it."""
        self.begun = True
        self.first_at = self.body_at = now
        head = self.head
        assert head is not None
        self.answer.begin_stream(head.onward_stream + self.fields)
        self.write = self.answer.outlet.transport.write  # for each token: it waits for nothing, and nothing waits

    def _look(self, data: bytes, ready: bytes) -> None:
        """Bytes that are not plainly token events: decode, split, judge each event. `ready` goes out before them."""
        if self.clean:
            ready, data = self._judge_whole(data, ready)
            if self.done:
                return
            if data == END and self.done_seen:
                self._stream_end([], ready)
                return
        decoder = self.decoder
        out: list[bytes] = []
        try:
            pieces = decoder.feed(data) if decoder is not None else [self._within(data)]
            for event in (event for piece in pieces for event in self.splitter.feed(piece)):
                if self._judge(event):
                    out.append(event)
                if self.failed:  # nothing behind an error is passed on, `[DONE]` least of all
                    break
        except (FramingError, sse.EventTooLong) as error:
            self._pass(out, ready)
            self.fail(ApiError("engine_error", f"the engine's stream cannot be read: {error}"))
            return
        if self.failed:
            self._failed_event(out, ready)
            return
        if decoder is None:
            self.left -= len(data)
        if decoder.done if decoder is not None else self.head is not None and self.head.length and self.left <= 0:
            self._stream_end(out, ready)
            return
        self._pass(out, ready)
        # HTTP/1.0 clients never get chunks, so nothing is passed to them as it came.
        self.clean = decoder is not None and self.answer.chunked and decoder.at_boundary and not self.splitter.held

    def _judge_whole(self, data: bytes, ready: bytes) -> tuple[bytes, bytes]:
        """Judge whole chunks of a whole event each, which are passed on as they came: what goes out, and the rest."""
        passed, position = [ready], 0
        while True:
            start, end = whole_chunk(data, position)
            event = data[start : end - 2]
            if not end or not sse.is_one(event):
                return b"".join(passed), data[position:]
            if self._judge(event):
                if self.failed:
                    self._failed_event([event], b"".join(passed))
                    return b"", b""
                passed.append(data[position:end])
            position = end

    def _within(self, data: bytes) -> bytes:
        """What of these bytes belongs to a body that is not chunked."""
        return data if self.head is None or self.head.length is None else data[: max(self.left, 0)]

    def _judge(self, event: bytes) -> bool:
        """Note what an event is; whether it is passed on."""
        kind = sse.kind(event, self.route.shape)
        if kind is sse.Kind.COMMENT:
            return self.begun  # before the first event the gateway's own comments say the same
        self.progress_at = self.last_at
        if kind is sse.Kind.DELTA:
            self.events += 1
        elif kind is sse.Kind.DONE:
            self.done_seen = True
        elif kind is sse.Kind.ERROR:
            self.failed = True
        if b'"usage"' in event:
            self.usage_event = event
        return not (kind is sse.Kind.USAGE and self.hide_usage)

    def _pass(self, events: list[bytes], ready: bytes = b"", *, last: bool = False) -> None:
        """Write what was passed as it came and the events behind it, in one go, with the answer's end where `last`."""
        if not self.begun and (events or ready or last):
            self._begin(self.last_at)
        framed = ready + self.answer.frame(b"".join(events)) if events else ready
        if last:
            self.answer.end(framed)
        elif framed:
            self.answer.write(framed)

    def _failed_event(self, out: list[bytes], ready: bytes) -> None:
        """The engine's own error event: with its status while that is still open, else passed on as the last one."""
        event = out[-1]
        if not self.answer.committed and len(out) == 1 and not ready:
            self.body_at = self.last_at
            data = sse.data_of(event) or b""
            self.finish(Finish(End.REFUSED, engine_error(500, data)))
            return
        self.answer.broken = True
        self._pass(out, ready, last=True)
        self.finish(Finish(End.BROKEN, ApiError("engine_error", "the engine reported an error in the stream")))

    def _stream_end(self, out: list[bytes], ready: bytes = b"") -> None:
        if not self.done_seen:
            self._pass(out, ready)
            self._break(ApiError("engine_died", "the engine ended this answer before it was whole"))
            return
        self._pass(out, ready, last=True)
        self.finish(COMPLETE, keep=self._reusable())

    # --- a body -----------------------------------------------------------------------------------------------------
    def read_body(self, data: bytes) -> None:
        """Bytes of an answer that is no stream."""
        self.last_at = self.progress_at = clock.monotonic()
        if self.body_at is None:
            self.body_at = self.last_at
        decoder = self.decoder
        if decoder is not None:
            try:
                for piece in decoder.feed(data):
                    self._body_piece(piece)
            except FramingError as error:
                self.fail(ApiError("engine_error", f"the engine's answer cannot be read: {error}"))
                return
            if decoder.done:
                self._body_end()
            return
        if self.head is None or self.head.length is None:
            self._body_piece(data)
            return
        left = self.left
        self.left -= len(data)
        if self.left > 0:
            self._body_piece(data)
        else:
            self._body_end(data[:left] if self.left < 0 else data)

    def _body_piece(self, piece: bytes) -> None:
        self._keep(piece)
        if self.begun:
            self.answer.send(piece)

    def _keep(self, piece: bytes) -> None:
        kept = self.kept
        kept += piece
        if len(kept) > KEPT + HEAD_OF_BODY:
            # A client may ask for much behind the usage: its prompt's tokens, for one.
            begin = HEAD_OF_BODY if self.usage_event else HEAD_OF_BODY - USAGE
            at = kept.rfind(b'"usage"', begin, len(kept) - KEPT + 8)
            if at >= 0 and find_usage(told := kept[at - 1 : at + USAGE]) is not None:
                self.usage_event = bytes(told)
            del kept[HEAD_OF_BODY:-KEPT]

    def _body_end(self, last: bytes = b"") -> None:
        """The body is whole; its last piece, where there still is one, goes out with its end."""
        head = self.head
        assert head is not None
        self._keep(last)
        if head.is_stream and head.status == 200 and self.call.stream:
            self._stream_end([])
            return
        if self.begun:
            self.answer.end(self.answer.frame(last) if last else b"")
            self.finish(COMPLETE, keep=self._reusable())
            return
        # A comment has committed the stream; the engine's refusal can only be its last event.
        self.finish(Finish(End.REFUSED, engine_error(head.status, bytes(self.kept))), keep=self._reusable())

    def _reusable(self) -> bool:
        decoder, head = self.decoder, self.head
        return head is not None and head.keep_alive and self.left == 0 and not (decoder is not None and decoder.rest)

    def _break(self, error: ApiError) -> None:
        if self.done_seen:  # all that its API promises went on; only the framing's end is missing
            self._pass([], last=True)
            self.finish(COMPLETE)
            return
        self.answer.fail(error, self.events)
        self.finish(Finish(End.BROKEN, error))
