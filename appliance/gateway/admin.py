"""The admin listener and the control socket: metrics, status, console, health, and the ledger for the supervisor."""

from __future__ import annotations

import asyncio
import json

from appliance import __version__, clock
from appliance.errors import ApiError
from appliance.wire import gpustate
from appliance.wire.openai import Shape
from appliance.wire.promtext import Rows, merge_labelled
from appliance.wire.requesthead import RequestHead
from appliance.wire.vllmmetrics import PREFIX

from .answer import Answer
from .app_state import State
from .connection import ClientConnection
from .console import PAGE
from .engines import Replica
from .faults import place
from .fetch import get
from .handler import Handler
from .relayed import FAILED
from .requestid import new_request_id
from .status import silences, status
from .upstream import ConnectFailed

METRICS_DEADLINE = 2.0  # Prometheus' own is 10 s; a sick engine must not cost the others their figures
METRICS = (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"),)
PAGE_FIELDS = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", "default-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)
SERVER = "Server: llm-appliance\r\n"


class Admin:
    """Answers on the admin listener; with `control` also `GET /ledger`."""

    def __init__(self, state: State, handler: Handler, *, control: bool) -> None:
        self._state, self._handler, self._control = state, handler, control

    def serve(self, connection: ClientConnection, head: RequestHead) -> None:
        """Answer a request, or begin to."""
        transport = connection.transport
        if transport is None:
            return
        answer = Answer(
            transport, shape=Shape.OPENAI, request_id=new_request_id(), http11=head.http11,
            keep_alive=head.keep_alive, extra=SERVER,
        )  # fmt: skip
        answer.bodyless = head.method == "HEAD"
        self._state.tasks.start(self._serve(connection, head, answer), "admin")

    async def _serve(self, connection: ClientConnection, head: RequestHead, answer: Answer) -> None:
        try:
            await self._answer(head, answer)
        except ApiError as error:
            answer.refuse(error)
        except Exception as error:
            self._state.warn(f"a request failed: {place(error)}")
            answer.fail(ApiError("engine_error", FAILED))
        connection.answered(keep_alive=answer.keeps_connection)

    async def _answer(self, head: RequestHead, answer: Answer) -> None:
        path = head.path
        if head.method not in ("GET", "HEAD"):
            raise ApiError("method_not_allowed", "this listener only tells")
        if path == "/metrics":
            answer.reply(200, (await self._metrics()).encode(), METRICS)
        elif path == "/status":
            _json(answer, status(self._state))
        elif path == "/":
            answer.reply(200, PAGE.encode(), PAGE_FIELDS)
        elif path == "/healthz":
            _json(answer, {"status": "ok"})
        elif path == "/readyz":
            serving = self._state.engines.serving_count(clock.monotonic())
            told = {"status": "ready" if serving else "not ready", "serving": serving}
            _json(answer, told, 200 if serving else 503)
        elif path == "/ledger" and self._control:
            _json(answer, {"engines": silences(self._state)})
        else:
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


def _json(answer: Answer, value: object, code: int = 200) -> None:
    body = json.dumps(value, ensure_ascii=False).encode() + b"\n"
    answer.reply(code, body, [("Content-Type", "application/json")])
