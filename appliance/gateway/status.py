"""The one object that `GET /status` and `llm-appliance status --json` show; `status_schema.json` says what is in it."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping

from appliance import __version__, clock
from appliance.config.fleet import served_names
from appliance.config.model import UNLIMITED
from appliance.errors import Problem
from appliance.policy.availability import serves
from appliance.quantity import UNKNOWN
from appliance.wire import gpustate

from .allowances import prompt_tokens
from .app_state import State
from .engines import Group, Replica, number_of, text_of
from .throughput import LONG, SHORT, Running, running_events

VERSION = 1
FIGURES = ("weights_gib", "kv_gib", "kv_tokens", "at_once", "context")
PHASES = ("starting", "loading", "compiling", "warming")
MOST_KEYS = 20  # whose use is told


def status(state: State) -> dict[str, object]:
    """Everything that is known now; what nobody said is null, never 0."""
    engines = state.engines
    now = clock.monotonic()
    engines.refresh(now, clock.wall())  # who gave an order asks for what became of it
    state.quarantines.look(engines)
    groups = list(engines.groups.values())
    given, calls = tokens_given(state), _streams(state, now)
    engines.gpus.refresh()
    gpus = engines.gpus.value
    return {
        "v": VERSION,
        "at": clock.wall(),
        "state": _overall(state, now),
        "versions": {
            "appliance": __version__,
            "python": platform.python_version(),
            "vllm": engines.runtime.text("version") or None,
            "device": engines.runtime.text("device") or None,
        },
        "gateway": _gateway(state, given, now),
        "config": {
            "file": state.config_path,
            "origin": state.effective.origin,
            "digest": state.effective.text_digest or None,
            "valid": not state.effective.errors,
            "problems": [_problem(problem) for problem in state.effective.problems],
        },
        "keys": {
            "required": _required(state),
            "count": len(state.gatekeeper.keys.keys),
            "running": state.allowances.running,
            "reserved_tokens": state.allowances.reserved,
            "problem": state.gatekeeper.problem or None,
            "use": _use(state),
            "hint": None
            if state.gatekeeper.has_keys or not _required(state)
            else "sudo llm-appliance keys create NAME",
        },
        "runtime": _runtime(state),
        "supervisor": _supervisor(state),
        "driver": gpustate.driver(gpus),
        "gpus": gpustate.gpus(gpus),
        "incidents": _incidents(state),
        "drift": _drift(state),
        "models": [
            {"id": name, "engine": group.engine.name} for group in groups for name in served_names(group.engine)
        ],
        "engines": [_engine(state, group, now, given, calls) for group in groups],
    }


def line(state: State) -> str:
    """What `systemctl status` shows: `serving 1 model, 3 running, 0 queued, 41 tok/s`, or what stands in the way."""
    engines, now = state.engines, clock.monotonic()
    serving = engines.serving_count(now)
    total = len(engines.groups)
    if state.config is None:
        return "the configuration is invalid: llm-appliance check"
    if not serving:
        group = next(iter(engines.groups.values()), None)
        text = engines.unavailable(group, group.engine.served[0], clock.wall()).message if group else "no engine"
    else:
        waiting = sum(group.admission.waiting for group in engines.groups.values())
        of = f" of {total}" if serving < total else ""
        models = "model" if total == 1 else "models"
        text = (
            f"serving {serving}{of} {models}, {state.engines_in_flight()} running, {waiting} queued, "
            f"{state.throughput.per_second(None, tokens_given(state), now, SHORT) or 0:.0f} tok/s"
        )
    older = sum(one["running"] for one in state.predecessors.status())
    finishing = f", {older} of them in the process before an upgrade" if older else ""
    invalid = "; the file on disk is invalid" if state.effective.errors else ""
    keyless = _required(state) and not state.gatekeeper.has_keys
    return text + finishing + invalid + ("; no key yet: llm-appliance keys create NAME" if keyless else "")


def tokens_given(state: State) -> Counter[str]:
    """Tokens that each replica has given since the process began, those of running calls included."""
    counts = state.metrics.given + running_events(state.exchanges)
    counts.update(state.predecessors.events())
    return counts


def _required(state: State) -> bool:
    return state.config.auth.required if state.config else True


def _overall(state: State, now: float) -> str:
    """One word: `draining` (the gateway, or all engines), `invalid`, `serving`, `degraded` (some engines), `starting`,
    `failed` (held or failed).
    """
    if state.draining:
        return "draining"
    if state.config is None:
        return "invalid"
    total, serving = len(state.engines.groups), state.engines.serving_count(now)
    if total and serving == total:
        return "serving"
    states = {state.engines.seen(replica).state for replica in state.engines.replicas()}
    if serving:
        return "degraded"
    if states == {"draining"}:
        return "draining"
    return "failed" if states and states <= {"held", "failed"} else "starting"


def _gateway(state: State, given: Mapping[str, int], now: float) -> dict[str, object]:
    return {
        "pid": state.pid,
        "started": state.started,
        "listen": state.addresses,
        "connections": len(state.server.connections),
        "predecessors": state.predecessors.status(),
        "running": state.engines_in_flight(),
        "queued": sum(group.admission.waiting for group in state.engines.groups.values()),
        "tokens_per_second": state.throughput.per_second(None, given, now, SHORT) or 0.0,
        "requests": state.metrics.requests,
        "loop_lag_s": round(state.loop_lag, 4),
        "quarantine": state.quarantines.counts(),
        "ledger": {"directory": state.audit_directory, "waiting": state.ledger.waiting,
                   "dropped": state.ledger.dropped, "problem": state.ledger.problem or None},
    }  # fmt: skip


def _runtime(state: State) -> dict[str, object] | None:
    value = state.engines.runtime.value
    if not value:
        return None
    return {
        "phase": text_of(value, "phase"),
        "message": text_of(value, "message"),
        "percent": number_of(value, "percent"),
        "since": number_of(value, "since"),
        "models": value.get("models") if isinstance(value.get("models"), Mapping) else {},
    }


def _supervisor(state: State) -> dict[str, object] | None:
    value = state.engines.fleet.value
    if not value:
        return None
    return {
        "at": number_of(value, "at"),
        "mode": text_of(value, "mode"),
        "version": text_of(value, "version") or None,
    }


def _incidents(state: State) -> list[dict[str, object]] | None:
    """The last incidents, as the supervisor told them; null where it told none."""
    told = state.engines.fleet.value.get("incidents")
    if not isinstance(told, list):
        return None
    return [
        {
            **{key: text_of(one, key) or None for key in ("id", "engine", "kind", "cause", "reason")},
            "at": number_of(one, "at"),
            "count": _whole(number_of(one, "count")),
        }
        for one in told
        if isinstance(one, Mapping)
    ]


def _drift(state: State) -> list[dict[str, object]] | None:
    """Where disk and what runs differ, as the supervisor told it; null where it told nothing."""
    told = state.engines.fleet.value.get("drift")
    if not isinstance(told, list):
        return None
    return [
        {
            **{key: text_of(one, key) for key in ("kind", "text", "remedy")},
            "engine": text_of(one, "engine") or None,
            "settings": [key for key in _list(one.get("settings")) if isinstance(key, str)],
        }
        for one in told
        if isinstance(one, Mapping)
    ]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _use(state: State) -> list[dict[str, object]]:
    """The keys that use most, by tokens of the day; what a key may use is null where it has no limit."""
    known = {key.id: key for key in state.gatekeeper.keys.keys}
    found = state.allowances.use(clock.wall())
    most = sorted(found, key=lambda key: (found[key].day, found[key].running, found[key].month), reverse=True)
    told: list[dict[str, object]] = []
    for key in most[:MOST_KEYS]:
        name, limits = (known[key].name, known[key].limits) if key in known else (None, UNLIMITED)
        told.append(
            {
                "id": key,
                "name": name,
                "running": found[key].running,
                "tokens_today": found[key].day,
                "tokens_month": found[key].month,
                "daily_tokens": limits.daily_tokens,
                "monthly_tokens": limits.monthly_tokens,
            }
        )
    return told


def _streams(state: State, now: float) -> dict[str, list[Running]]:
    """The streamed calls in flight, by replica."""
    found: dict[str, list[Running]] = {}
    for exchange in state.exchanges:
        relay, admitted = exchange.relay, exchange.admitted_at
        if relay is None or admitted is None or exchange.replica is None or not exchange.call.stream:
            continue
        if relay.first_at is None:
            call = Running(None, now - admitted)
        elif relay.status == 200:
            call = Running(relay.first_at - admitted, now - relay.first_at)
        else:
            continue
        found.setdefault(exchange.replica.name, []).append(call)
    return found


def _load(replica: Replica) -> dict[str, object] | None:
    """What the engine's own metrics said at the last look; null before one, null in it what they did not say."""
    metrics, figures = replica.metrics, ("running", "waiting", "kv_usage")
    told = {name: value for name in figures if (value := getattr(metrics, name)) is not UNKNOWN}
    return {"at": replica.metrics_at, **{name: told.get(name) for name in figures}} if told else None


