"""Desired engines and what is seen of them -> what each is, and what is to be done, each with its reason.

Laws, kept by every plan:
    - a held engine is never started; an engine whose unit's state is UNKNOWN is not touched
    - at most one start at a time among engines that share a GPU, in the configuration's order of start; systemd's net,
      which knows no order, is cut before it starts one whose turn it is not
    - none while the memory of its GPUs is seen to change, for a while: what is measured then is wrong a moment later
    - a voluntary restart (nothing is wrong with the engine) waits until its siblings serve, and where one does the
      engine drains before: it gets no new calls, and is restarted when its last one ends, or after the drain's limit
    - a unit that somebody stopped by hand stays down until somebody asks for it
    - nothing is done twice: a wish is fulfilled when a run other than the one it replaces is seen
    - a launcher that waits for the next run is told to begin it (`again`) for a restart that a death led to, and where
      its unit is as the next run needs it; any other restart is the unit's

A plan is made anew each cycle from what is on disk and what systemd says, so that a supervisor that was killed between
two steps goes on where it was.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from appliance.config.model import Restart
from appliance.quantity import UNKNOWN, Maybe, format_duration

from .failure import Evidence, Exit, Failure, Verdict
from .hardware import BURST_AHEAD_S
from .ladder import Facts
from .restart import Record, due_in_s

NET_S = 30.0  # RestartSec= of the engine's unit: systemd restarts it by itself so long after its end
NET_MARGIN_S = 3.0
WORD_S = 1.0  # a launcher that waits for less may be gone before it hears
REPEAT_S = 20.0  # a request that systemd took and that shows no effect is made again after so long
STABLE_S = 10.0  # the memory of a GPU is settled when it has not changed for so long
MEMORY_WAIT_S = 120.0  # a program that never lets it settle does not keep an engine down
SETTLE_S = 3.0  # until the gateway has read that an engine drains
ANY_GPU = "*"


class UnitState(enum.Enum):
    """An engine's unit, in the words that decisions need."""

    DOWN = "down"
    QUEUED = "queued"  # a start job waits for something
    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"
    FAILED = "failed"
    NET = "net"  # it ended, and systemd restarts it soon by itself
    OVER = "over"  # its run ended, and its launcher waits to be told that the next one begins in the same unit
    UNKNOWN = "unknown"


RUNNING = frozenset({UnitState.QUEUED, UnitState.STARTING, UnitState.UP, UnitState.NET, UnitState.OVER})
ENDED = frozenset({UnitState.FAILED, UnitState.NET, UnitState.OVER})


@dataclass(frozen=True, slots=True)
class Desired:
    """An engine instance that shall run. `gpus` empty is an engine on the CPU, {ANY_GPU} one that may use any GPU."""

    instance: str
    engine: str
    digest: str
    gpus: frozenset[str] = frozenset({ANY_GPU})
    min_model_len: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen of one instance. `run` is the name of its last or present run (`names.run_name`), `start` the
    launcher's.

    `left_s` is for how long a launcher still waits whose run is over; `ending`: it has just told the end of its run.
    """

    unit: UnitState = UnitState.UNKNOWN
    run: str = ""
    skipped: bool = False  # a condition of the unit kept it from starting
    age_s: float = 0.0  # in this state
    end: Exit = field(default_factory=lambda: Exit(""))
    verdict: Verdict | None = None  # of the run that ended, or of the one before the present run
    verdict_start: str = ""
    verdict_at: float | None = None
    phase: str = ""
    message: str = ""
    digest: Maybe[str] = UNKNOWN
    ready: Maybe[float] = UNKNOWN  # when the present run began to serve
    facts: Facts = field(default_factory=Facts)  # what the last or present run was started with
    evidence: Evidence = field(default_factory=Evidence)  # around its end
    left_s: float = 0.0
    ending: bool = False
    judged: Failure | None = None  # why we ended it ourselves; beats what its end looks like


@dataclass(frozen=True, slots=True)
class Memory:
    """A GPU's memory: MiB in use, seconds since that changed, and for how long it has not been settled."""

    used_mib: Maybe[float] = UNKNOWN
    stable_s: Maybe[float] = UNKNOWN
    unsettled_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """Why engines cannot start yet: `models` by engine. An empty string and a missing engine mean that they can."""

    runtime: str = ""
    models: Mapping[str, str] = field(default_factory=dict)
    runtime_idle: bool = False  # its unit is neither running nor failed

    def wants(self, desired: Desired) -> str:
        """What an instance waits for."""
        return self.runtime or self.models.get(desired.engine, "")


