"""One look at the world: unit states, what launchers and the runtime wrote, holds. Reads only.

A reading that fails is UNKNOWN and touches nothing: without an answer from systemd every engine is UNKNOWN.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from appliance import clock, names
from appliance.config.model import Config
from appliance.config.placement import gpus_of
from appliance.errors import ApplianceError
from appliance.host import files, modelstore, systemd
from appliance.host.places import Places
from appliance.policy import planerror
from appliance.policy.failure import EXITED, Exit, Verdict
from appliance.policy.ladder import Facts, Place
from appliance.policy.planerror import PlanError
from appliance.policy.reconcile import ANY_GPU, ENDED, Desired, Readiness, Seen, UnitState, share
from appliance.quantity import UNKNOWN, Maybe
from appliance.units.render import engine_digest

from . import ledger as ledgers

SHOW_DEADLINE_S = 10.0
ENDING_S = 5.0  # from its verdict on a launcher ends at once, or waits
_PATTERN = "llm-engine@*.service"
_BEFORE_SERVICE = ("starting", "loading", "compiling", "warming")


@dataclass(frozen=True, slots=True)
class Observation:
    """What one cycle knows. `fault` says why systemd gave no answer, empty when it did."""

    seen: Mapping[str, Seen]
    holds: Mapping[str, tuple[str, str]]
    readiness: Readiness
    loads: Mapping[str, tuple[str, float]] = field(default_factory=dict)  # instance -> (`load_key`, seconds)
    groups: Mapping[str, str] = field(default_factory=dict)  # instance -> control group
    plan_errors: tuple[PlanError, ...] = ()  # what the last starts showed of their plans
    runtime_failed: bool = False
    fault: str = ""


def desired_of(config: Config | None) -> tuple[Desired, ...]:
    """The instances that shall run, in the order of their start."""
    if config is None:
        return ()
    made = []
    for instance in config.local_instances:
        engine = config.engine_of(instance)
        assert engine is not None
        given = gpus_of(engine, instance)
        gpus = frozenset({ANY_GPU}) if given == "auto" else frozenset(map(str, given))
        on_cpu = config.runtime.device == "cpu"
        digest = engine_digest(config, instance)
        gpus = frozenset() if on_cpu else gpus
        made.append(Desired(instance, engine.name, digest, gpus, engine.min_model_len))
    return tuple(made)


async def observe(config: Config | None, desired: Sequence[Desired], places: Places) -> Observation:
    """Look once; blocks up to SHOW_DEADLINE_S when systemd is not well."""
    asked = [names.RUNTIME_UNIT, _PATTERN, *(names.engine_unit(d.instance) for d in desired)]
    units: dict[str, systemd.Unit] = {}
    fault, asked_at = "", clock.wall()
    try:
        units = await systemd.ask_async(systemd.show(asked), SHOW_DEADLINE_S)
    except ApplianceError as error:
        fault = error.message
    now, monotonic = clock.wall(), clock.monotonic()
    seen, loads, groups = {}, {}, {}
    errors: list[PlanError] = []
    for unit in units.values():
        instance = names.instance_of(unit.name)
        if instance is None:
            continue
        state = files.read_json(names.engine_state(instance, places.run)) or {}
        verdict = files.read_json(names.engine_verdict(instance, places.run)) or {}
        facts = _facts(instance, state, desired)
        groups[instance] = unit.control_group
        if _is_torn(unit, state, asked_at, now):
            seen[instance] = Seen()
            continue
        seen[instance] = seen_of(unit, state, verdict, facts, now=now, monotonic=monotonic)
        if (taught := planerror.of_start(state)) is not None:
            errors.append(taught)
        load = _load(state)
        if seen[instance].unit is UnitState.UP and load is not None:
            loads[instance] = load
    runtime = units.get(names.RUNTIME_UNIT)
    readiness = readiness_of(config, places, runtime)
    failed = runtime is not None and unit_state(runtime) is UnitState.FAILED
    return Observation(seen, read_holds(places), readiness, loads, groups, tuple(errors), failed, fault)


def unit_state(unit: systemd.Unit) -> UnitState:
    """systemd's words as the words of decisions."""
    if not unit.exists and unit.load != "masked":
        return UnitState.UNKNOWN
    if unit.active in ("active", "reloading"):
        return UnitState.STOPPING if unit.job else UnitState.UP
    if unit.active == "activating":
        return UnitState.NET if unit.sub.startswith("auto-restart") else UnitState.STARTING
    if unit.active == "deactivating":
        return UnitState.STOPPING
    if unit.active in ("failed", "inactive"):
        return UnitState.QUEUED if unit.job else UnitState.FAILED if unit.active == "failed" else UnitState.DOWN
    return UnitState.UNKNOWN