def _engine(
    state: State, group: Group, now: float, given: Mapping[str, int], calls: Mapping[str, list[Running]]
) -> dict[str, object]:
    return {
        "name": group.engine.name,
        "model": group.engine.model,
        "served_names": list(served_names(group.engine)),
        "serving": any(state.engines.serving(replica, now) for replica in group.replicas.values()),
        "queued": group.admission.waiting,
        "replicas": [
            {
                **_replica(state, group, replica, now),
                "tokens_per_second": state.throughput.per_second(replica.name, given, now, SHORT),
                "tokens_per_second_60s": state.throughput.per_second(replica.name, given, now, LONG),
                "first_token": state.metrics.first_tokens.told(replica.name, calls.get(replica.name, ()), clock.wall()),
                "load": _load(replica),
            }
            for replica in group.replicas.values()
        ],
    }


def _replica(state: State, group: Group, replica: Replica, now: float) -> dict[str, object]:
    seen, fleet = state.engines.seen(replica), state.engines.told(replica.name)
    return {
        "name": replica.name,
        "remote": replica.remote,
        "serving": state.engines.serving(replica, now),
        "state": seen.state or ("serving" if serves(seen) else "starting" if seen.phase else None),
        "phase": seen.phase or None,
        "message": seen.message or None,
        "since": number_of(fleet, "since") or seen.since,
        "cause": text_of(fleet, "cause") or None,
        "reason": seen.reason or None,
        "next": text_of(fleet, "next") or None,
        "changed": text_of(fleet, "changed") or None,
        "restarts": _whole(number_of(fleet, "restarts")),
        "suspect": replica.suspect,
        "load_s": seen.load_s,
        "incident": text_of(fleet, "incident") or None,
        "digest": replica.state.text("digest") or None,
        "pid": _whole(number_of(replica.state.value, "pid")),
        "ready": number_of(replica.state.value, "ready"),
        **{key: _figures(replica.state.value.get(key), FIGURES) for key in ("planned", "measured")},
        "phases": _figures(replica.state.value.get("phases"), PHASES),
        "in_flight": group.admission.in_flight(replica.name),
        "limit": group.admission.limit(replica.name),
        "limit_reason": replica.adaptive.reason if state.engines.adapts else "configured",
    }


