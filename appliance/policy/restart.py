"""The ledger of an engine's deaths, and what it allows: a restart at an instant, or a hold.

    delay of the n-th restart within the window = min(backoff * 2**(n-1), backoff_max), stretched by up to a fifth

It shall slow down an engine that dies again and again, so it counts from when the run that died began to serve: one
that served for longer is restarted at once, one that never served waits from its end on.

`budget` restarts of one engine within `window` are allowed; the death after that holds it. Hangs count there as well
and have a shorter count of their own (`ladder.HANGS`). What waits for others to make room waits a few times (`WAITS`)
and is held then, by name of who did not. A death is entered once, by
its run, however often it is seen and whoever restarted the engine meanwhile. Times are wall-clock seconds, since the
ledger outlives a boot; what lies further ahead than a window reaches back was written before the clock was set back,
nobody knows how long ago, and does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from appliance.config.model import Restart
from appliance.quantity import UNKNOWN, Maybe, format_duration

from .causes import Remedy
from .failure import Failure
from .hardware import LADDER_S, Step
from .ladder import HANG_S, REPEAT_S, Ladder

JITTER = 0.2  # engines that died together shall not start together
WAIT_S = 30.0  # a WAIT remedy's pause at least: memory and other programs need that long to settle
# How often a WAIT remedy may be tried within the window. Who holds a GPU's memory, or measures it at the same time, may
# be done in some minutes; memory that the host lacks and shared memory that is full are not given back by waiting.
WAITS = {"gpu-memory-taken": 5, "gpu-memory-leaked": 2, "start-contention": 5, "gpu-lost": 3, "nvlink-fault": 3}
KEPT = 64  # deaths kept of each engine, whatever the window
PAST = 8  # names of ends that are kept when the deaths are not; what shows old ends shows the last one


@dataclass(frozen=True, slots=True)
class Death:
    """An end that nobody asked for; `key` and `start` are systemd's and the launcher's names of the run, `killed` is
    `failure.Failure`'s."""

    at: float
    key: str
    cause: str
    start: str = ""
    killed: bool = False


