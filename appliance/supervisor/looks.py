"""One look at each source of evidence. A look that fails is a sample with an error, never an exception."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from appliance import clock
from appliance.errors import Unreachable
from appliance.host import files
from appliance.host.unixget import get_async
from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Health, Ledger, Metrics, Milestone, Notice
from appliance.wire.vllmlog import JOINING, PHASES
from appliance.wire.vllmmetrics import evidence

KEPT_S = 600.0
DEADLINE_S = 3.0  # an API process that is busy answers later than usual; that is no sign of a hang
METRICS_LIMIT = 16 << 20
ANSWER_LIMIT = 1 << 20
_COUNTS = ("inflight", "structured", "largest_prompt_tokens", "suspects")
_TIMES = ("oldest_silent_s", "since_any_byte_s")


async def metrics(socket: str) -> Metrics:
    """The engine's /metrics; blocks up to DEADLINE_S."""
    asked = clock.monotonic()
    try:
        http, body = await get_async(socket, "/metrics", deadline_s=DEADLINE_S, limit=METRICS_LIMIT)
    except Unreachable as error:
        return Metrics(t=clock.monotonic(), error=error.message)
    now = clock.monotonic()
    if http != 200:
        return Metrics(t=now, http=http, latency_ms=_ms(asked, now), error=f"HTTP status {http}")
    return Metrics(t=now, http=http, latency_ms=_ms(asked, now), values=evidence(body.decode(errors="replace")))


async def health(socket: str) -> Health:
    """The engine's /health; any status is an answer. Blocks up to DEADLINE_S."""
    asked = clock.monotonic()
    try:
        http, _ = await get_async(socket, "/health", deadline_s=DEADLINE_S, limit=ANSWER_LIMIT)
    except Unreachable as error:
        return Health(t=clock.monotonic(), error=error.message)
    now = clock.monotonic()
    return Health(t=now, http=http, latency_ms=_ms(asked, now))


async def ledgers(socket: str, instances: Iterable[str]) -> dict[str, Ledger]:
    """The gateway's open requests at each instance; blocks up to DEADLINE_S. One that it does not name is an error."""
    error = ""
    told: object = {}
    try:
        http, body = await get_async(socket, "/ledger", deadline_s=DEADLINE_S, limit=ANSWER_LIMIT)
        told = json.loads(body)["engines"] if http == 200 else {}
        error = "" if http == 200 else f"HTTP status {http}"
    except Unreachable as unreachable:
        error = unreachable.message
    except (ValueError, KeyError, TypeError, RecursionError):
        error = "an answer that is no ledger"
    now = clock.monotonic()
    return {instance: _ledger(told, instance, now, error) for instance in instances}


def _ledger(told: object, instance: str, now: float, error: str) -> Ledger:
    found = told.get(instance) if isinstance(told, Mapping) else None
    if not isinstance(found, Mapping):
        return Ledger(t=now, error=error or "the gateway does not know this engine")
    counts = {name: _number(found.get(name)) for name in _COUNTS}
    times = {name: _number(found.get(name)) for name in _TIMES}
    return Ledger(
        t=now,
        **{name: UNKNOWN if value is UNKNOWN else int(value) for name, value in counts.items()},  # type: ignore[arg-type]
        **times,  # type: ignore[arg-type]
    )


class StateSource:
    """What an engine's launcher writes, as findings: each phase once for a run, each notice when it was given again.

    An end that was asked for comes after `stopping`, which may have been over before anybody looked.
    """

    def __init__(self, path: str, verdict: str) -> None:
        self._path, self._verdict = path, verdict
        self._phase: tuple[str, str, bool] = ("", "", False)
        self._counts: dict[str, object] = {}

    def look(self, now: float, wall: float) -> list[Milestone | Notice]:
        """News since the last look, ordered by time; what is older than KEPT_S is none. Reads one small file."""
        state = files.read_json(self._path) or {}
        start, phase = str(state.get("start") or ""), str(state.get("phase") or "")
        if not start or phase not in PHASES:
            return []
        found: list[Milestone | Notice] = []
        if start != self._phase[0]:
            self._counts = {}
        before, self._phase = self._phase, (start, phase, state.get("message") == JOINING)
        for kind, notice in _mapping(state.get("notices")).items():
            at, count = _mapping(notice).get("at"), _mapping(notice).get("count")
            if isinstance(at, (int, float)) and self._counts.get(str(kind)) != count:
                self._counts[str(kind)] = count
                if wall - at < KEPT_S:
                    found.append(Notice(t=min(now, now - wall + at), kind=str(kind)))
        if before != self._phase:
            # A run begins with its phase, else its first notices would belong to the one before.
            first = min([now, *(notice.t for notice in found)]) if before[0] != start else now
            found.insert(0, Milestone(t=first, phase=phase, start=start, joining=self._phase[2]))
            if phase == "exited" and self._was_asked_for(start):
                found.insert(0, Milestone(t=first, phase="stopping", start=start))
        return sorted(found, key=lambda sample: sample.t)

    def _was_asked_for(self, start: str) -> bool:
        """Whether the launcher was told to end this run; it writes that before it writes that it has."""
        verdict = files.read_json(self._verdict) or {}
        return verdict.get("start") == start and verdict.get("requested") is True


def _mapping(value: object) -> Mapping[object, object]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> Maybe[float]:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else UNKNOWN


def _ms(asked: float, now: float) -> float:
    return round((now - asked) * 1000, 1)
