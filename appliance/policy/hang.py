"""Whether a silent engine is hung, by how long it is silent, the witnesses, and what may excuse it.

    silent for        with                                                          verdict
    suspect           demand                                                        suspect
    confirm           a second witness (spin, asymmetry, a stopped process, or      hung
                      vLLM's notices and any other) and no excuse
    confirm_idle_gpu  dead air or livelock, and no excuse                           hung
    confirm_blind     nothing usable, and no excuse                                 hung

An excuse sets a later limit, it never cancels: power of work `long_step`, and that only while the longest prompt could
explain it; compilers `compile_allowance`; a grammar, while no GPU does anything, `grammar_allowance`; the first request
after a start three times all limits; an unstarted prompt three times its usual time. Every excuse is told in the
reason, since nobody could tune the limits otherwise. One state is no silence at all: an engine that by its own count
has ended all that it was sent, and in which no witness sees anything, waits for a client that does not read.

Why 90 s only with a second witness: kernels are compiled for up to 70 s while serving (dynamo#14735), and a chunk of a
prefill takes well under 30 s and moves a gauge. Why 240 s: evidence must be taken before vLLM's own limit of 300 s
ends the workers. vLLM's own limit is for several ranks alone: one rank hangs for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.config.model import Hang
from appliance.quantity import UNKNOWN, Maybe, format_duration

from .witness import Testimony

FIRST_REQUEST = 3.0  # times all limits, until a request was finished since the start
PROMPT_FACTOR, PROMPT_S = 3.0, 30.0  # of the usual time of a prefill
ROUNDING_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """An engine with work and no progress; `ranks` work on one step together."""

    silent_s: float
    demand: bool
    ranks: int = 1
    on_gpus: bool = True
    running: Maybe[float] = UNKNOWN
    waiting: Maybe[float] = UNKNOWN
    inflight: Maybe[int] = UNKNOWN
    structured: Maybe[int] = UNKNOWN  # requests with a grammar
    prompt_tokens: Maybe[int] = UNKNOWN  # of the largest request without a token
    prefill_rate: Maybe[float] = UNKNOWN
    deferred: Maybe[float] = UNKNOWN  # requests that wait for a transfer
    drained: bool = False  # the engine has ended all that it was sent, by its own count
    finished: bool = True  # a request was finished since the start
    scraped: bool = True  # the engine's metrics are known
    scrape_error: str = ""


@dataclass(frozen=True, slots=True)
class Excuse:
    """What may explain a silence, until `limit_s`; `cause` is what the engine then does."""

    cause: str
    limit_s: float
    words: str


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a silence amounts to: `ok`, `suspect` or `hung`; the cause, why, and the facts."""

    verdict: str
    cause: str
    reason: str
    evidence: tuple[str, ...] = ()


def opinion(silence: Silence, seen: Testimony, limits: Hang) -> Opinion:
    """Judge a silence."""
    limit, why = _limit(silence, seen, limits)
    factor = 1.0 if silence.finished else FIRST_REQUEST
    limit, suspect = limit * factor, limits.suspect * factor
    excuses = sorted(_excuses(silence, seen, limits), key=lambda excuse: -excuse.limit_s)
    excused = excuses[0] if excuses and excuses[0].limit_s > limit else None
    silent = silence.silent_s + ROUNDING_S
    if silence.drained and not silence.scrape_error and not _speaks(seen):
        told = f"the engine has ended all it was sent; a client does not read its answer ({_work(silence)})"
        return Opinion("ok", "slow", told)
    told = f"no progress for {format_duration(silence.silent_s)} with {_work(silence)}"
    facts = _facts(silence, seen, told)
    first = "" if silence.finished else "; no request was finished since the start, so limits are three times as long"
    if silent < suspect:
        return Opinion("ok", excuses[0].cause if excuses else "", told)
    if excused is not None and silent < excused.limit_s:
        until = f"{excused.words}: not judged before {format_duration(excused.limit_s)}"
        return Opinion("ok" if silent < limit else "suspect", excused.cause, f"{told}; {until}{first}", facts)
    if silence.demand and silent >= (limit if excused is None else excused.limit_s):
        spent = f", and {excused.words} explains no more" if excused is not None else ""
        cause = _class(silence, seen)
        return Opinion("hung", cause, f"{told}; {why}{spent}{first}", facts)
    return Opinion("suspect", "slow", f"{told}; {why}: certain after {format_duration(limit)}{first}", facts)


def _limit(silence: Silence, seen: Testimony, limits: Hang) -> tuple[float, str]:
    """The silence after which it is certain, excuses aside, and the witness that makes it so."""
    quiet = seen.dead_air or seen.livelock
    others = seen.spin or seen.asymmetry or seen.livelock or seen.dead_air or bool(seen.stuck)
    if seen.asymmetry:
        return limits.confirm, "one GPU does nothing while another spins"
    if seen.spin:
        return limits.confirm, "the GPUs spin without doing work"
    if seen.stopped:
        return limits.confirm, seen.stuck
    if seen.notices and others:
        return limits.confirm, "the engine core waits for a worker that does not answer"
    if quiet and not silence.scraped:
        return limits.confirm_blind, "the GPUs do nothing, and the engine's metrics are not known"
    if quiet and _moves_data(silence, seen):
        return limits.confirm_blind, "the GPUs do nothing, but data may be on its way to them"
    if seen.livelock:
        return limits.confirm_idle_gpu, "the engine core turns in a loop and the GPUs do nothing"
    if seen.dead_air:
        return limits.confirm_idle_gpu, "the GPUs do nothing"
    return limits.confirm_blind, "no second witness"


