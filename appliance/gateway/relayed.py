"""One request on a relayed route from its head to its record: key, body, call, claim, exchange.

The only place that orders these steps. They follow one another by calls; where a step must wait, for the body, for a
place or for another process, it is called back.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from appliance import clock
from appliance.config.model import Config, Gateway
from appliance.errors import ApiError
from appliance.policy.allowance import Hold
from appliance.wire import deliveryprobe, openai
from appliance.wire.openai import Call, Route
from appliance.wire.requesthead import RequestHead
from appliance.wire.usage import Usage, find_usage

from .allowances import Allowances
from .answer import Answer
from .auth import Gatekeeper, Principal
from .bodies import Share, too_large
from .claim import Claim
from .clients import forwarded_address, forwarding, is_preflight
from .connection import ClientConnection
from .deliveryprobe import DeliveryProbes
from .engines import Engines, Group
from .exchange import Exchange
from .faults import place
from .finish import COMPLETE, LEFT, End, Finish
from .quarantine import Quarantines, Watch
from .record import Record
from .relay import Relay
from .tasks import Tasks

NEAR_END = 2048  # bytes of a body in which its usage mostly is
ROLE = 1  # of a stream's events, the first holds no token
FAILED = "the gateway failed on this request"


class Host(Protocol):
    """What the handler needs of the process around it."""

    config: Config | None
    engines: Engines
    gatekeeper: Gatekeeper
    allowances: Allowances
    exchanges: set[Exchange]
    quarantines: Quarantines
    tasks: Tasks
    draining: bool
    retired: bool
    closing: bool
    started: float

    @property
    def is_followed(self) -> bool:
        """Whether another process decides what keys may use."""

    async def hold_elsewhere(self, principal: Principal, call: Call, route: Route) -> Hold | None:
        """What that process lets the call use; None where this one decides again. Raises ApiError."""

    def finished(self, record: Record) -> None:
        """A call ended: count and write it."""

    def warn(self, text: str) -> None:
        """One line for the operator."""


class RelayedRequest:
    """One request on a relayed route, and what its record needs. Its connection's job; `_end` is its one end."""

    __slots__ = (
        "answer", "arrived", "at", "call", "claim", "client", "config", "connection", "done", "exchange", "head",
        "host", "number", "principal", "probes", "route", "share", "task", "watch",
    )  # fmt: skip

    def __init__(
        self,
        host: Host,
        connection: ClientConnection,
        head: RequestHead,
        answer: Answer,
        route: Route,
        number: int,
        share: Share,
        probes: DeliveryProbes,
    ) -> None:
        self.host, self.connection, self.head, self.answer = host, connection, head, answer
        self.route, self.number = route, number
        self.share = share  # of the memory for bodies
        self.probes = probes
        self.client = forwarded_address(host.config, head, connection.remote)
        self.arrived, self.at = clock.monotonic(), clock.wall()
        self.config: Config | None = None
        self.principal: Principal | None = None
        self.call: Call | None = None
        self.exchange: Exchange | None = None
        self.claim: Claim | None = None
        self.watch: Watch | None = None
        self.task: asyncio.Task[None] | None = None  # what cannot be done at once
        self.done = False

    # --- the connection's calls -----------------------------------------------------------------------------------
    def begin(self) -> None:
        """What the head says is enough to refuse, or to ask for the body; where that is here, the call goes on."""
        self._go_on(None)

    def received(self, size: int) -> None:
        config = self.config
        assert config is not None
        limit = config.gateway.max_body
        if self.share.size + size > limit:
            raise too_large(limit)
        self.share.grow(size, config.gateway.max_bodies)

    def body(self, data: bytes) -> None:
        self._go_on(data)

    def body_failed(self, error: ApiError) -> None:
        self.answer.keep_alive = False
        self._refuse(error)

    def client_left(self) -> None:
        if self.answer.committed and not self.head.http11:  # it may still read, and take this for the answer's end
            self.answer.cut()
        if self.exchange is not None:
            self.exchange.client_left()
        else:
            self._end(LEFT)

    def pause(self) -> None:
        if self.exchange is not None:
            self.exchange.pause()

    def resume(self) -> None:
        if self.exchange is not None:
            self.exchange.resume()

    # --- steps ----------------------------------------------------------------------------------------------------
    def _go_on(self, body: bytes | None) -> None:
        try:
            if body is None:
                body = self._look_at_head()
            if body is not None:
                self._look_at_body(body)
        except ApiError as error:
            self._refuse(error)
        except Exception as error:
            self._fail(error)

    def _look_at_head(self) -> bytes | None:
        """The body, where it is here already."""
        host, head, answer = self.host, self.head, self.answer
        if head.method != "POST":
            answer.bodyless = head.method == "HEAD"
            if is_preflight(head, answer):
                answer.reply(204, b"", [])
                self._end(COMPLETE)
                return None
        self.principal = host.gatekeeper.principal(head.secret)
        only(head, answer, "POST")
        if host.closing:
            raise ApiError("gateway_draining", "the gateway is stopping; try again", retry_after=2)
        self.config = config = host.config
        if config is None:
            raise invalid_config()
        gateway, announced = config.gateway, head.length or 0
        try:
            if announced > gateway.max_body:
                raise too_large(gateway.max_body)
            body = self.connection.collect(self)
            if body is None:
                self.share.check(announced, gateway.max_bodies)
            else:
                self.share.grow(announced, gateway.max_bodies)
        except ApiError:
            answer.keep_alive = False  # what is sent of it would be read as the next request
            raise
        return body

    def _look_at_body(self, body: bytes) -> None:
        host, head, route, principal, answer = self.host, self.head, self.route, self.principal, self.answer
        assert principal is not None
        answer.keep_alive = head.keep_alive and not host.draining
        self.call = call = openai.parse_call(route, body, head.values.get("content-type", ""))
        if call.model == deliveryprobe.MODEL:
            self._probe(call, body)
            return
        group = host.engines.by_model.get(call.model)
        if group is None:
            raise ApiError("model_not_found", f"no engine serves the model {call.model[:200]!r}", param="model")
        if not principal.may_use(call.model):
            raise ApiError("model_not_allowed", f"this key may not use the model {call.model[:200]!r}", param="model")
        self.watch = host.quarantines.check(
            group.engine.name, route.path, body, answer.request_id, principal.key_id
        )  # fmt: skip
        answer.stream = call.stream
        if host.is_followed:
            self.task = host.tasks.start(self._claim_elsewhere(call, group, body), "claim")
            return
        try:
            self.claim = Claim(host.allowances, principal, call, route)
        finally:  # a client that is refused wants to know where it stands as well
            answer.extra += host.allowances.fields(principal)
        self._exchange(self.claim, call, group, body)

    async def _claim_elsewhere(self, call: Call, group: Group, body: bytes) -> None:
        """The allowance is another process's to give."""
        host, principal = self.host, self.principal
        assert principal is not None
        try:
            try:
                hold = await host.hold_elsewhere(principal, call, self.route)
                self.claim = Claim(host.allowances, principal, call, self.route, hold)
            finally:
                self.task = None
                self.answer.extra += host.allowances.fields(principal)
            self._exchange(self.claim, call, group, body)
        except ApiError as error:
            self._refuse(error)
        except Exception as error:
            self._fail(error)

    def _exchange(self, claim: Claim, call: Call, group: Group, body: bytes) -> None:
        host, principal = self.host, self.principal
        assert principal is not None
        self.exchange = exchange = Exchange(
            self,
            self.answer,
            call,
            self.route,
            group,
            host.engines,
            host.tasks,
            ticket=claim.ticket(self.number, self.arrived),
            fields=self.head.onward,
            body=body,
            added=claim.bound(group.context),
            longest=principal.limits.stream_time,
            watch=self.watch,
        )
        host.exchanges.add(exchange)
        exchange.begin()

    # --- the exchange's calls -------------------------------------------------------------------------------------
    @property
    def settings(self) -> Gateway:
        config = self.host.config or self.config
        assert config is not None
        return config.gateway

    @property
    def is_paused(self) -> bool:
        return self.connection.writing_paused

    def body_sent(self) -> None:
        self.share.give_back()

    def exchanged(self, finish: Finish) -> None:
        if self.exchange is not None:
            self.host.exchanges.discard(self.exchange)
        self._end(finish)
        self.exchange = None  # they know one another: see there

    # --- what stands in front, tried ------------------------------------------------------------------------------
    def _probe(self, call: Call, body: bytes) -> None:
        """What stands in front is tried, not an engine."""
        if not call.stream:
            self._end(self.probes.answer_whole(self.answer, len(body)))
            return
        self.answer.stream = True
        plan = deliveryprobe.parse_plan(body)
        version = "1.1" if self.head.http11 else "1.0"
        seen = deliveryprobe.Seen(version, self.client, forwarding(self.host.config, self.head, self.connection.remote))
        self.task = self.host.tasks.start(self._probe_stream(plan, seen), "delivery probe")

    async def _probe_stream(self, plan: deliveryprobe.Plan, seen: deliveryprobe.Seen) -> None:
        try:
            finish = await self.probes.answer_stream(self.answer, plan, seen)
        except ApiError as error:
            self._refuse(error)
        except Exception as error:
            self._fail(error)
        else:
            self._end(finish)

    # --- the end --------------------------------------------------------------------------------------------------
    def _refuse(self, error: ApiError) -> None:
        if not self.done:
            self.answer.fail(error)
            self._end(Finish(End.REFUSED, error.settled()))

    def _fail(self, error: Exception) -> None:
        """A fault of ours; an error page in the middle of a body would be read as part of it."""
        self.host.warn(f"a request failed: {place(error)}")
        self._refuse(ApiError("engine_error", FAILED))

    def _end(self, finish: Finish) -> None:
        if self.done:
            return
        self.done = True
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
        if self.exchange is not None and not self.exchange.done:
            self.exchange.client_left()  # it could not even begin
        if self.watch is not None:
            self.watch.close()
        try:
            self._record(finish)
        finally:
            self.share.give_back()
            if self.answer.broken:
                self.connection.end_soon()
            self.connection.answered(keep_alive=self.answer.keeps_connection)

    def _record(self, finish: Finish) -> None:
        exchange, call = self.exchange, self.call
        relay = exchange.relay if exchange is not None else None
        usage: Usage | None = None
        try:
            usage = _usage(relay, finish) if relay is not None else None
        finally:
            if self.claim is not None:
                self.claim.settle(exchange, finish, usage)
        admitted = exchange.admitted_at if exchange is not None else None
        first = relay.first_at if relay is not None else None
        self.host.finished(
            Record(
                at=self.at,
                request_id=self.answer.request_id,
                key_id=self.principal.key_id if self.principal is not None else "",
                client=self.client,
                route=self.route.path,
                model=call.model[:200] if call is not None else "",
                engine=exchange.replica.name if exchange is not None and exchange.replica is not None else "",
                status=self.answer.status or (499 if finish.end is End.LEFT else 0),
                outcome=_outcome(finish.end, self.answer.status),
                code=finish.error.code if finish.error is not None else "",
                stream=call is not None and call.stream,
                queue_ms=(admitted - self.arrived) * 1000 if admitted is not None else None,
                first_token_ms=(first - admitted) * 1000 if first is not None and admitted is not None else None,
                total_ms=(clock.monotonic() - self.arrived) * 1000,
                events=relay.events if relay is not None else 0,
                prompt_tokens=usage.prompt_tokens if usage is not None else None,
                cached_tokens=usage.cached_tokens if usage is not None else None,
                completion_tokens=usage.completion_tokens if usage is not None else None,
                estimated=usage is not None and usage.estimated,
                resent=exchange.resent if exchange is not None else 0,
            )
        )


