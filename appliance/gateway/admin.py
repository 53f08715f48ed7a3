"""The admin listener and the control socket: metrics, status, console, health, and the ledger for the supervisor.

aiohttp serves them: they are asked a few times a minute, from this machine. What clients call is read by `connection`,
where a request may cost a fraction of that.
"""

from __future__ import annotations

import asyncio
import json

from appliance import __version__, clock
from appliance.errors import ApiError
from appliance.wire import apierror, gpustate
from appliance.wire.openai import Shape
from appliance.wire.promtext import Rows, merge_labelled
from appliance.wire.vllmmetrics import PREFIX

from .app_state import State
from .console import PAGE
from .engines import Replica
from .faults import ServerLog
from .fetch import get
from .handler import Handler
from .status import silences, status
from .upstream import ConnectFailed
from .webserver import web

METRICS_DEADLINE = 2.0  # Prometheus' own is 10 s; a sick engine must not cost the others their figures
KEEPALIVE = 75.0  # seconds that a connection may be idle
LAST_WORDS = 1.0  # seconds for answers that are being given when the process ends
PAGE_FIELDS = {"Content-Security-Policy": "default-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'",
               "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}  # fmt: skip


class Admin:
    """Answers on the admin listener; with `control` also `GET /ledger`."""

    def __init__(self, state: State, handler: Handler, *, control: bool) -> None:
        self._state, self._handler, self._control = state, handler, control
        # Makes the protocol of a connection.
        self.server = web.Server(
            self._serve, access_log=None, keepalive_timeout=KEEPALIVE, logger=ServerLog(state.warn)
        )

    async def close(self) -> None:
        """End all connections."""
        await self.server.shutdown(LAST_WORDS)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await self._answer(request)
        except ApiError as error:
            response = web.Response(
                status=error.status, body=apierror.error_body(error, Shape.OPENAI), content_type="application/json"
            )
        response.headers["Server"] = "llm-appliance"
        return response

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        path = request.rel_url.raw_path
        if request.method not in ("GET", "HEAD"):
            raise ApiError("method_not_allowed", "this listener only tells")
        if path == "/metrics":
            return web.Response(text=await self._metrics(), headers={"Content-Type": "text/plain; version=0.0.4"})
        if path == "/status":
            return _json(status(self._state))
        if path == "/":
            return web.Response(text=PAGE, content_type="text/html", headers=PAGE_FIELDS)
        if path == "/healthz":
            return _json({"status": "ok"})
        if path == "/readyz":
            serving = self._state.engines.serving_count(clock.monotonic())
            told = {"status": "ready" if serving else "not ready", "serving": serving}
            return _json(told, 200 if serving else 503)
        if path == "/ledger" and self._control:
            return _json({"engines": silences(self._state)})
        raise ApiError("not_found", f"there is no route {path[:200]}")

    async def _metrics(self) -> str:
        """Our own families, then the engines' with their label; an engine that does not answer is left out."""
        replicas = list(self._state.engines.replicas())
        texts = await asyncio.gather(*(self._engine_metrics(replica) for replica in replicas))
        engines = {replica.name: text for replica, text in zip(replicas, texts, strict=True) if text}
        return self._state.metrics.exposition(self._live()) + merge_labelled(engines, "engine", PREFIX)

    async def _engine_metrics(self, replica: Replica) -> str:
        if not self._state.engines.serving(replica, clock.monotonic()):
            return ""
        try:
            code, body = await get(replica, "/metrics", METRICS_DEADLINE)
        except ConnectFailed:
            return ""
        return body.decode("utf-8", "replace") if code == 200 else ""

    def _live(self) -> list[tuple[str, str, str, Rows]]:
        state, now = self._state, clock.monotonic()
        state.engines.gpus.refresh()
        groups = list(state.engines.groups.values())
        pairs = [(group, replica) for group in groups for replica in group.replicas.values()]
        return [
            ("build_info", "gauge", "The running version.", [({"version": __version__}, 1.0)]),
            ("config_valid", "gauge", "1 when the file on disk is valid.", [({}, float(not state.effective.errors))]),
            ("engine_serving", "gauge", "1 while a replica gets calls.",
             [({"engine": r.name}, float(state.engines.serving(r, now))) for _, r in pairs]),
            ("in_flight", "gauge", "Calls admitted and not released.",
             [({"engine": r.name}, float(g.admission.in_flight(r.name))) for g, r in pairs]),
            ("concurrency_limit", "gauge", "Calls that may be in flight.",
             [({"replica": r.name}, float(g.admission.limit(r.name))) for g, r in pairs]),
            ("queued", "gauge", "Calls that wait for admission.",
             [({"engine": g.engine.name}, float(g.admission.waiting)) for g in groups]),
            ("client_connections", "gauge", "Open client connections.", [({}, float(len(state.server.connections)))]),
            ("request_body_bytes", "gauge", "Memory for bodies of calls whose answers have not begun.",
             [({}, float(self._handler.bodies.held))]),
            ("event_loop_lag_seconds", "gauge", "How late the last turn of the loop was.", [({}, state.loop_lag)]),
            ("ledger_dropped_total", "counter", "Usage records lost to a writer that could not keep up.",
             [({}, float(state.ledger.dropped))]),
            ("quarantined_requests", "gauge", "Requests that are refused since engines crashed under them.",
             [({}, float(state.quarantines.counts()["refused"]))]),
            ("requests_quarantined_total", "counter", "Requests that came into quarantine.",
             [({}, float(state.quarantines.total))]),
            ("draining", "gauge", "1 while the gateway finishes its calls to stop.", [({}, float(state.draining))]),
            *gpustate.metrics(state.engines.gpus.value),
        ]  # fmt: skip


def _json(value: object, code: int = 200) -> web.Response:
    return web.Response(
        status=code, body=json.dumps(value, ensure_ascii=False).encode() + b"\n", content_type="application/json"
    )