@dataclass(frozen=True, slots=True)
class GpuStep:
    """How far up its ladder a GPU was at an instant; `step` is `hardware.Step`'s number."""

    pci: str
    step: int
    at: float


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of one engine.

    `wanted` says why a run shall begin in place of the run `over` (empty: it never ran); it is fulfilled when another
    run is seen. So what was decided survives the supervisor, and is not done twice. `not_before` delays it. `hold` is
    a hold that was decided and is not on the disk yet, `drop` why a unit that the configuration left out is to stop.
    `drained` is why an operator wants no new calls for it, through all its runs. `past` are names of runs whose ends
    are no news: they were told before somebody had the record cleared, and units and verdicts show an old end for long.
    """

    deaths: tuple[Death, ...] = ()
    wanted: str = ""
    over: str = ""
    not_before: float | None = None
    hold: str = ""
    drop: str = ""
    drained: str = ""
    past: tuple[str, ...] = ()
    cause: str = ""
    reason: str = ""
    ladder: Ladder = field(default_factory=Ladder)
    gpu_steps: tuple[GpuStep, ...] = ()

    def within(self, window_s: float, now: float) -> tuple[Death, ...]:
        """The deaths that still count."""
        return tuple(death for death in self.deaths if abs(death.at - now) < window_s)

    def knows(self, run: str) -> bool:
        """Whether the end of a run was entered already, by either of its names."""
        return run in self.past or any(run in (death.key, death.start) for death in self.deaths)


def entered(
    record: Record,
    death: Death,
    failure: Failure,
    limits: Restart,
    *,
    now: float,
    jitter: float,
    served: Maybe[float] = UNKNOWN,
    least_s: float = 0.0,
) -> Record:
    """A death enters the record, with the restart or the hold that follows from it. `jitter` is 0..1; `served` is when
    the run began to serve, and no restart comes before `least_s`."""
    kept = replace(counted(record, death, failure, limits, now=now), wanted="", not_before=None)
    deaths = kept.within(limits.window, now)
    hold = _hold(deaths, failure, limits)
    if hold:
        return replace(kept, hold=hold)
    delay = backoff_s(len(deaths), limits, jitter)
    if failure.remedy is Remedy.WAIT:
        delay = max(delay, WAIT_S)
    elif served is not UNKNOWN:
        delay = max(delay - max(now - served, 0.0), least_s)
    return replace(kept, wanted=f"{failure.cause}: {failure.reason}", over=death.key, not_before=now + delay)


def counted(record: Record, death: Death, failure: Failure, limits: Restart, *, now: float) -> Record:
    """A death that nothing follows from: the run was to be replaced anyway, or has been replaced already."""
    remembered = record.within(max(limits.window, REPEAT_S, HANG_S), now)
    deaths = (*remembered, replace(death, at=min(now, death.at)))[-KEPT:]
    steps = tuple(step for step in record.gpu_steps if abs(step.at - now) < LADDER_S)
    if failure.pci and failure.step is not Step.NOTHING:
        steps = (*steps, GpuStep(failure.pci, failure.step.value, now))[-KEPT:]
    return replace(record, deaths=deaths, cause=failure.cause, reason=failure.reason, gpu_steps=steps)


def gpu_steps(records: Iterable[Record], now: float, settled_s: float = 0.0) -> dict[str, Step]:
    """Each GPU's highest step within the day, whichever engine it failed under (`hardware.Past.steps`).

    What is younger than `settled_s` is left out, for those who have seen it themselves.
    """
    found: dict[str, Step] = {}
    for record in records:
        for seen in record.gpu_steps:
            if now - LADDER_S < seen.at <= now - settled_s:
                found[seen.pci] = max(Step(seen.step), found.get(seen.pci, Step.NOTHING))
    return found


def _hold(deaths: tuple[Death, ...], failure: Failure, limits: Restart) -> str:
    """Why the engine is to be held; empty when it may be restarted."""
    window = format_duration(limits.window)
    if failure.remedy in (Remedy.HOLD, Remedy.FIX_HOST, Remedy.REBOOT):
        return failure.reason
    if len(deaths) > limits.budget:
        return (
            f"it died {len(deaths)} times within {window} and the budget is {limits.budget} restarts; "
            f"last: {failure.reason}"
        )
    waits = sum(1 for death in deaths if death.cause == failure.cause)
    if failure.remedy is Remedy.WAIT and waits > WAITS.get(failure.cause, 1):
        times = "the second time" if waits == 2 else f"{waits} times"
        return f"{times} within {window}: {failure.reason}"
    return ""


def backoff_s(count: int, limits: Restart, jitter: float) -> float:
    """The pause before the `count`-th restart."""
    doubled = limits.backoff * 2.0 ** min(max(count - 1, 0), 30)
    return min(doubled, limits.backoff_max) * (1.0 + JITTER * jitter)


def due_in_s(record: Record, limits: Restart, now: float) -> float:
    """Seconds until the record's restart is due; 0 when it is, when none is delayed, and after a clock was set back."""
    if record.not_before is None:
        return 0.0
    longest = max(limits.backoff_max, WAIT_S) * (1.0 + JITTER)
    left = record.not_before - now
    return left if 0.0 < left <= longest else 0.0


def asked(record: Record, why: str, over: str) -> Record:
    """Somebody wants a run to begin in place of the run `over`, now."""
    return replace(record, wanted=why, over=over, not_before=None, drop="")


def forgiven(record: Record, why: str, over: str) -> Record:
    """A resumed engine begins with a clean record; what is known of its start and of its GPUs is kept."""
    return replace(
        cleared(record),
        wanted=why,
        over=over,
        ladder=record.ladder,
        gpu_steps=record.gpu_steps,
        drained=record.drained,
    )


def cleared(record: Record) -> Record:
    """What is still known of an engine when all else is forgotten: which ends were told."""
    ends = (name for death in record.deaths for name in (death.key, death.start) if name)
    return Record(past=tuple(dict.fromkeys((*record.past, *ends)))[-PAST:])


def fulfilled(record: Record) -> Record:
    """The run that was wanted has begun."""
    return replace(record, wanted="", over="", not_before=None)
