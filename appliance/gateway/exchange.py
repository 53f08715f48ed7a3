"""One call from its parsed envelope to its end: admission, attempts, and the watch over its silences.

The ticker calls `tick` several times a second; everything that depends on time is decided there, so that a token costs
no timer. A lease is given back in one `finally`, whatever happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil

from appliance import clock
from appliance.config.model import Gateway
from appliance.errors import ApiError
from appliance.policy.admission import Lease, Outcome, Refuse, Ticket
from appliance.policy.retry import Loss, Next, after_loss
from appliance.quantity import UNKNOWN
from appliance.wire import sse
from appliance.wire.openai import Call, Route, with_usage

from .answer import Answer
from .engines import Engines, Group, Replica
from .relay import End, Finish, Relay
from .upstream import ConnectFailed, EngineConnection, Target


class Exchange:
    """The state of one call; what the client's connection and the ticker talk to."""

    def __init__(
        self,
        answer: Answer,
        call: Call,
        route: Route,
        group: Group,
        engines: Engines,
        settings: Callable[[], Gateway],
        *,
        ticket: Ticket,
        fields: list[tuple[str, str]],
        body: bytes,
        is_paused: Callable[[], bool],
        body_sent: Callable[[], None] = lambda: None,
        longest: float | None = None,
    ) -> None:
        self.answer, self.call, self.route = answer, call, route
        self.group, self.engines, self.settings = group, engines, settings
        self.ticket, self.fields = ticket, fields
        self.body_sent = body_sent  # called when the body is needed no more
        self.longest = longest  # seconds from admission to the end that the key may take
        self.is_paused = is_paused  # whether the client's buffer is full already
        self.hide_usage = route.meters and call.stream and not call.include_usage
        self.body: tuple[bytes, ...] = with_usage(body, call) if self.hide_usage else (body,)
        self.relay: Relay | None = None
        self.replica: Replica | None = None
        self.admitted_at: float | None = None
        self.position: int | None = None  # in the queue, when the call came into it
        self.quiet_since = ticket.arrived
        self.commented = False
        self.left = False
        self.resent = 0
        self.first_told = not call.stream  # only a stream's first byte is its first token
        self.ending: ApiError | None = None  # set once: what `stop` asked for

    # --- the client's connection ----------------------------------------------------------------------------------
    def client_left(self) -> None:
        self.left = True
        if self.relay is not None:
            self.relay.client_left()
        waiter = self.group.waiters.get(self.ticket.number)
        if waiter is not None:
            waiter.cancel()

    def pause(self) -> None:
        if self.relay is not None:
            self.relay.pause()

    def resume(self) -> None:
        if self.relay is not None:
            self.relay.resume()

    # --- the call -------------------------------------------------------------------------------------------------
    async def run(self) -> Finish:
        """Carry the call to its end and tell the client. Cancelling it frees everything at once."""
        lease: Lease | None = None
        finish = Finish(End.LEFT)
        try:
            lease = await self._admit()
            self.admitted_at = clock.monotonic()
            finish, lease = await self._attempts(lease)
        except ApiError as error:
            finish = Finish(End.REFUSED, error.settled())
        finally:
            self.body = ()
            if self.relay is not None:
                self.relay.finish(End.LEFT)
            now = clock.monotonic()
            self._tell_first_token(now)
            if finish.end is End.COMPLETE and not self.call.stream and self.replica is not None:
                self.replica.adaptive.ended(now)
            if self.relay is not None and self.replica is not None and (heard := self.relay.heard_at) is not None:
                self.replica.last_byte_at = max(self.replica.last_byte_at or 0.0, heard)
            if lease is not None:
                self.group.release(lease, outcome_of(finish))
        if finish.end is End.REFUSED and finish.error is not None:
            self.answer.fail(finish.error)
        return finish

    async def _admit(self) -> Lease:
        group = self.group
        now = clock.monotonic()
        if not any(replica.up for replica in group.replicas.values()):
            raise self.engines.unavailable(group, self.call.model, clock.wall())
        decision = group.admission.offer(self.ticket, now)
        if isinstance(decision, Lease):
            return decision
        if isinstance(decision, Refuse):
            raise ApiError(decision.code, decision.reason, retry_after=decision.retry_after)
        self.position = decision.position
        if decision.displaced is not None:
            group.turn_away(*decision.displaced)
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        group.waiters[self.ticket.number] = waiter
        try:
            return await waiter
        except BaseException:
            # Cancelled in the moment between being let in and hearing of it: the lease is out and must come back.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                group.release(waiter.result(), Outcome.IGNORED)
                group.admission.correct(self.ticket, 0)
            raise
        finally:
            group.waiters.pop(self.ticket.number, None)
            group.admission.leave(self.ticket)

    async def _attempts(self, lease: Lease) -> tuple[Finish, Lease]:
        fresh = False
        while True:
            replica = self.group.replicas.get(lease.replica)
            if replica is None:
                return Finish(End.REFUSED, self._gone()), lease
            finish, loss = await self._attempt(replica, fresh)
            if finish.end is not End.LOST:
                return finish, lease
            following = after_loss(loss)
            if following is Next.GIVE_UP or self.ending is not None:
                return Finish(End.REFUSED, self.ending or self._gone()), lease
            fresh = True
            if following is Next.OTHER:
                self.resent += 1
                other = self.group.admission.move(lease, clock.monotonic(), lease.replica)
                if other is None and not loss.connected:
                    return Finish(End.REFUSED, self._gone()), lease
                lease = other or lease

    async def _attempt(self, replica: Replica, fresh: bool) -> tuple[Finish, Loss]:
        """One try at one replica."""
        self.replica = replica
        connection = None if fresh else replica.pool.take()
        reused = connection is not None
        if connection is None:
            try:
                connection = await replica.pool.connect(self.settings().timeouts.connect)
            except ConnectFailed:
                replica.failed(clock.monotonic())
                return Finish(End.LOST), Loss(False, False, False, False, self.resent)
            replica.worked()
        finish = await self._relay(replica, connection)
        relay = self.relay
        assert relay is not None
        return finish, Loss(True, reused, relay.body_at is not None, relay.begun, self.resent)

    async def _relay(self, replica: Replica, connection: EngineConnection) -> Finish:
        fields = [("X-Engine", replica.name), *self._queue_field()]
        relay = Relay(self.answer, self.call, self.route, hide_usage=self.hide_usage, fields=fields)
        self.relay = relay
        if self.left or self.ending is not None:
            connection.release(keep=True)
            relay.finish(End.LEFT if self.left else End.REFUSED, self.ending)
        else:
            relay.send(connection, self._request_head(replica.target), self.body)
            if self.is_paused():
                relay.pause()
        return await relay.future

    def _request_head(self, target: Target) -> bytes:
        fields = [f"{name}: {value}\r\n" for name, value in self.fields]
        if target.key:
            fields.append(f"authorization: Bearer {target.key}\r\n")
        length = sum(len(piece) for piece in self.body)
        return (
            f"POST {target.prefix}{self.route.path} HTTP/1.1\r\nhost: {target.authority}\r\n{''.join(fields)}"
            f"x-request-id: {self.answer.request_id}\r\ncontent-length: {length}\r\n\r\n"
        ).encode("utf-8", "surrogateescape")  # as the parser decoded them

    def _queue_field(self) -> list[tuple[str, str]]:
        """How long the call waited, and from which place; left out where a comment went first: the head is gone."""
        if self.admitted_at is None or self.commented:
            return []
        fields = [("X-Queue-Time-Ms", str(round((self.admitted_at - self.ticket.arrived) * 1000)))]
        return fields if self.position is None else [*fields, ("X-Queue-Position", str(self.position))]

    def _gone(self) -> ApiError:
        error = self.engines.unavailable(self.group, self.call.model, clock.wall())
        if error.code == "engine_held":
            return error
        return ApiError(
            "engine_restarting", f"the engine for {self.call.model} went away", retry_after=error.retry_after
        )

    # --- time -----------------------------------------------------------------------------------------------------
    def tick(self, now: float) -> None:
        """Deadlines and keep-alive comments; called several times a second."""
        settings = self.settings()
        timeouts = settings.timeouts
        relay = self.relay
        if not self.first_told:
            self._tell_first_token(now)
        if relay is not None and relay.begun and self.body:  # it is not sent again from now on
            self.body = ()
            self.body_sent()
        if self._is_too_long(now):
            self.stop(self._too_long())
            return
        if relay is not None and not relay.done:
            if relay.paused_at is not None:
                if now - relay.paused_at > timeouts.stall:
                    self.answer.cut()
                    relay.finish(End.LEFT)
                return
            if relay.first_at is None:
                if now - relay.sent_at > timeouts.first_token:
                    relay.fail(
                        ApiError("first_token_timeout", f"the engine gave no token within {timeouts.first_token:g} s")
                    )
                    return
            elif now - relay.progress_at > timeouts.stall:
                relay.fail(ApiError("stream_stalled", f"the engine was silent for {timeouts.stall:g} s"))
                return
        if self.call.stream and not self.answer.ended and not self.left:
            self._comment(now, settings.stream.keepalive)

    def _is_too_long(self, now: float) -> bool:
        return (
            self.longest is not None
            and self.admitted_at is not None
            and self.ending is None
            and now - self.admitted_at > self.longest
        )

    def _too_long(self) -> ApiError:
        """Asking for the same again would end in the same way."""
        text = f"an answer to this key may take {self.longest:g} s, and this one would have taken longer"
        return ApiError("stream_time_exceeded", text, final=True)

    def _tell_first_token(self, now: float) -> None:
        """Let the engine's limit learn when the first token came, once."""
        relay, replica = self.relay, self.replica
        if self.first_told or relay is None or replica is None or (relay.first_at is not None and relay.status != 200):
            return
        self.first_told = replica.adaptive.first_token(self.call.size, relay.sent_at, relay.first_at, now)

    def _comment(self, now: float, keepalive: float) -> None:
        relay = self.relay
        if self.answer.committed and not self.answer.stream:
            return
        quiet = self.quiet_since
        if relay is not None and relay.begun:
            quiet = max(quiet, relay.last_at)
        if now - quiet < keepalive:
            return
        self.quiet_since = now
        self.commented = True
        fields = [] if self.replica is None else [("X-Engine", self.replica.name)]
        self.answer.comment(fields, self._queued(now) if self.ticket.number in self.group.waiters else sse.COMMENT)

    def _queued(self, now: float) -> bytes:
        """Where the call stands just now, and for how long about, for a client that waits."""
        admission = self.group.admission
        position = admission.position(self.ticket)
        wait = admission.expected_wait(position, now)
        return sse.queued(position, None if wait is UNKNOWN else ceil(wait))

    def stop(self, error: ApiError) -> None:
        """End the call now with an error: the gateway goes down, or its key may not go on."""
        self.ending = error
        waiter = self.group.waiters.get(self.ticket.number)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        if self.relay is not None and not self.relay.done:
            self.relay.fail(error)

    def silence(self, now: float) -> float:
        """Seconds since the engine made progress on this call."""
        return now - self.relay.progress_at if self.relay is not None else 0.0


def outcome_of(finish: Finish) -> Outcome:
    """What a call's end says of its replica."""
    if finish.end is End.COMPLETE:
        return Outcome.OK
    if finish.end is End.LEFT or finish.is_out_of_time:
        return Outcome.IGNORED
    return Outcome.DROPPED
