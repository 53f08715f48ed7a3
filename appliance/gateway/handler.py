"""Every request on the public listener: those that the gateway answers itself, here; the others by `relayed`."""

from __future__ import annotations

import itertools
import json
from urllib.parse import unquote

from appliance import clock
from appliance.config.fleet import served_names
from appliance.config.model import Config, Engine
from appliance.errors import ApiError
from appliance.names import is_builtin
from appliance.wire import headers, openai
from appliance.wire.openai import ROUTES, Shape
from appliance.wire.requesthead import RequestHead

from .answer import Answer
from .auth import Principal
from .bodies import Bodies, Share
from .clients import cors_fields, is_preflight
from .connection import ClientConnection
from .deliveryprobe import DeliveryProbes
from .faults import place
from .relayed import FAILED, Host, RelayedRequest, invalid_config, only
from .requestid import new_request_id

JSON_BODY = (("Content-Type", "application/json"),)


class Handler:
    """Answers every request on the public listener."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._numbers = itertools.count(1)
        self.bodies = Bodies()
        self._probes = DeliveryProbes(
            lambda: (host.config or Config()).gateway.stream.keepalive, lambda: host.closing or host.draining
        )

    def serve(self, connection: ClientConnection, head: RequestHead) -> None:
        """Answer a request, or begin to."""
        outlet = connection.outlet
        if outlet is None:  # gone before its request was looked at
            return
        host, route, values = self._host, ROUTES.get(head.path), head.values
        answer = Answer(
            outlet,
            shape=route.shape if route else Shape.ANTHROPIC if head.path.startswith("/v1/messages") else Shape.OPENAI,
            request_id=("x-request-id" in values and headers.request_id(values["x-request-id"])) or new_request_id(),
            http11=head.http11,
            # Whether a body still comes from a client that is answered instead of asked for it, nobody knows.
            keep_alive=head.keep_alive and "expect" not in values and not host.draining,
            extra=cors_fields(host.config, head),
        )
        if route is not None:
            number, share = next(self._numbers), Share(self.bodies)
            RelayedRequest(host, connection, head, answer, route, number, share, self._probes).begin()
            return
        answer.bodyless = head.method == "HEAD"
        try:
            self._local(head, answer)
        except ApiError as error:
            answer.refuse(error)
        except Exception as error:
            host.warn(f"a request failed: {place(error)}")
            answer.fail(ApiError("engine_error", FAILED))
        connection.answered(keep_alive=answer.keeps_connection)

    def _local(self, head: RequestHead, answer: Answer) -> None:
        """Routes that the gateway answers itself."""
        path = head.path
        if path == "/healthz":
            only(head, answer, "GET", "HEAD")
            answer.reply(200, b'{"status":"ok"}', JSON_BODY)
            return
        if path == "/readyz":
            only(head, answer, "GET", "HEAD")
            self.ready(answer)
            return
        if is_preflight(head, answer):
            answer.reply(204, b"", [])
            return
        principal = self._host.gatekeeper.principal(head.secret)
        if path == "/v1/models":
            only(head, answer, "GET", "HEAD")
            answer.reply(200, _dump(openai.models(self._models(principal), int(self._host.started))), JSON_BODY)
        elif path.startswith("/v1/models/"):
            only(head, answer, "GET", "HEAD")
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
            answer.refuse(invalid_config())
        else:
            answer.refuse(host.engines.unavailable(group, group.engine.served[0], clock.wall()))

    def _models(self, principal: Principal) -> list[tuple[str, str]]:
        engines = self._host.config.engines if self._host.config else ()
        return [(name, _root(engine)) for engine in engines for name in served_names(engine) if principal.may_use(name)]


def _root(engine: Engine) -> str:
    """The model behind a name; `builtin:` is of this machine, and says nothing of an engine elsewhere."""
    return engine.served[0] if engine.remote and is_builtin(engine.model) else engine.model


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
