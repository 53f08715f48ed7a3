"""One request from its head to its record: route, key, body, call, exchange. The only place that orders these steps."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from typing import Protocol, cast
from urllib.parse import unquote

from aiohttp import ClientPayloadError, web
from aiohttp.web_exceptions import HTTPException

from appliance import clock
from appliance.config.model import Config, Gateway
from appliance.errors import ApiError
from appliance.wire import deliveryprobe, headers, openai
from appliance.wire.openai import ROUTES, Call, Route, Shape
from appliance.wire.usage import Usage, find_usage

from .allowances import Allowances
from .answer import Answer, Sent
from .auth import Gatekeeper, Principal
from .bodies import Bodies, Share
from .claim import Claim
from .clients import cors_fields, forwarded_address, forwarding
from .connection import ClientConnection
from .deliveryprobe import DeliveryProbes
from .engines import Engines, served_names
from .exchange import Exchange
from .ledger import Record
from .relay import End, Finish

JSON_BODY = (("Content-Type", "application/json"),)
ROLE = 1  # of a stream's events, the first holds no token
BODY_LIMIT = 10  # times `gateway.timeouts.body`: the longest time for a whole body


class Host(Protocol):
    """What the handler needs of the process around it."""

    config: Config | None
    engines: Engines
    gatekeeper: Gatekeeper
    allowances: Allowances
    exchanges: set[Exchange]
    draining: bool
    retired: bool
    closing: bool
    started: float

    async def claim(self, principal: Principal, call: Call, route: Route) -> Claim:
        """Take what the call may use of its key's allowance. Raises ApiError."""

    def finished(self, record: Record) -> None:
        """A call ended: count and write it."""


class Handler:
    """Answers every request on the public listener."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._numbers = itertools.count(1)
        self.bodies = Bodies()
        self._probes = DeliveryProbes(
            lambda: (host.config or Config()).gateway.stream.keepalive, lambda: host.closing or host.draining
        )

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request; aiohttp calls it. Cancelled when the client leaves."""
        transport = request.transport
        if transport is None:  # gone before its request was looked at
            return Sent(False)
        path = request.rel_url.raw_path
        route = ROUTES.get(path)
        answer = Answer(
            transport,
            shape=Shape.ANTHROPIC if path.startswith("/v1/messages") else Shape.OPENAI,
            request_id=headers.request_id(request.headers.get("X-Request-Id", "")) or secrets.token_hex(16),
            http11=request.version >= (1, 1),
            # The parser drops what follows a declined upgrade, so nothing may follow it.
            keep_alive=request.keep_alive and not self._host.draining and "Upgrade" not in request.headers,
            extra=cors_fields(self._host.config, request),
        )
        answer.bodyless = request.method == "HEAD"
        try:
            if route is not None:
                answer.shape = route.shape
                share = Share(self.bodies)
                try:
                    await _Relayed(self._host, request, answer, route, next(self._numbers), share, self._probes).run()
                finally:
                    share.give_back()
            else:
                try:
                    self._local(request, path, answer)
                except ApiError as error:
                    answer.refuse(error)
        except Exception:
            if not answer.committed:
                raise
            answer.cut()  # an error page in the middle of a body would be read as part of it
            raise ConnectionError from None
        return answer.sent()

    def _local(self, request: web.BaseRequest, path: str, answer: Answer) -> None:
        """Routes that the gateway answers itself."""
        if path == "/healthz":
            _only(request, answer, "GET", "HEAD")
            answer.reply(200, b'{"status":"ok"}', JSON_BODY)
            return
        if path == "/readyz":
            _only(request, answer, "GET", "HEAD")
            self.ready(answer)
            return
        if _is_preflight(request, answer):
            answer.reply(204, b"", [])
            return
        principal = self._host.gatekeeper.principal(request.headers)
        if path == "/v1/models":
            _only(request, answer, "GET", "HEAD")
            answer.reply(200, _dump(openai.models(self._models(principal), int(self._host.started))), JSON_BODY)
        elif path.startswith("/v1/models/"):
            _only(request, answer, "GET", "HEAD")
            name = unquote(path[len("/v1/models/") :])
            root = dict(self._models(principal)).get(name)
            if root is None:
                raise ApiError("model_not_found", f"no engine serves the model {name[:200]!r}", param="model")
            answer.reply(200, _dump(openai.model_card(name, root, int(self._host.started))), JSON_BODY)
        else:
            raise ApiError("not_found", f"there is no route {path[:200]}")

    def ready(self, answer: Answer) -> None:
        """200 while at least one engine serves."""
        host = self._host
        if host.draining and not host.retired:  # one that another process follows is a ready gateway's
            raise ApiError("gateway_draining", "the gateway is stopping", retry_after=2)
        serving = host.engines.serving_count(clock.monotonic())
        if serving:
            answer.reply(200, _dump({"status": "ready", "serving": serving}), JSON_BODY)
            return
        group = next(iter(host.engines.groups.values()), None)
        if host.config is None or group is None:
            answer.refuse(_invalid_config())
        else:
            answer.refuse(host.engines.unavailable(group, group.engine.served[0], clock.wall()))

    def _models(self, principal: Principal) -> list[tuple[str, str]]:
        engines = self._host.config.engines if self._host.config else ()
        return [(name, engine.model) for engine in engines for name in served_names(engine) if principal.may_use(name)]