class Verb(enum.Enum):
    """What the supervisor can do."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    AGAIN = "again"
    HOLD = "hold"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class Action:
    """One step, for an instance (empty for the runtime), with the sentence that goes to the journal."""

    verb: Verb
    instance: str
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What an instance is, for people: `state` is a word of the fleet file, `next` what will happen by itself."""

    state: str
    reason: str = ""
    cause: str = ""
    next: str = ""
    not_before: float | None = None
    changed: str = ""
    suspect: bool = False  # it serves, and may hang


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a plan is made of. `recent` is the age in seconds of the last action for each instance.

    `memory` is known by GPU as `Desired.gpus` names them. `inflight` are the calls that the gateway has open at each
    instance, UNKNOWN as a whole where there is no gateway to drain; `draining` says for how many seconds each instance
    has been shown as draining. `laid` are the instances whose unit has been given what is changed about their next
    start.
    """

    desired: Sequence[Desired]
    seen: Mapping[str, Seen]
    holds: Mapping[str, tuple[str, str]]  # instance -> (cause, reason)
    records: Mapping[str, Record]
    readiness: Readiness
    limits: Restart
    now: float
    recent: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, Memory] = field(default_factory=dict)
    inflight: Maybe[Mapping[str, Maybe[int]]] = UNKNOWN
    draining: Mapping[str, float] = field(default_factory=dict)
    drain_s: float = 60.0
    laid: frozenset[str] = frozenset()

    def of(self, instance: str) -> Seen:
        """What is seen of an instance; UNKNOWN when nothing is."""
        return self.seen.get(instance, Seen())

    def record(self, instance: str) -> Record:
        """What is remembered of it."""
        return self.records.get(instance, Record())

    def acted(self, instance: str) -> bool:
        """Whether a request for it is so young that its effect may not show yet."""
        return self.recent.get(instance, REPEAT_S) < REPEAT_S


@dataclass(frozen=True, slots=True)
class Plan:
    """A view of every instance whose state is known, and the actions in their order."""

    views: Mapping[str, View]
    actions: tuple[Action, ...]


def plan(situation: Situation) -> Plan:
    """What everything is and what is to be done now."""
    views: dict[str, View] = {}
    actions: list[Action] = []
    starting: list[Desired] = [d for d in situation.desired if _is_busy(situation, d)]
    for desired in situation.desired:
        if situation.of(desired.instance).unit is UnitState.UNKNOWN:
            continue
        view, action = _one(situation, desired, starting)
        views[desired.instance] = replace(view, changed=situation.record(desired.instance).ladder.told)
        if view.state == "draining" and situation.record(desired.instance).wanted:  # it is about to start
            starting.append(desired)
        if action is None or (situation.acted(desired.instance) and action.verb is not Verb.HOLD):
            continue
        actions.append(action)
        if action.verb in (Verb.START, Verb.RESTART, Verb.AGAIN):
            starting.append(desired)
    wanted = {desired.instance for desired in situation.desired}
    for instance in sorted(set(situation.seen) - wanted):
        leftover = _leftover(situation, instance)
        if leftover is not None:
            views[instance], drop = leftover
            actions += [drop] if drop is not None and not situation.acted(instance) else []
    return Plan(views, (*actions, *_runtime(situation)))


def _one(s: Situation, desired: Desired, starting: Sequence[Desired]) -> tuple[View, Action | None]:
    seen, record, instance = s.of(desired.instance), s.record(desired.instance), desired.instance
    if instance in s.holds:
        cause, reason = s.holds[instance]
        view = View("held", reason, cause, f"llm-appliance resume {instance}")
        return view, Action(Verb.STOP, instance, f"held: {reason}", cause) if seen.unit in RUNNING else None
    if record.hold and seen.unit is not UnitState.UP:
        view = View("held", record.hold, record.cause, f"llm-appliance resume {instance}")
        return view, Action(Verb.HOLD, instance, record.hold, record.cause)
    if seen.unit is UnitState.UP:
        return _up(s, desired, starting)
    if seen.unit is UnitState.STARTING:
        view = View("starting", seen.message or seen.phase, seen.phase if seen.phase == "compiling" else "starting")
        again = record.wanted and record.over == seen.run
        return view, Action(Verb.RESTART, instance, record.wanted) if again else None
    if seen.unit is UnitState.QUEUED:
        return View("waiting", "systemd has queued its start"), None
    if seen.unit is UnitState.STOPPING:
        return View("restarting" if record.wanted else "stopped", record.wanted or "it is stopping", record.cause), None
    return _down(s, desired, starting)


def _up(s: Situation, desired: Desired, starting: Sequence[Desired]) -> tuple[View, Action | None]:
    """It serves; a wish for another run is a voluntary restart."""
    seen, record = s.of(desired.instance), s.record(desired.instance)
    if record.drained and not record.wanted:
        return View("draining", record.drained, "draining", f"llm-appliance undrain {desired.instance}"), None
    if not record.wanted:
        changed = seen.digest is not UNKNOWN and seen.digest != desired.digest
        return View("serving", next="llm-appliance apply restarts it with the changed configuration" * changed), None
    obstacle = s.readiness.wants(desired) or _sibling_down(s, desired, starting) or _turn(desired, starting)
    if obstacle:
        return View("serving", next=f"restart ({record.wanted}) after: {obstacle}"), None
    open_ = _open_calls(s, desired)
    if open_:
        return View("draining", record.wanted, "draining", f"restart after: {open_}"), None
    return View("restarting", record.wanted), Action(Verb.RESTART, desired.instance, record.wanted)


def _down(s: Situation, desired: Desired, starting: Sequence[Desired]) -> tuple[View, Action | None]:
    """It does not run: start it, wait with it, or leave it."""
    seen, record, instance = s.of(desired.instance), s.record(desired.instance), desired.instance
    why = record.wanted or _why_start(seen)
    if not why:
        text = f"its unit was stopped by hand; `llm-appliance restart {instance}` starts it"
        return View("stopped", text), None
    obstacle = s.readiness.wants(desired)
    if obstacle:
        return View("waiting", obstacle, next="starts by itself then"), _cut_net(s, seen, instance, obstacle)
    due = due_in_s(record, s.limits, s.now)
    if due > 0:
        later = f"restart in {format_duration(max(due, 1.0))}"
        view = View("restarting", record.reason, record.cause, later, record.not_before)
        early = due > NET_S - seen.age_s - NET_MARGIN_S
        return view, _cut_net(s, seen, instance, later) if early else None
    obstacle = _turn(desired, starting) or _unsettled(s, desired)
    if obstacle:
        view = View("waiting", obstacle, next="starts by itself then")
        return view, _cut_net(s, seen, instance, obstacle) if seen.age_s >= NET_S / 2.0 else None
    verb = _way(s, desired)
    state = "restarting" if record.cause and record.wanted else "starting"
    return View(state, why, record.cause), Action(verb, instance, why, record.cause)


def _way(s: Situation, desired: Desired) -> Verb:
    """How an engine that ended is started."""
    seen, record = s.of(desired.instance), s.record(desired.instance)
    if seen.unit is not UnitState.OVER:
        return Verb.RESTART if seen.unit is UnitState.NET else Verb.START
    by_death = record.over == seen.run and record.not_before is not None
    same = seen.digest == desired.digest and desired.instance in s.laid
    return Verb.AGAIN if by_death and same and seen.left_s >= WORD_S else Verb.RESTART


def _cut_net(s: Situation, seen: Seen, instance: str, reason: str) -> Action | None:
    """systemd's own restart would come before the decided one: stop the unit, the wish stays on record.

    Not at once: a unit that was stopped tells of no end, and the kernel's line that explains this one may be late.
    """
    if seen.unit is not UnitState.NET or seen.age_s <= BURST_AHEAD_S:
        return None
    return Action(Verb.STOP, instance, f"not before: {reason}", s.record(instance).cause)


def _why_start(seen: Seen) -> str:
    """Why a unit that is down and that nobody asked for is to be started; empty: it was stopped by hand."""
    if seen.unit in ENDED:
        return "its unit failed and nothing holds it"
    if seen.skipped:
        return "what it waited for is there"
    return "first start" if not seen.run else ""


def _is_busy(s: Situation, desired: Desired) -> bool:
    """Whether an instance is starting, or was just asked to."""
    unit = s.of(desired.instance).unit
    if unit in (UnitState.STARTING, UnitState.QUEUED):
        return True
    if unit is UnitState.STOPPING and s.record(desired.instance).wanted:
        return True
    return s.acted(desired.instance) and unit is not UnitState.UP and desired.instance not in s.holds


def _turn(desired: Desired, starting: Sequence[Desired]) -> str:
    """Which other start is in the way of this one; empty when none is."""
    for other in starting:
        if other.instance != desired.instance and share(desired.gpus, other.gpus):
            return f"{other.instance} is starting"
    return ""


def _unsettled(s: Situation, desired: Desired) -> str:
    """Which GPU's memory still changes; empty when none is seen to, or when it has for too long to be waited for."""
    gpus = sorted(s.memory) if ANY_GPU in desired.gpus else sorted(desired.gpus)
    for gpu in gpus:
        memory = s.memory.get(gpu, Memory())
        if memory.stable_s is not UNKNOWN and memory.stable_s < STABLE_S and memory.unsettled_s < MEMORY_WAIT_S:
            used = "" if memory.used_mib is UNKNOWN else f", {memory.used_mib:.0f} MiB in use"
            return f"the memory of GPU {gpu} still changes{used}"
    return ""


