"""Whether an engine serves, and what a client is told while none does.

The launcher says the phase, the supervisor the intent, the gateway itself whether the last connect worked; the runtime
says how far the environment and the model files are. A reading that is missing is UNKNOWN and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from appliance.quantity import format_duration

FIRST_WAIT = 10.0  # seconds to ask for while no start of this engine was ever seen to the end
RUNTIME_WAIT = 30.0
HELD_WAIT = 300.0  # above 120 s SDKs do not retry by themselves: a person has to act first
LONGEST_WAIT = 120.0

# phase of an engine -> what a person calls it
PHASES: Mapping[str, str] = {
    "starting": "the engine process starts",
    "loading": "the weights are being loaded",
    "compiling": "the model is being compiled and its memory laid out",
    "warming": "the first test request runs",
    "stopping": "the engine stops",
    "exited": "the engine has stopped and is about to start again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that is known of one replica. Strings are empty and times None where nobody said anything."""

    replica: str
    remote: bool = False
    reachable: bool | None = None  # the last connect or probe; None: not tried
    phase: str = ""
    message: str = ""
    since: float | None = None  # of the phase, epoch seconds
    started: float | None = None
    state: str = ""  # the supervisor's
    reason: str = ""
    load_s: float | None = None
    not_before: float | None = None


@dataclass(frozen=True, slots=True)
class RuntimeSeen:
    """How far the runtime is; an empty phase is UNKNOWN."""

    phase: str = ""
    message: str = ""
    percent: float | None = None


@dataclass(frozen=True, slots=True)
class Unavailable:
    """What a call is refused with."""

    code: str
    message: str
    retry_after: float


def serves(seen: Seen) -> bool:
    """Whether calls may be sent to a replica now."""
    if seen.remote:
        return seen.reachable is not False
    return seen.phase == "serving" and seen.state not in ("held", "draining")


def unavailable(model: str, seens: Sequence[Seen], runtime: RuntimeSeen, now: float) -> Unavailable:
    """Why no replica of a model serves; `now` is epoch seconds. The nearest one to serving is described."""
    if seens and all(seen.state == "held" for seen in seens):
        reason = next((seen.reason for seen in seens if seen.reason), "it was held")
        return Unavailable("engine_held", f"the engine for {model} is held: {reason}", HELD_WAIT)
    open_ = [seen for seen in seens if seen.state != "held"]
    waits = [(_wait(seen, runtime, now), seen) for seen in open_]
    wait, seen = min(waits, key=lambda pair: pair[0], default=(FIRST_WAIT, Seen(replica="")))
    wait = float(round(min(max(wait, 1.0), LONGEST_WAIT)))
    if seen.state == "draining" and seen.phase == "serving":
        return Unavailable("engine_restarting", f"the engine for {model} takes no new calls: {seen.reason}", wait)
    if seen.remote:  # whatever it is about, it was there and will be again
        return Unavailable("engine_restarting", f"the engine for {model} does not answer", wait)
    if _restarts(seen):
        detail = seen.reason or PHASES.get(seen.phase, "it is being restarted")
        return Unavailable("engine_restarting", f"the engine for {model} restarts: {detail}", wait)
    return Unavailable("engine_starting", f"{model} is not ready yet: {_progress(seen, runtime, now)}", wait)


def _restarts(seen: Seen) -> bool:
    return seen.state in ("restarting", "failed") or seen.phase in ("serving", "stopping", "exited")


def _runtime_works(seen: Seen, runtime: RuntimeSeen) -> bool:
    return not seen.remote and not seen.phase and runtime.phase not in ("", "complete")


def _wait(seen: Seen, runtime: RuntimeSeen, now: float) -> float:
    if _runtime_works(seen, runtime):
        return RUNTIME_WAIT + (seen.load_s or 0.0)
    if seen.load_s is None:
        return FIRST_WAIT
    begun = seen.started if seen.started is not None and seen.phase not in ("serving", "stopping", "exited") else None
    passed = now - begun if begun is not None else 0.0
    later = max((seen.not_before or 0.0) - now, 0.0)
    # A start that takes longer than any before: ask again soon, but not at once.
    return max(seen.load_s - passed, 2.0) + later


def _progress(seen: Seen, runtime: RuntimeSeen, now: float) -> str:
    if _runtime_works(seen, runtime):
        percent = f" ({runtime.percent:.0f} %)" if runtime.percent is not None else ""
        if runtime.phase == "failed":
            return f"the vLLM runtime could not be built: {runtime.message}"
        return f"the vLLM runtime is being prepared: {runtime.message or runtime.phase}{percent}"
    if seen.phase:
        text = PHASES.get(seen.phase, seen.phase)
        passed = f", for {format_duration(max(now - seen.since, 0.0))}" if seen.since is not None else ""
        return text + (f": {seen.message}" if seen.message else "") + passed
    if seen.state == "waiting":
        return f"the engine waits to be started{': ' + seen.reason if seen.reason else ''}"
    return "the engine has not been started yet"