class _Relayed:
    """One request on a relayed route, and what is known of it for its record."""

    def __init__(
        self,
        host: Host,
        request: web.BaseRequest,
        answer: Answer,
        route: Route,
        number: int,
        share: Share,
        probes: DeliveryProbes,
    ) -> None:
        self.host, self.request, self.answer, self.route, self.number = host, request, answer, route, number
        self.share = share  # of the memory for bodies
        self.probes = probes
        self.client = forwarded_address(host.config, request)
        self.arrived, self.at = clock.monotonic(), clock.wall()
        self.principal: Principal | None = None
        self.call: Call | None = None
        self.exchange: Exchange | None = None
        self.claim: Claim | None = None

    async def run(self) -> None:
        finish = Finish(End.LEFT)
        try:
            finish = await self._steps()
        except ApiError as error:
            finish = Finish(End.REFUSED, error.settled())
            self.answer.fail(error)
        finally:
            self._record(finish)

    async def _steps(self) -> Finish:
        host, request, route = self.host, self.request, self.route
        if _is_preflight(request, self.answer):
            self.answer.reply(204, b"", [])
            return Finish(End.COMPLETE)
        self.principal = host.gatekeeper.principal(request.headers)
        _only(request, self.answer, "POST")
        if host.closing:
            raise ApiError("gateway_draining", "the gateway is stopping; try again", retry_after=2)
        if host.config is None:
            raise _invalid_config()
        body = await self._body(host.config.gateway)
        self.call = call = openai.parse_call(route, body, request.headers.get("Content-Type", ""))
        if call.model == deliveryprobe.MODEL:
            return await self._probe(call, body)
        group = host.engines.by_model.get(call.model)
        if group is None:
            raise ApiError("model_not_found", f"no engine serves the model {call.model[:200]!r}", param="model")
        if not self.principal.may_use(call.model):
            raise ApiError("model_not_allowed", f"this key may not use the model {call.model[:200]!r}", param="model")
        self.answer.stream = call.stream
        try:
            self.claim = claim = await host.claim(self.principal, call, route)
        finally:  # a client that is refused wants to know where it stands as well
            self.answer.extra += host.allowances.fields(self.principal)
        body = claim.bounded(body, group.engine.vllm.get("max_model_len"))
        client = cast(ClientConnection, request.protocol)
        config = host.config
        exchange = Exchange(
            self.answer,
            call,
            route,
            group,
            host.engines,
            lambda: (host.config or config).gateway,
            ticket=claim.ticket(self.number, self.arrived),
            fields=headers.upstream_fields(request.headers.items()),
            body=body,
            is_paused=lambda: client.writing_paused,
            body_sent=self.share.give_back,
            longest=self.principal.limits.stream_time,
        )
        self.exchange = exchange
        del body
        client.pump = exchange
        host.exchanges.add(exchange)
        try:
            return await exchange.run()
        finally:
            host.exchanges.discard(exchange)
            client.pump = None

    async def _probe(self, call: Call, body: bytes) -> Finish:
        """What stands in front is tried, not an engine."""
        if not call.stream:
            return self.probes.answer_whole(self.answer, len(body))
        request, self.answer.stream = self.request, True
        plan = deliveryprobe.parse_plan(body)
        version = f"{request.version.major}.{request.version.minor}"
        seen = deliveryprobe.Seen(version, self.client, forwarding(self.host.config, request))
        return await self.probes.answer_stream(self.answer, plan, seen)

    async def _body(self, settings: Gateway) -> bytes:
        """The whole body, kept once. Raises ApiError: it is too large, too slow or broken, or memory is full."""
        try:
            return await self._read_body(settings)
        except ApiError:
            self.answer.keep_alive = False  # what is left of it would be read as the next request
            raise
        except (asyncio.TimeoutError, TimeoutError):
            self.answer.keep_alive = False
            raise ApiError("invalid_request", "the body did not arrive in time") from None
        except (HTTPException, ClientPayloadError, web.RequestPayloadError, ValueError):
            self.answer.keep_alive = False
            raise ApiError("invalid_request", "the body cannot be read") from None

    async def _read_body(self, settings: Gateway) -> bytes:
        request, limit = self.request, settings.max_body
        announced = request.content_length or 0
        if announced > limit:
            raise _too_large(limit)
        self.share.check(announced, settings.max_bodies)
        if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= (1, 1):
            self.answer.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        content = request.content
        if content.is_eof():
            body = content.read_nowait(-1)
            if len(body) > limit:
                raise _too_large(limit)
            self.share.grow(len(body), settings.max_bodies)
            return body
        pieces = bytearray()
        silence = settings.timeouts.body
        deadline = self.arrived + silence * BODY_LIMIT
        while True:
            piece = await asyncio.wait_for(
                self.request.content.readany(), min(silence, max(deadline - clock.monotonic(), 0.01))
            )
            if not piece:
                return bytes(pieces)
            if len(pieces) + len(piece) > limit:
                raise _too_large(limit)
            self.share.grow(len(piece), settings.max_bodies)
            pieces += piece

    def _record(self, finish: Finish) -> None:
        exchange, relay = self.exchange, self.exchange.relay if self.exchange else None
        now = clock.monotonic()
        usage: Usage | None = None
        try:
            usage = self._usage(finish)
        finally:
            if self.claim is not None:
                self.claim.settle(exchange, finish, usage)
        admitted = exchange.admitted_at if exchange else None
        first = relay.first_at if relay else None
        error = finish.error
        self.host.finished(
            Record(
                at=self.at,
                request_id=self.answer.request_id,
                key_id=self.principal.key_id if self.principal else "",
                client=self.client,
                route=self.route.path,
                model=self.call.model[:200] if self.call else "",
                engine=exchange.replica.name if exchange and exchange.replica else "",
                status=self.answer.status or (499 if finish.end is End.LEFT else 0),
                outcome=_OUTCOMES[finish.end],
                code=error.code if error else "",
                stream=bool(self.call and self.call.stream),
                queue_ms=(admitted - self.arrived) * 1000 if admitted is not None else None,
                first_token_ms=(first - admitted) * 1000 if first is not None and admitted is not None else None,
                total_ms=(now - self.arrived) * 1000,
                events=relay.events if relay else 0,
                prompt_tokens=usage.prompt_tokens if usage and usage.knows_prompt else None,
                cached_tokens=usage.cached_tokens if usage and usage.knows_prompt else None,
                completion_tokens=usage.completion_tokens if usage else None,
                estimated=bool(usage and usage.estimated),
                resent=exchange.resent if exchange else 0,
            )
        )

    def _usage(self, finish: Finish) -> Usage | None:
        """What the engine reported; for an answer that broke off, the token events that went by."""
        relay = self.exchange.relay if self.exchange else None
        if relay is None:
            return None
        told = find_usage(relay.usage_event) if relay.usage_event else None
        if told is not None and finish.end is not End.COMPLETE and told.completion_tokens + ROLE < relay.events:
            # Told in the beginning, as Anthropic's first event does, or in the middle.
            return Usage(told.prompt_tokens, relay.events, told.cached_tokens, estimated=True)
        if told is not None:
            return told
        if relay.kept:
            return find_usage(bytes(relay.kept[-2048:])) or find_usage(bytes(relay.kept))
        if finish.end is not End.COMPLETE and relay.events:
            return Usage(0, relay.events, estimated=True)
        return None


_OUTCOMES = {
    End.COMPLETE: "ok",
    End.LEFT: "client_left",
    End.REFUSED: "refused",
    End.BROKEN: "broken",
    End.LOST: "broken",
}


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _only(request: web.BaseRequest, answer: Answer, *methods: str) -> None:
    if request.method not in methods:
        answer.extra.append(("Allow", ", ".join(methods)))
        raise ApiError("method_not_allowed", f"this route takes {' or '.join(methods)}, not {request.method[:20]}")


def _is_preflight(request: web.BaseRequest, answer: Answer) -> bool:
    """A browser's question before a call; it carries no key. Answered only for the origins that are configured."""
    return (
        request.method == "OPTIONS"
        and "Access-Control-Request-Method" in request.headers
        and any(name == "Access-Control-Allow-Origin" for name, _ in answer.extra)
    )


def _too_large(limit: int) -> ApiError:
    return ApiError("request_too_large", f"the body is larger than {limit} bytes (gateway.max_body)")


def _invalid_config() -> ApiError:
    return ApiError(
        "config_invalid", "the configuration is invalid: the operator should run llm-appliance check", retry_after=60
    )
