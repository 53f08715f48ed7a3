"""A client's connection: requests one after the other, each with its body, and what their handlers must know of it.

Everything happens inside the call that brought the bytes: a request that is whole is handled before the loop turns,
without a task. What comes behind a running request, or while the client takes no answers, or is more than one
connection's share of a turn, waits; where that is too much, nothing more is read.

`handle` is called with each head. It answers, or first asks for the body with `collect`; in the end it calls
`answered`, once. A body that nobody asked for is read and thrown away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, cast

from appliance import clock
from appliance.errors import ApiError
from appliance.wire.chunked import ChunkDecoder, FramingError
from appliance.wire.openai import Shape
from appliance.wire.requesthead import BadRequest, RequestHead, RequestHeads, may_begin, skip_empty_lines

from .answer import Answer
from .bodies import keep
from .job import Job
from .outlet import Outlet
from .requestid import new_request_id
from .turn import Turn

FAREWELL = 1.0  # seconds in which one more request may come where a connection is to end that nobody was told of
LINGER = 2.0  # seconds in which a client that still sends may take notice of its answer
BURST = 32  # requests of a connection that are handled in one turn of the loop: the other connections have theirs too
HELD = 65536  # bytes behind a running request that are kept; with more, nothing is read until it is answered


class Crowd(Protocol):
    """All connections of a listener, as one of them needs it. The dictionaries say since when a connection is there."""

    idle: dict[ClientConnection, float]  # without a request
    heads: dict[ClientConnection, float]  # while it sends a request's head
    bodies: dict[ClientConnection, float]  # while it sends a body that is waited for: when the last bytes came
    reader: RequestHeads
    turn: Turn

    def handle(self, connection: ClientConnection, head: RequestHead) -> None:
        """A request's head came."""

    def is_crowded(self) -> ApiError | None:
        """Why a connection beyond the limit is still not served; None where there is room by now."""

    def made(self, connection: ClientConnection) -> None:
        """A connection came."""

    def lost(self, connection: ClientConnection) -> None:
        """It ended."""