def _usage(relay: Relay, finish: Finish) -> Usage | None:
    """What the engine reported; of an answer that broke off, or tells nothing, the token events that went by."""
    complete = finish.end is End.COMPLETE
    whole = find_usage(relay.kept[-NEAR_END:]) or find_usage(relay.kept) if relay.kept else None
    if whole is not None:
        return whole
    if relay.usage_event:
        told = find_usage(relay.usage_event)
        if told is not None and not complete and told.completion_tokens + ROLE < relay.events:
            # Told in the beginning, as Anthropic's first event does, or in the middle.
            prompt = told.prompt_tokens or None  # 0 before anything was counted
            return Usage(prompt, relay.events, told.cached_tokens if prompt else None, estimated=True)
        if told is not None:
            return told
    return Usage(None, relay.events, None, estimated=True) if relay.events else None


def _outcome(end: End, status: int) -> str:
    """The ledger's word for a call's end."""
    if end is End.COMPLETE:
        return "engine_error" if status >= 500 else "ok"
    return _OUTCOMES[end]


_OUTCOMES = {
    End.LEFT: "client_left",
    End.REFUSED: "refused",
    End.BROKEN: "broken",
    End.LOST: "broken",
}


def only(head: RequestHead, answer: Answer, *methods: str) -> None:
    """Raise ApiError for another method."""
    if head.method not in methods:
        answer.extra += f"Allow: {', '.join(methods)}\r\n"
        raise ApiError("method_not_allowed", f"this route takes {' or '.join(methods)}, not {head.method}")


def invalid_config() -> ApiError:
    """There is no configuration that could be served."""
    return ApiError(
        "config_invalid", "the configuration is invalid: the operator should run llm-appliance check", retry_after=60
    )
