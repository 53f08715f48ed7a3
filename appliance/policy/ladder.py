"""The ladder: what is changed about an engine's start when the same start would fail, or hang, again.

    cause              rungs, each tried once in this order
    kv-none            gpu_memory_utilization +0.03 up to 0.95; never after a rung that lowered it, nor with a neighbour
    cuda-oom-warmup    max_num_seqs halved; gpu_memory_utilization -0.02; then held
    cuda-oom-serving   gpu_memory_utilization -0.03; max_num_batched_tokens halved; the same two; max_num_seqs halved;
                       enforce_eager
    kv-too-small       max_model_len lowered to what vLLM says there is room for, where the operator's min_model_len
                       allows it; a shorter context is his to choose (max_model_len = "auto" says so too)
    compile-cache      the compile caches are moved away
    hang-*             2nd within an hour: NCCL tells what it does; 3rd: one mitigation, by topology; 4th: held

"No room for a KV cache" and "out of memory in the warm-up" need opposite steps, and are never answered in turn. Memory
that ran out is first answered by a plain restart: a rung follows when it comes again within `REPEAT_S`.

Laws: no value passes its floor or ceiling; a ladder has an end; what an operator wrote is where it starts from; what is
changed is always told. A rung belongs to one configuration, one runtime and one set of GPUs (`Place`): with another it
is forgotten.

The way up: an engine that served `CLIMB_S` without the trouble is to do without its last rung at its next start. It is
not restarted for that: streams are worth more than the last percent of a KV cache. Where that start meets the trouble
again, the rung is back at once and the next trial waits twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from appliance.config.model import Restart
from appliance.quantity import UNKNOWN, Maybe

from .causes import Remedy
from .failure import Failure
from .flagnumbers import batch_limit, number

REPEAT_S = 6 * 3600.0  # memory that ran out twice within so long will run out again
HANG_S = 3600.0
HANGS = 4  # the hang within HANG_S that is held
CLIMB_S = 86400.0
CLIMB_MAX_S = 16 * CLIMB_S
DEBUG_HANG, MITIGATED_HANG = 2, 3

# vLLM 0.32's own values, for flags that nobody set. Large GPUs other than the A100 get 1024 sequences and 8192 tokens
# or more; the smaller figures are safe everywhere, since rungs lower them.
DEFAULTS: Mapping[str, float] = {
    "gpu_memory_utilization": 0.92,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
}
UTILISATION_MAX, UTILISATION_MIN = 0.95, 0.80
SEQS_MIN, TOKENS_MIN = 16, 512
FLAGS = frozenset({*DEFAULTS, "enforce_eager", "disable_custom_all_reduce", "max_model_len"})
FITS = "max-model-len="  # the hint that says for which context there is room
LENGTH_STEP = 256
ENV = frozenset({"NCCL_DEBUG", "NCCL_P2P_DISABLE", "NCCL_CUMEM_ENABLE"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rung holds: configuration, runtime (`VERSION-DEVICE`), GPUs."""

    digest: str = ""
    runtime: str = ""
    gpus: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether somebody said it: a launcher of an older release does not say all."""
        return bool(self.digest and self.runtime)


@dataclass(frozen=True, slots=True)
class Rung:
    """One change, why, and since when (seconds since the epoch). `caches`: compile caches are moved away once."""

    cause: str
    told: str
    at: float
    flags: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    caches: bool = False


@dataclass(frozen=True, slots=True)
class Ladder:
    """How far down an engine stands. `dropped` is the rung that the next start does without, since `dropped_at`.

    `trials` counts those that failed.
    """

    place: Place = field(default_factory=Place)
    rungs: tuple[Rung, ...] = ()
    dropped: Rung | None = None
    dropped_at: float = 0.0
    trials: int = 0

    @property
    def told(self) -> str:
        """What is changed for as long as it lasts, in a sentence; empty when nothing is. Caches are moved but once."""
        return "; ".join(f"{rung.told} ({rung.cause})" for rung in self.rungs if not rung.caches)

    @property
    def flags(self) -> dict[str, object]:
        """vLLM's flags over the configured ones; the last rung that sets one wins."""
        return {flag: value for rung in self.rungs for flag, value in rung.flags.items()}

    @property
    def env(self) -> dict[str, str]:
        """Environment over the configured one."""
        return {key: value for rung in self.rungs for key, value in rung.env.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an engine was started with. `flags` are those in force, defaults that nobody set left out."""

    place: Place = field(default_factory=Place)
    flags: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    cuda: bool = False
    neighbours: bool = False  # another engine of ours uses one of its GPUs
    nvlink: Maybe[bool] = UNKNOWN
    min_model_len: int = 0  # below which the operator wants no context; 0: none is chosen for him
    hint: str = ""  # what the log says beyond the cause


@dataclass(frozen=True, slots=True)
class Answer:
    """A failure with the remedy that the ladder leaves it, and the ladder after it."""

    failure: Failure
    ladder: Ladder


def answered(
    failure: Failure, ladder: Ladder, facts: Facts, limits: Restart, *, before: Sequence[tuple[float, str]], now: float
) -> Answer:
    """The next rung for a failure where there is one that helps; else the failure, held where the ladder ends.

    `before` are the earlier deaths: instant and cause.
    """
    standing = kept(ladder, facts)
    if failure.remedy not in (Remedy.RESTART, Remedy.HOLD):
        return Answer(failure, standing)
    hang = failure.cause.startswith("hang-")
    if hang:
        hangs = 1 + sum(1 for at, cause in before if cause.startswith("hang-") and abs(now - at) < HANG_S)
        if hangs >= HANGS:
            text = f"{failure.reason}; the {_nth(hangs)} hang within an hour{_with(standing)}"
            return Answer(replace(failure, remedy=Remedy.HOLD, reason=text), standing)
        if failure.cause == "hang-init" and hangs > 1:  # the state of a GPU, no setting: another start hangs as well
            text = f"{failure.reason}; the start after a hang hangs too: reset the GPUs or reboot"
            return Answer(replace(failure, remedy=Remedy.REBOOT, reason=text), standing)
    if not limits.oom_ladder or not facts.place.known:
        return Answer(failure, standing)
    if standing.dropped is not None and standing.dropped.cause == failure.cause:
        back = replace(standing.dropped, at=now)
        again = Ladder(facts.place, (*standing.rungs, back), trials=standing.trials + 1)
        return _changed(failure, again, back)
    rung: Rung | str
    if hang:
        rung = _of_hang(failure.cause, hangs, standing, facts, now)
    else:
        repeated = any(cause == failure.cause and abs(now - at) < REPEAT_S for at, cause in before)
        rung = _of_memory(failure.cause, repeated, standing, facts, now)
    if isinstance(rung, Rung):
        return _changed(failure, Ladder(facts.place, (*standing.rungs, rung), trials=standing.trials), rung)
    if rung:
        return Answer(replace(failure, remedy=Remedy.HOLD, reason=f"{failure.reason}; {rung}"), standing)
    return Answer(failure, standing)


def kept(ladder: Ladder, facts: Facts) -> Ladder:
    """The ladder that holds for a start with these facts: an empty one where it was learned for another place."""
    if not facts.place.known or ladder.place == facts.place:
        return ladder
    return Ladder(facts.place) if ladder.rungs or ladder.dropped is not None else ladder


def climbed(ladder: Ladder, *, ready: Maybe[float], troubles: Sequence[tuple[float, str]], now: float) -> Ladder | None:
    """The ladder whose last rung the next start shall do without; None when it is not time.

    `ready` is when the present run began to serve, `troubles` are the deaths. A trial ends well when a start without
    the rung has served as long; the rung is forgotten then, and the next one's turn comes.
    """
    tried = ladder.dropped if ladder.dropped is not None else ladder.rungs[-1] if ladder.rungs else None
    if tried is None or ready is UNKNOWN or (ladder.dropped is not None and ready <= ladder.dropped_at):
        return None
    quiet_s = min(CLIMB_S * 2.0 ** min(ladder.trials, 30), CLIMB_MAX_S)
    since = max(ready, tried.at, *(at for at, cause in troubles if cause == tried.cause))
    if now - since < quiet_s:
        return None
    if not ladder.rungs:
        return Ladder(ladder.place)
    trials = ladder.trials if ladder.dropped is None else 0  # those of another rung
    return Ladder(ladder.place, ladder.rungs[:-1], ladder.rungs[-1], now, trials)


def _changed(failure: Failure, ladder: Ladder, rung: Rung) -> Answer:
    reason = f"{failure.reason}; it starts with a change: {rung.told}"
    return Answer(replace(failure, remedy=Remedy.RESTART_CHANGED, reason=reason), ladder)


def _with(ladder: Ladder) -> str:
    return f", in force: {ladder.told}" if ladder.told else ""


# --- memory -----------------------------------------------------------------------------------------------------------


def _of_memory(cause: str, repeated: bool, ladder: Ladder, facts: Facts, now: float) -> Rung | str:
    """The next rung, or why there is none and the engine is held; empty: none, and the remedy stays as it is."""
    if facts.hint == "compile-cache":
        if any(rung.caches for rung in ladder.rungs):
            return ""
        return Rung(cause, "compile caches moved away", now, caches=True)
    if cause == "kv-none" and facts.cuda:
        return _room(cause, ladder, facts, now)
    if cause == "kv-too-small":
        return _shorter(cause, ladder, facts, now)
    steps = {"cuda-oom-warmup": _WARMUP, "cuda-oom-serving": _SERVING}.get(cause)
    if steps is None or not repeated:
        return ""
    taken = sum(1 for rung in ladder.rungs if rung.cause == cause)
    raised = any(rung.cause == "kv-none" for rung in ladder.rungs)
    if raised and cause == "cuda-oom-warmup":
        return "more memory for it fails in the warm-up and less leaves no room for a KV cache"
    for step in steps[taken:]:
        if (change := step(_now(ladder, facts))) is not None:
            return Rung(cause, _say(change, ladder, facts), now, flags=change)
    return f"the ladder has no further rung{_with(ladder)}" if cause == "cuda-oom-warmup" else ""


def _room(cause: str, ladder: Ladder, facts: Facts, now: float) -> Rung | str:
    """More memory for the engine, once; nothing that the cause's own remedy does not do otherwise."""
    lowered = any("gpu_memory_utilization" in rung.flags for rung in ladder.rungs)
    given = _number(_now(ladder, facts), "gpu_memory_utilization")
    if lowered or facts.neighbours or given is None or "kv_cache_memory_bytes" in facts.flags:
        return ""
    wanted = round(min(given + 0.03, UTILISATION_MAX), 4)
    if wanted - given < 0.0199:
        return ""
    change: dict[str, object] = {"gpu_memory_utilization": wanted}
    return Rung(cause, _say(change, ladder, facts), now, flags=change)


def _shorter(cause: str, ladder: Ladder, facts: Facts, now: float) -> Rung | str:
    """The context for which there is room, once, and never below what the operator wants."""
    told = facts.hint.removeprefix(FITS)
    room = int(told) if facts.hint.startswith(FITS) and told.isdecimal() else 0
    if not 0 < facts.min_model_len <= room or any(rung.cause == cause for rung in ladder.rungs):
        return ""
    length = max(room // LENGTH_STEP * LENGTH_STEP, facts.min_model_len)
    change: dict[str, object] = {"max_model_len": length}
    return Rung(cause, _say(change, ladder, facts), now, flags=change)


Step = Callable[[Mapping[str, object]], "dict[str, object] | None"]


def _less_memory(by: float) -> Step:
    def step(flags: Mapping[str, object]) -> dict[str, object] | None:
        given = _number(flags, "gpu_memory_utilization")
        if given is None or given - by < UTILISATION_MIN - 1e-9 or "kv_cache_memory_bytes" in flags:
            return None
        return {"gpu_memory_utilization": round(given - by, 4)}

    return step


def _half(flag: str, floor: int) -> Step:
    def step(flags: Mapping[str, object]) -> dict[str, object] | None:
        given = number(flags, flag)
        # vLLM refuses fewer tokens a step than sequences; without chunked prefill it refuses fewer than the context.
        if flag == "max_num_batched_tokens":
            least = max(floor, batch_limit(flags) or floor)
            if given is None or flags.get("enable_chunked_prefill") is False or given // 2 < least:
                return None
        if given is None or given // 2 < floor:
            return None
        return {flag: given // 2}

    return step


def _eager(flags: Mapping[str, object]) -> dict[str, object] | None:
    return None if flags.get("enforce_eager") is True else {"enforce_eager": True}


_TOKENS, _SEQS = _half("max_num_batched_tokens", TOKENS_MIN), _half("max_num_seqs", SEQS_MIN)
_WARMUP: tuple[Step, ...] = (_SEQS, _less_memory(0.02))
_SERVING: tuple[Step, ...] = (_less_memory(0.03), _TOKENS, _less_memory(0.03), _TOKENS, _SEQS, _eager)


# --- hangs ------------------------------------------------------------------------------------------------------------


def _of_hang(cause: str, hangs: int, ladder: Ladder, facts: Facts, now: float) -> Rung | str:
    """The first is answered by a plain restart; a scheduler or a start that is stuck has no setting that helps."""
    many = len(facts.place.gpus) > 1
    if not facts.cuda or cause not in ("hang-collective", "hang-rank-absent", "hang-kernel", "hang-init"):
        return ""
    if hangs == DEBUG_HANG and many and facts.env.get("NCCL_DEBUG") is None and "NCCL_DEBUG" not in ladder.env:
        return Rung(cause, "NCCL_DEBUG=INFO", now, env={"NCCL_DEBUG": "INFO"})
    if hangs != MITIGATED_HANG:
        return ""
    flags, env = _now(ladder, facts), {**facts.env, **ladder.env}
    if many and facts.nvlink is not False and flags.get("disable_custom_all_reduce") is not True:
        return Rung(cause, "disable_custom_all_reduce = true", now, flags={"disable_custom_all_reduce": True})
    if many and facts.nvlink is not True and "NCCL_P2P_DISABLE" not in env:
        return Rung(cause, "NCCL_P2P_DISABLE=1", now, env={"NCCL_P2P_DISABLE": "1"})
    if many and "NCCL_CUMEM_ENABLE" not in env:
        return Rung(cause, "NCCL_CUMEM_ENABLE=0", now, env={"NCCL_CUMEM_ENABLE": "0"})
    return Rung(cause, "enforce_eager = true", now, flags={"enforce_eager": True}) if _eager(flags) else ""


# --- values -----------------------------------------------------------------------------------------------------------


def _now(ladder: Ladder, facts: Facts) -> dict[str, object]:
    """The flags that a start would use now."""
    return {**DEFAULTS, **facts.flags, **ladder.flags}


def _number(flags: Mapping[str, object], flag: str) -> float | None:
    value = flags.get(flag)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _say(change: Mapping[str, object], ladder: Ladder, facts: Facts) -> str:
    """What is changed, and from what where that is known: some of vLLM's own values depend on the GPU."""
    sure = {"gpu_memory_utilization": DEFAULTS["gpu_memory_utilization"], **facts.flags, **ladder.flags}
    return ", ".join(
        f"{flag} {_show(sure[flag])} -> {_show(value)}" if flag in sure else f"{flag} = {_show(value)}"
        for flag, value in change.items()
    )


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _nth(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