class ClientConnection(asyncio.Protocol):
    """One connection; at most one request is handled at a time."""

    __slots__ = (
        "_advancing", "_answering", "_begun_at", "_crowd", "_decoder", "_ending", "_held", "_is_last", "_left",
        "_pieces", "_reading", "_resting", "_stopped", "_timer", "_wanted", "_whole", "is_surplus", "job", "outlet",
        "remote", "writing_paused",
    )  # fmt: skip

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self.outlet: Outlet | None = None  # while it is there
        self.remote = "unix"  # the client's address
        self.job: Job | None = None
        self.is_surplus = False  # one more than there may be, when it came
        self.writing_paused = False
        self._held = b""  # bytes that were not looked at
        self._answering = False  # a request is handled
        self._reading = False  # its body is not whole
        self._wanted = False  # and somebody waits for it
        self._whole = b""  # the body of the request that is being handed over, where it is here
        self._ending = False  # nothing more is taken
        self._is_last = False  # the next request is the last one
        self._advancing = False
        self._resting = False  # the others have their turn
        self._stopped = False  # nothing is read
        self._decoder: ChunkDecoder | None = None
        self._left = 0  # bytes of a body with a length still to come
        self._pieces: list[bytes | bytearray] = []  # of the body that is waited for
        self._begun_at = 0.0  # when the body began
        self._timer: asyncio.TimerHandle | None = None

    # --- the transport's calls ------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.outlet = Outlet(cast(asyncio.Transport, transport), self._crowd.turn)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.remote = str(peer[0])
        self._crowd.idle[self] = clock.monotonic()
        self._crowd.made(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        outlet, self.outlet = self.outlet, None
        if outlet is not None:
            outlet.lost()
        self._ending = True
        self._held, self._pieces = b"", []
        for places in (self._crowd.idle, self._crowd.heads, self._crowd.bodies):
            places.pop(self, None)
        self._crowd.lost(self)
        if self._timer is not None:
            self._timer.cancel()
        self._tell_left()

    def eof_received(self) -> None:
        """A client that sends no more is gone: the transport closes behind this call."""
        self._tell_left()
        if self.outlet is not None:
            self.outlet.flush()

    def _tell_left(self) -> None:
        job, self.job = self.job, None
        if job is not None:
            job.client_left()

    def pause_writing(self) -> None:
        self.writing_paused = True
        if self.job is not None:
            self.job.pause()

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self.job is not None:
            self.job.resume()
        elif self._held and not self._answering:
            self._go_on()
            self._advance()

    def data_received(self, data: bytes) -> None:
        self._crowd.idle.pop(self, None)
        if self._reading:
            self._read_body(data)
            if self._decoder is not None and len(data) >= HELD and not self._ending:  # perhaps a byte in each chunk
                self._rest()
                self._stop()
        elif not self._ending:
            self._held = self._held + data if self._held else data
        self._advance()

    # --- requests -------------------------------------------------------------------------------------------------
    def _advance(self) -> None:
        """Handle what is whole, one after the other, and say what is waited for."""
        if self._advancing:
            return
        self._advancing = True
        left = BURST
        try:
            while self._held and left and not (self._is_occupied or self._ending) and self._begin():
                left -= 1
        finally:
            self._advancing = False
        if self._ending:
            return
        if not self._held:
            if not (self._answering or self._reading):
                self._crowd.idle[self] = clock.monotonic()
            return
        if not left and not self._is_occupied:
            self._rest()
        if not self._is_occupied:
            self._crowd.heads.setdefault(self, clock.monotonic())
        elif len(self._held) > HELD:
            self._stop()

    def _rest(self) -> None:
        """Let the other connections have their turn."""
        if not self._resting:
            self._resting = True
            asyncio.get_running_loop().call_soon(self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._go_on()
        self._advance()

    @property
    def _is_occupied(self) -> bool:
        """Whether the next request has to wait: for those before it, their answers to be taken, or the others' turn."""
        return self._answering or self._reading or self.writing_paused or self._resting

    def _begin(self) -> bool:
        """Handle the next request; False where its head is not whole."""
        data = self._held
        if data[0] == 13:
            data = skip_empty_lines(data)
            # Empty lines alone begin a head all the same: their sender owes one.
            self._crowd.heads.setdefault(self, clock.monotonic())
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._held = data
            if data and not may_begin(data):
                self.refuse(ApiError("invalid_request", "this is not a well-formed HTTP request"))
            return False
        crowd = self._crowd
        crowd.heads.pop(self, None)
        try:
            head = crowd.reader.read(data[:end])
        except BadRequest as error:
            self.refuse(ApiError("invalid_request", str(error)))
            return False
        if self.is_surplus and (refusal := crowd.is_crowded()) is not None:
            self.refuse(refusal)
            return False
        if self._is_last:
            head = replace(head, keep_alive=False)
        end += 4
        length = head.length
        self._answering = True
        if length is None or end + length > len(data):
            self._handle_begun(head, data[end:])
            return True
        self._whole, self._held = data[end : end + length], data[end + length :]
        crowd.handle(self, head)
        self._whole = b""
        return True

    def _handle_begun(self, head: RequestHead, data: bytes) -> None:
        """Give a request to its handler whose body is not whole; `data` is what came of it."""
        self._reading = True
        self._held, self._left = b"", head.length or 0
        self._decoder = ChunkDecoder() if head.length is None else None
        try:
            begun = self._split(data)
        except FramingError:
            self.refuse(ApiError("invalid_request", "the body cannot be read"))
            return
        self._crowd.handle(self, head)
        if self.outlet is None:
            return
        if self._wanted:
            self._begun_at = self._crowd.bodies[self] = clock.monotonic()
        self._use(*begun)
        if self._wanted and head.expects_continue:
            self.outlet.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def collect(self, job: Job) -> bytes | None:
        """The body, where it is whole. Else the handler waits: each part of it is told to `job`, then the whole."""
        self.job = job
        if self._reading:
            self._wanted = True
            return None
        whole, self._whole = self._whole, b""
        return whole

    def answered(self, *, keep_alive: bool) -> None:
        """The request's answer is on its way to the client, whole or broken off."""
        self.job, self._answering = None, False
        if self._wanted:
            self._wanted, self._pieces = False, []
            self._crowd.bodies.pop(self, None)
        if self._ending or self.outlet is None:
            return
        if not keep_alive:
            self._end()
        elif self._reading:
            self._wait(LINGER, self.close)
        elif self._held or self._stopped:
            self._go_on()
            self._advance()
        elif not self._advancing:
            self._crowd.idle[self] = clock.monotonic()

    def end_soon(self) -> None:
        """One more request is answered, and told that the connection ends; where none comes, it ends in a moment.

        For an answer that said nothing of an end when it began: whoever has it whole may have sent the next request.
        """
        self._is_last = True
        self._wait(FAREWELL, self._end_idle)

    def refuse(self, error: ApiError) -> None:
        """Answer with an error what is no request, and end."""
        if self.outlet is not None and not self._ending:
            Answer(
                self.outlet, shape=Shape.OPENAI, request_id=new_request_id(), http11=True, keep_alive=False,
            ).refuse(error)  # fmt: skip
            self._reading = True  # whatever else is sent
            self._end()

    # --- bodies ---------------------------------------------------------------------------------------------------
    def _read_body(self, data: bytes) -> None:
        if self._ending:
            return
        try:
            self._use(*self._split(data))
        except FramingError:
            self.fail_body(ApiError("invalid_request", "the body cannot be read"))

    def _split(self, data: bytes) -> tuple[list[bytes], bytes, bool]:
        """Pieces of the body, what comes behind it, and whether it is whole. Raises FramingError."""
        decoder = self._decoder
        if decoder is not None:
            pieces = decoder.feed(data)
            return pieces, decoder.rest, decoder.done
        rest = data[self._left :]
        data = data[: self._left]
        self._left -= len(data)
        return [data] if data else [], rest, not self._left

    def _use(self, pieces: list[bytes], rest: bytes, done: bool) -> None:
        if self._ending or (self._wanted and not self._take(pieces)) or not done:
            return
        self._reading, self._decoder, self._held = False, None, rest
        if self._wanted:
            whole, self._pieces = b"".join(self._pieces), []
            self._give(whole)
        elif self._timer is not None:  # its answer has ended before
            self._timer.cancel()
            self._timer = None

    def _take(self, pieces: list[bytes]) -> bool:
        """Keep pieces of a body that is waited for; False where it came to an end."""
        self._crowd.bodies[self] = clock.monotonic()
        job = self.job
        assert job is not None
        try:
            job.received(sum(map(len, pieces)))
        except ApiError as error:
            self.fail_body(error)
            return False
        keep(self._pieces, pieces)
        return True

    def _give(self, body: bytes) -> None:
        job = self.job
        assert job is not None
        self._wanted = False
        self._crowd.bodies.pop(self, None)
        job.body(body)

    def end_late_body(self, now: float, silence: float, longest: float) -> None:
        """End a body that is waited for and comes too slowly."""
        if now - self._crowd.bodies[self] > silence or now - self._begun_at > longest:
            self.fail_body(ApiError("invalid_request", "the body did not arrive in time"))

    def fail_body(self, error: ApiError) -> None:
        """What is left of the body would be read as the next request: no more is taken."""
        job, self._wanted = self.job, False
        self._pieces = []
        self._crowd.bodies.pop(self, None)
        self._reading = True
        if job is not None:
            job.body_failed(error)
        else:  # it was answered before its body came
            self._end()

    # --- the end --------------------------------------------------------------------------------------------------
    def _end(self) -> None:
        """Take no more, and close. A client that may still send hears the end first: what it sends to a closed
        connection would take the answer from it."""
        sends = self._reading or bool(self._held)
        self._ending, self._held = True, b""
        outlet = self.outlet
        if outlet is None or outlet.transport.is_closing():
            return
        if not sends:
            outlet.close()
            return
        outlet.end()
        self._go_on()
        self._wait(LINGER, self.close)

    def _stop(self) -> None:
        if not self._stopped and self.outlet is not None:
            self._stopped = True
            self.outlet.transport.pause_reading()

    def _go_on(self) -> None:
        if self._stopped and self.outlet is not None and not self.outlet.transport.is_closing():
            self._stopped = False
            self.outlet.transport.resume_reading()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, then)

    def _end_idle(self) -> None:
        if not (self.is_busy or self._held):
            self.close()

    def close(self) -> None:
        """End the connection when what was written is sent."""
        self._ending = True
        if self.outlet is not None:
            self.outlet.close()

    @property
    def is_busy(self) -> bool:
        """Whether a request is handled or waits."""
        return self._answering or self._reading