def _figures(value: object, names: Iterable[str]) -> dict[str, object] | None:
    """Figures that a launcher told of its start; null where it told none."""
    told = value if isinstance(value, Mapping) else {}
    found: dict[str, object] = {key: number for key in names if (number := number_of(told, key)) is not None}
    return found or None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _problem(problem: Problem) -> dict[str, object]:
    return {
        "key": problem.key,
        "message": problem.message,
        "remedy": problem.remedy,
        "file": problem.file,
        "line": problem.line,
        "severity": problem.severity,
    }


def silences(state: State) -> dict[str, object]:
    """What the supervisor asks: calls in flight for each replica, what they ask for, how long they have been silent."""
    now = clock.monotonic()
    found: dict[str, object] = {}
    for engine, replica in ((g.engine.name, r) for g in state.engines.groups.values() for r in g.replicas.values()):
        mine = [(e, e.relay) for e in state.exchanges if e.replica is replica and e.relay is not None]
        mine = [(exchange, relay) for exchange, relay in mine if not relay.done]
        heard = [at for at in (replica.last_byte_at, *(relay.heard_at for _, relay in mine)) if at is not None]
        unstarted = [prompt_tokens(e.call, e.route) for e, relay in mine if relay.first_at is None]
        told: list[Mapping[str, object]] = [
            {
                "inflight": len(mine),
                "oldest_silent_s": max((e.silence(now) for e, r in mine if r.paused_at is None), default=None),
                "since_any_byte_s": now - max(heard) if heard else None,
                "structured": sum(exchange.call.structured for exchange, _ in mine),
                "largest_prompt_tokens": max(unstarted, default=0),
            },
            *state.predecessors.silences(replica.name),
        ]
        found[replica.name] = {
            "inflight": sum(_numbers(told, "inflight")),
            "oldest_silent_s": max(_numbers(told, "oldest_silent_s"), default=None),
            "since_any_byte_s": min(_numbers(told, "since_any_byte_s"), default=None),
            "structured": sum(_numbers(told, "structured")),
            "largest_prompt_tokens": max(_numbers(told, "largest_prompt_tokens"), default=0),
            "suspects": state.quarantines.suspects(engine, replica),
        }
    return found


def _numbers(told: Iterable[Mapping[str, object]], key: str) -> list[float]:
    """What each process says; one that says nothing is left out."""
    return [round(value, 3) for each in told if isinstance(value := each.get(key), (int, float))]