def _excuses(silence: Silence, seen: Testimony, limits: Hang) -> list[Excuse]:
    """Everything that speaks against a hang."""
    found = []
    prompt_s = _prompt_s(silence)
    if seen.working:
        long = limits.long_step
        if prompt_s is not UNKNOWN:
            long = min(long, max(prompt_s, limits.confirm_blind))
        found.append(Excuse("busy-prefill", long, "the GPUs draw the power of work"))
    if seen.compiling:
        found.append(Excuse("compiling", limits.compile_allowance, "kernels are being compiled"))
    if (seen.dead_air or seen.livelock) and silence.structured is not UNKNOWN and silence.structured > 0:
        found.append(Excuse("compiling", limits.grammar_allowance, "a request's grammar may be being compiled"))
    if prompt_s is not UNKNOWN and prompt_s > 0.0:
        found.append(Excuse("busy-prefill", min(prompt_s, limits.long_step), "a long prompt is being read"))
    return found


def _prompt_s(silence: Silence) -> Maybe[float]:
    """How long the largest unstarted prompt may take; 0 when none is unstarted, UNKNOWN when nobody can say."""
    if silence.prompt_tokens is UNKNOWN:
        return UNKNOWN
    if silence.prompt_tokens <= 0:
        return 0.0
    if silence.prefill_rate is UNKNOWN or silence.prefill_rate <= 0.0:
        return UNKNOWN
    return PROMPT_FACTOR * silence.prompt_tokens / silence.prefill_rate + PROMPT_S


def _speaks(seen: Testimony) -> bool:
    """Whether any witness says that something goes on in the engine, or that something is stuck."""
    return seen.spin or seen.asymmetry or seen.livelock or seen.notices or seen.full or seen.working or bool(seen.stuck)


def _moves_data(silence: Silence, seen: Testimony) -> bool:
    """Whether requests wait for a KV cache or for weights to come from elsewhere."""
    return seen.transferring or (silence.deferred is not UNKNOWN and silence.deferred > 0)


def _class(silence: Silence, seen: Testimony) -> str:
    """The kind of a hang."""
    several = silence.ranks > 1
    if seen.asymmetry:
        return "hang-rank-absent"
    if seen.stopped or seen.stuck:
        return "hang-rank-absent" if "Worker" in seen.stuck else _of_core(silence, seen)
    if seen.full or seen.working:
        return "hang-collective" if several and not seen.working else "hang-kernel"
    unscheduled = silence.running == 0 and silence.waiting is not UNKNOWN and silence.waiting > 0
    if (seen.livelock or (seen.busy_core and not seen.notices)) and not unscheduled:
        return "hang-livelock"
    if seen.notices and several and not unscheduled:
        return "hang-rank-absent" if seen.dead_air else "hang-collective"
    if seen.dead_air or unscheduled or not (several or silence.on_gpus):
        return "hang-scheduler"
    return "hang-collective" if several else "hang-kernel"


def _of_core(silence: Silence, seen: Testimony) -> str:
    """The core or the API process does not move: the scheduler, unless the GPUs show that a step is under way."""
    if seen.full:
        return "hang-collective" if silence.ranks > 1 else "hang-kernel"
    return "hang-scheduler"


def _work(silence: Silence) -> str:
    if silence.inflight is not UNKNOWN and silence.inflight > 0:
        return f"{silence.inflight} request{'' if silence.inflight == 1 else 's'} at work"
    return "requests at work" if silence.demand else "its last requests given up"


def _facts(silence: Silence, seen: Testimony, told: str) -> tuple[str, ...]:
    """The evidence, a fact each."""
    facts = [told]
    for name, value in (("running", silence.running), ("waiting", silence.waiting)):
        if value is not UNKNOWN:
            facts.append(f"{value:.0f} {name} by the engine's metrics")
    for shown, words in (
        (seen.asymmetry, "one GPU idle, another at full utilisation"),
        (seen.spin, "all GPUs at full utilisation with idle power or unused memory"),
        (seen.dead_air, "no GPU does anything"),
        (seen.livelock, "the engine core uses a whole core of the CPU"),
        (seen.working, "the GPUs draw the power of work"),
        (seen.notices, "vLLM notes that it waits for a worker"),
        (seen.compiling, "kernels are being compiled"),
    ):
        if shown:
            facts.append(words)
    facts += [words for words in (seen.stuck, seen.gpus) if words]
    if not seen.has_gpus:
        facts.append("no reading of the GPUs")
    if silence.scrape_error:
        facts.append(f"metrics are not answered: {silence.scrape_error}")
    return tuple(facts)
