"""One call from its parsed envelope to its end: admission, attempts, and the watch over its silences.

The steps follow one another by calls: a call that is admitted at once and finds a pooled connection is with its engine
at the end of the loop's turn, and one that waits is called back. Only to connect takes a task. The ticker calls `tick`
several times a second; everything that depends on time is decided there, so that a token costs no timer.

Law: every way ends in `_end`, once; there the lease or the place in the queue goes back.
"""

from __future__ import annotations

import asyncio
from math import ceil
from typing import Protocol

from appliance import clock
from appliance.config.model import Gateway
from appliance.errors import ApiError
from appliance.policy.admission import Lease, Outcome, Refuse, Ticket
from appliance.policy.retry import Loss, Next, after_loss
from appliance.quantity import UNKNOWN
from appliance.wire import sse
from appliance.wire.openai import Call, Pieces, Route, extended, usage_asked

from .answer import Answer
from .engines import Engines, Group, Replica
from .finish import LEFT, End, Finish
from .quarantine import Watch
from .relay import Relay
from .tasks import Tasks
from .upstream import ConnectFailed, EngineConnection, Late


class Owner(Protocol):
    """Whose call it is."""

    @property
    def settings(self) -> Gateway:
        """`[gateway]` in force."""

    @property
    def is_paused(self) -> bool:
        """Whether the client's buffer is full."""

    def body_sent(self) -> None:
        """The body is needed no more."""

    def exchanged(self, finish: Finish) -> None:
        """The call's end; told once."""