def run_of(unit: systemd.Unit, state: Mapping[str, object]) -> str:
    """The name of a unit's last or present run of vLLM; a launcher that has not spoken yet is at its first one."""
    again = state.get("again")
    own = bool(unit.invocation) and state.get("unit") == unit.invocation
    return names.run_name(unit.invocation, again if own and isinstance(again, int) else 0)


def _is_torn(unit: systemd.Unit, state: Mapping[str, object], asked_at: float, now: float) -> bool:
    """Whether the launcher's file is of a run of the unit that began after systemd was asked: then the two do not
    tell of one thing."""
    started = state.get("started")
    other = bool(state.get("unit")) and state.get("unit") != unit.invocation
    return other and isinstance(started, (int, float)) and asked_at <= started <= now


def seen_of(
    unit: systemd.Unit,
    state: Mapping[str, object],
    verdict: Mapping[str, object],
    facts: Facts,
    *,
    now: float,
    monotonic: float,
) -> Seen:
    """One unit with what its launcher wrote, as policies see it."""
    kind = _kind(unit, state)
    age_s = max(monotonic - unit.since, 0.0) if unit.since is not None else 0.0
    at = verdict.get("at")
    written = float(at) if isinstance(at, (int, float)) else None
    digest, phase, message = state.get("digest"), str(state.get("phase") or ""), str(state.get("message") or "")
    end, left_s = Exit(unit.result, unit.exit_code, unit.exit_status), 0.0
    if kind is UnitState.OVER:
        age_s = max(now - written, 0.0) if written is not None else 0.0
        end = Exit("exit-code", EXITED, names.LAUNCHER_ENGINE_DIED)  # what it says if nobody says anything to it
        left_s = float(str(state["awaits"])) - now
    if kind is UnitState.STARTING and phase in ("stopping", "exited"):
        phase, message = "starting", ""  # the last run's last word: the launcher of this one has not spoken yet
    return Seen(
        unit=kind,
        run=run_of(unit, state) or ("masked" if unit.load == "masked" else ""),
        skipped=kind is UnitState.DOWN and unit.condition is False,
        age_s=age_s,
        end=end,
        verdict=_verdict(verdict) if _belongs(unit, kind, state, verdict, written, now - monotonic) else None,
        verdict_start=str(verdict.get("start") or ""),
        verdict_at=written,
        phase=phase,
        message=message,
        digest=digest if isinstance(digest, str) and digest else UNKNOWN,
        ready=float(ready) if isinstance(ready := state.get("ready"), (int, float)) else UNKNOWN,
        facts=facts,
        left_s=left_s,
        ending=_is_active(unit, kind) and _tells_of(verdict, state) and (written or 0.0) > now - ENDING_S,
    )


def _kind(unit: systemd.Unit, state: Mapping[str, object]) -> UnitState:
    """What a unit is. Between two runs of vLLM within it, systemd goes on saying `active`."""
    kind, phase = unit_state(unit), state.get("phase")
    if kind is not UnitState.UP or not unit.invocation or state.get("unit") != unit.invocation:
        return kind
    if phase == "exited" and isinstance(state.get("awaits"), (int, float)):
        return UnitState.OVER
    failed = phase == "exited" and state.get("ready") is None  # it never served, and its launcher is about to end
    return UnitState.STARTING if state.get("again") and (failed or phase in _BEFORE_SERVICE) else kind


def _is_active(unit: systemd.Unit, kind: UnitState) -> bool:
    """Whether the unit runs, and its launcher waits for nothing."""
    return unit_state(unit) is UnitState.UP and kind is not UnitState.OVER


def _tells_of(verdict: Mapping[str, object], state: Mapping[str, object]) -> bool:
    """Whether a verdict is that of the run which the launcher's state is about."""
    return bool(state.get("start")) and verdict.get("start") == state.get("start")