def _open_calls(s: Situation, desired: Desired) -> str:
    """What an engine finishes before a restart, where another replica takes its calls; empty when nothing is left."""
    others = [d for d in s.desired if d.engine == desired.engine and d.instance != desired.instance]
    serves = any(s.of(d.instance).unit is UnitState.UP and d.instance not in s.holds for d in others)
    if s.inflight is UNKNOWN or not serves:
        return ""
    waited, calls = s.draining.get(desired.instance, 0.0), s.inflight.get(desired.instance, UNKNOWN)
    if waited >= s.drain_s or (calls == 0 and waited >= SETTLE_S):
        return ""
    return "its open calls" if calls is UNKNOWN else f"{calls} open calls"


def share(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether two engines may meet on a GPU, or on the CPU."""
    if ANY_GPU in one or ANY_GPU in other or not (one or other):
        return True
    return bool(one & other)


def _sibling_down(s: Situation, desired: Desired, starting: Sequence[Desired]) -> str:
    """A replica of the same model that does not serve though it should; empty when there is none."""
    for other in starting:
        if other.engine == desired.engine and other.instance != desired.instance:
            return f"replica {other.instance} is starting"
    for other in s.desired:
        if other.engine == desired.engine and other.instance not in (desired.instance, *s.holds):
            seen = s.of(other.instance)
            by_hand = seen.unit is UnitState.DOWN and not s.record(other.instance).wanted
            if other.instance in s.draining:
                return f"replica {other.instance} drains"
            if (seen.unit is not UnitState.UP and not by_hand) or s.acted(other.instance):
                return f"replica {other.instance} does not serve yet"
    return ""


def _leftover(s: Situation, instance: str) -> tuple[View, Action | None] | None:
    """An engine that runs and that the configuration does not name; None when it does not run."""
    seen, record = s.of(instance), s.record(instance)
    if seen.unit not in RUNNING:
        return None
    state = "serving" if seen.unit is UnitState.UP else "starting"
    view = View(state, "the configuration does not name it any more", next="stops with the next apply")
    return view, Action(Verb.STOP, instance, record.drop) if record.drop else None


def _runtime(s: Situation) -> tuple[Action, ...]:
    """Have the runtime completed when an engine waits for it and nobody works on it."""
    missing = sorted({s.readiness.wants(d) for d in s.desired if d.instance not in s.holds} - {""})
    if not missing or not s.readiness.runtime_idle or s.acted(""):
        return ()
    return (Action(Verb.RUNTIME, "", missing[0]),)