class Exchange:
    """The state of one call; what the client's connection and the ticker talk to."""

    __slots__ = (
        "admitted_at", "answer", "body", "call", "commented", "connecting", "done", "engines", "fields", "first_told",
        "fresh", "group", "hide_usage", "lease", "longest", "owner", "position", "quiet_since", "relay", "replica",
        "resent", "reused", "route", "tasks", "ticket", "watch",
    )  # fmt: skip

    def __init__(
        self,
        owner: Owner,
        answer: Answer,
        call: Call,
        route: Route,
        group: Group,
        engines: Engines,
        tasks: Tasks,
        *,
        ticket: Ticket,
        fields: str,
        body: bytes,
        added: bytes = b"",
        longest: float | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.owner = owner
        self.answer, self.call, self.route = answer, call, route
        self.group, self.engines = group, engines
        self.tasks = tasks  # for what must wait
        self.ticket, self.fields = ticket, fields
        self.longest = longest  # seconds from admission to the end that the key may take
        self.watch = watch = watch or Watch()
        self.hide_usage = route.meters and call.stream and not call.include_usage
        if self.hide_usage:
            added += usage_asked(call)
        self.body: Pieces = extended(body, added) if added else (body,)
        # After a lost attempt pooled connections are not trusted any more; and the end of one would leave open whether
        # the engine died of a suspected call.
        self.fresh = watch.suspect
        self.relay: Relay | None = None
        self.replica: Replica | None = None
        self.lease: Lease | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.reused = False  # whether the attempt's connection had carried an earlier call
        self.done = False
        self.admitted_at: float | None = None
        self.position: int | None = None  # in the queue, when the call came into it
        self.quiet_since = ticket.arrived
        self.commented = False
        self.resent = 0
        self.first_told = not call.stream  # only a stream's first byte is its first token

    # --- the client's connection ----------------------------------------------------------------------------------
    def client_left(self) -> None:
        """The client's connection ended: the engine's ends now."""
        self._end(LEFT)

    def pause(self) -> None:
        if self.relay is not None:
            self.relay.pause()

    def resume(self) -> None:
        if self.relay is not None:
            self.relay.resume()

    # --- admission ------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Carry the call to its end and tell the client; `ended` is called then, perhaps before this returns."""
        group = self.group
        if not group.is_up:
            self.refused(self.engines.unavailable(group, self.call.model, clock.wall()))
            return
        decision = group.admission.offer(self.ticket, clock.monotonic())
        if isinstance(decision, Lease):
            self.admitted(decision)
        elif isinstance(decision, Refuse):
            self.refused(ApiError(decision.code, decision.reason, retry_after=decision.retry_after))
        else:
            self.position = decision.position
            group.waiters[self.ticket.number] = self
            if decision.displaced is not None:
                group.turn_away(*decision.displaced)

    def admitted(self, lease: Lease) -> None:
        """The call may run."""
        self.lease, self.admitted_at = lease, lease.admitted
        try:
            self._attempt()
        except Exception as error:  # whoever lets this call in must not pay for it
            self._fail(error)

    def refused(self, error: ApiError) -> None:
        """It may not."""
        self._end(Finish(End.REFUSED, error))

    # --- attempts -------------------------------------------------------------------------------------------------
    def _attempt(self) -> None:
        """One try at the replica of the lease."""
        lease = self.lease
        assert lease is not None
        replica = self.group.replicas.get(lease.replica)
        if replica is None:
            self._end(Finish(End.REFUSED, self._gone()))
            return
        try:
            self.watch.check()
        except ApiError as error:
            self._end(Finish(End.REFUSED, error))
            return
        self.replica = replica
        connection = None if self.fresh else replica.pool.take()
        if connection is not None:
            self._relay(replica, connection)
        else:
            self.connecting = self.tasks.start(self._connect(replica), "connect")

    async def _connect(self, replica: Replica) -> None:
        """Make a connection, for no pooled one is there; cancelled when the call ends."""
        try:
            connection = await replica.pool.connect(self.owner.settings.timeouts.connect)
        except ConnectFailed as error:
            self.connecting = None
            replica.failed(clock.monotonic(), late=isinstance(error, Late))
            self._lost(Loss(False, False, False, False, self.resent))
        except Exception as error:
            self.connecting = None
            self._fail(error)
        else:
            self.connecting = None
            replica.worked()
            if self.done:  # in this very moment
                connection.release(keep=True)
            else:
                self._relay(replica, connection)

    def _fail(self, error: Exception) -> None:
        """A fault of ours."""
        asyncio.get_running_loop().call_exception_handler({"message": "a call failed", "exception": error})
        self._end(Finish(End.REFUSED, ApiError("engine_error", "the gateway failed on this request")))

    def _relay(self, replica: Replica, connection: EngineConnection) -> None:
        answer, position, body, fields = self.answer, self.position, self.body, replica.field
        # How long the call waited, and from which place; left out where a comment went first: the head is gone.
        if self.admitted_at is not None and not self.commented:
            fields = f"{fields}X-Queue-Time-Ms: {round((self.admitted_at - self.ticket.arrived) * 1000)}\r\n"
            if position is not None:
                fields = f"{fields}X-Queue-Position: {position}\r\n"
        self.reused = connection.reused
        self.relay = relay = Relay(
            answer, self.call, self.route, self._relayed, hide_usage=self.hide_usage, fields=fields
        )  # fmt: skip
        self.watch.sent(replica)
        head = (
            f"{replica.openings[self.route.path]}{self.fields}x-request-id: {answer.request_id}\r\n"
            f"content-length: {sum(map(len, body))}\r\n\r\n"
        ).encode("latin-1", "replace")  # as the client's head was decoded
        relay.send(connection, head, body)
        if self.owner.is_paused:
            relay.pause()

    def _relayed(self, finish: Finish) -> None:
        """An attempt came to its end."""
        relay = self.relay
        assert relay is not None
        self.watch.ended(finish, relay.status)
        if finish.end is End.LOST:
            loss = Loss(True, self.reused, relay.body_at is not None, relay.begun, self.resent, self.watch.suspect)
            self._lost(loss)
        else:
            self._end(finish)

    def _lost(self, loss: Loss) -> None:
        """The engine went, or was not there: once more, or the end."""
        if self.done:
            return
        following = after_loss(loss)
        if following is Next.GIVE_UP:
            self._end(Finish(End.REFUSED, self._gone()))
            return
        self.fresh = True
        if following is Next.OTHER:
            self.resent += 1
            lease = self.lease
            assert lease is not None
            other = self.group.admission.move(lease, clock.monotonic(), lease.replica)
            if other is None and not loss.connected:
                self._end(Finish(End.REFUSED, self._gone()))
                return
            self.lease = other or lease
        self._attempt()

    def _end(self, finish: Finish) -> None:
        """Give back all that the call held, tell the client, and report; a second call does nothing."""
        if self.done:
            return
        self.done = True
        self.body = ()
        group, relay, lease = self.group, self.relay, self.lease
        if self.connecting is not None:
            self.connecting.cancel()
            self.connecting = None
        if lease is None:
            group.waiters.pop(self.ticket.number, None)
            group.admission.leave(self.ticket)
        if relay is not None and not relay.done:
            relay.finish(LEFT)
        now = clock.monotonic()
        if not self.first_told:
            self._tell_first_token(now)
        if self.replica is not None:
            if finish.end is End.COMPLETE and not self.call.stream:
                self.replica.adaptive.ended(now)
            if relay is not None and (heard := relay.heard_at) is not None:
                self.replica.last_byte_at = max(self.replica.last_byte_at or 0.0, heard)
        try:
            if lease is not None:
                group.release(lease, outcome_of(finish))
        finally:
            if finish.end is End.REFUSED and finish.error is not None:
                self.answer.fail(finish.error)
            self.owner.exchanged(finish)
            self.relay = None  # they know one another: what they took would wait for the garbage collector

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
        if self.done:
            return
        settings = self.owner.settings
        timeouts = settings.timeouts
        relay = self.relay
        if not self.first_told:
            self._tell_first_token(now)
        if relay is not None and relay.begun and self.body:  # it is not sent again from now on
            self.body = ()
            self.watch.let_go()
            self.owner.body_sent()
        if self._is_too_long(now):
            self.stop(self._too_long())
            return
        if relay is not None and not relay.done:
            if relay.paused_at is not None:
                if now - relay.paused_at > timeouts.stall:
                    self.answer.cut()
                    relay.finish(LEFT)
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
        if self.call.stream and not self.answer.ended:
            self._comment(now, settings.stream.keepalive)

    def _is_too_long(self, now: float) -> bool:
        return self.longest is not None and self.admitted_at is not None and now - self.admitted_at > self.longest

    def _too_long(self) -> ApiError:
        """Asking for the same again would end in the same way."""
        text = f"an answer to this key may take {self.longest:g} s, and this one would have taken longer"
        return ApiError("stream_time_exceeded", text, final=True)

    def _tell_first_token(self, now: float) -> None:
        """Let the engine's limit learn when the first token came, once."""
        relay, replica = self.relay, self.replica
        if relay is None or replica is None or (relay.first_at is not None and relay.status != 200):
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
        fields = "" if self.replica is None else self.replica.field
        self.answer.comment(fields, self._queued(now) if self.ticket.number in self.group.waiters else sse.COMMENT)

    def _queued(self, now: float) -> bytes:
        """Where the call stands just now, and for how long about, for a client that waits."""
        admission = self.group.admission
        position = admission.position(self.ticket)
        wait = admission.expected_wait(position, now)
        return sse.queued(position, None if wait is UNKNOWN else ceil(wait))

    def stop(self, error: ApiError) -> None:
        """End the call now with an error: the gateway goes down, or its key may not go on."""
        if self.relay is not None and not self.relay.done:
            self.relay.fail(error)
        else:
            self._end(Finish(End.REFUSED, error))

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