def _facts(instance: str, state: Mapping[str, object], desired: Sequence[Desired]) -> Facts:
    """What the launcher says that it started vLLM with."""
    own = next((d for d in desired if d.instance == instance), None)
    gpus, flags = state.get("gpus"), state.get("flags")
    digest, runtime = (str(state.get(key) or "") for key in ("digest", "runtime"))
    return Facts(
        place=Place(digest, runtime, tuple(map(str, gpus)) if isinstance(gpus, list) else ()),
        flags=flags if isinstance(flags, dict) else {},
        cuda=state.get("cuda") is True,
        min_model_len=own.min_model_len if own is not None else 0,
        neighbours=own is not None and any(share(own.gpus, d.gpus) for d in desired if d.instance != instance),
    )


def _belongs(
    unit: systemd.Unit,
    kind: UnitState,
    state: Mapping[str, object],
    verdict: Mapping[str, object],
    written: float | None,
    boot: float,
) -> bool:
    """Whether the verdict speaks of the run that ended; of an engine that runs, it speaks of the run before.

    A launcher that was killed leaves none, and the file still holds an older one. `boot` is wall minus monotonic time.
    """
    if not verdict or verdict.get("start") == unit.invocation:
        return bool(verdict)
    if kind is UnitState.OVER or (kind in ENDED and unit.invocation and state.get("unit") == unit.invocation):
        return _tells_of(verdict, state)  # a unit may have seen several runs
    if kind in (UnitState.STARTING, UnitState.UP):
        # A launcher writes its verdict a moment before it ends: then it is the present run's, which has not ended yet.
        return verdict.get("start") != state.get("start")
    return written is not None and (unit.started is None or written >= boot + unit.started - 1.0)


def _verdict(value: Mapping[str, object]) -> Verdict:
    cause, message, phase, hint = (str(value.get(key) or "") for key in ("cause", "message", "phase", "hint"))
    status, signal = (_whole(value.get(key)) for key in ("exit_status", "signal"))
    return Verdict(cause, message, phase, value.get("requested") is True, status, signal, hint)


def _whole(value: object) -> Maybe[int]:
    return value if isinstance(value, int) else UNKNOWN


def _load(state: Mapping[str, object]) -> tuple[str, float] | None:
    """Digest and seconds of a start that was seen to its end; one within a unit that ran already has its own.

    The seconds are those of its phases, which come one after the other: between two instants a clock may be set.
    """
    digest, phases = state.get("digest"), state.get("phases")
    known = [each for each in phases.values() if isinstance(each, (int, float))] if isinstance(phases, dict) else []
    if not isinstance(digest, str) or not isinstance(state.get("ready"), (int, float)) or not known:
        return None
    return ledgers.load_key(digest, again=bool(state.get("again"))), sum(known)


def read_holds(places: Places) -> dict[str, tuple[str, str]]:
    """Held instances with cause and reason; a hold file is a hold whatever it holds."""
    directory = places.under_state(names.HOLDS)
    try:
        held = [name for name in os.listdir(directory) if names.INSTANCE.fullmatch(name)]
    except OSError:
        return {}
    found = {}
    for name in sorted(held):
        value = files.read_json(f"{directory}/{name}") or {}
        found[name] = (str(value.get("cause") or ""), str(value.get("reason") or "held"))
    return found


def readiness_of(config: Config | None, places: Places, runtime: systemd.Unit | None) -> Readiness:
    """What is missing for engines to start. What cannot be read is not called missing: the launcher will tell."""
    state = files.read_json(places.under_run(names.RUNTIME_STATE)) or {}
    complete = f"{places.under_state(names.CURRENT_RUNTIME)}/{names.RUNTIME_COMPLETE}"
    told = state.get("models")
    models: dict[str, str] = {}
    root = places.under_state(config.models.directory) if config is not None else ""
    for model in modelstore.configured(config, root) if config is not None else ():
        if model.is_directory or _exists(f"{model.path}/{names.RUNTIME_COMPLETE}"):
            continue
        word = told.get(model.model) if isinstance(told, dict) else None
        for engine in model.engines:  # its own model comes first
            models.setdefault(engine, f"model {model.model}: {word if word and word != 'ready' else 'not here yet'}")
    return Readiness(
        runtime="" if _exists(complete) else f"the vLLM runtime: {_progress(state)}",
        models=models,
        runtime_idle=runtime is not None and unit_state(runtime) is UnitState.DOWN,
    )


def _progress(state: Mapping[str, object]) -> str:
    percent = state.get("percent")
    share = f" ({percent:.0f} %)" if isinstance(percent, (int, float)) else ""
    return f"{state.get('message') or state.get('phase') or 'not built yet'}{share}"


def _exists(path: str) -> bool:
    """Whether a file is there; True when that cannot be told."""
    try:
        Path(path).stat()
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)
    return True
