"""What a look at an engine does to what is remembered of it: deaths enter the record, wishes that came true leave it.

A death may add a rung to the engine's ladder, long quiet service takes the last one off for a trial, and another
configuration all of them. A death that has no cause of its own may be explained by the kernel a moment later; until its
restart is carried out the better cause takes its place.
"""

from __future__ import annotations

from dataclasses import replace

from appliance.config.model import Restart
from appliance.quantity import UNKNOWN, Maybe

from .causes import CARRIERS
from .failure import Exit, Failure, failure_of
from .hardware import BURST_AHEAD_S, Step
from .ladder import Facts, answered, climbed, kept
from .reconcile import ENDED, Seen, UnitState
from .restart import Death, Record, counted, entered, fulfilled


def remembered(seen: Seen, record: Record, limits: Restart, *, now: float, jitter: float) -> tuple[Record, str]:
    """The record after a look: deaths not entered yet enter it, a wish that came true leaves it, and so does a hold
    that came too late.

    The second value names the cause of a death that was entered, empty when there was none.
    """
    if seen.unit in ENDED and _is_open(seen, record):
        failure = failure_of(seen.end, seen.verdict, seen.evidence)
        if failure is not None and failure.step is not Step.NOTHING and failure.cause != record.cause:
            before = tuple(death for death in record.deaths if death.key != seen.run)
            record = replace(record, deaths=before, wanted="", over="", not_before=None)
    if seen.unit in ENDED and not record.knows(seen.run):
        failure = seen.judged or failure_of(seen.end, seen.verdict, seen.evidence)
        if failure is not None:
            death = Death(now - seen.age_s, seen.run, failure.cause, seen.verdict_start, failure.killed)
            if record.wanted and record.over == seen.run and record.not_before is None:  # somebody's wish stands
                return counted(record, death, failure, limits, now=now), failure.cause
            facts = replace(seen.facts, hint=seen.verdict.hint if seen.verdict is not None else "")
            served = seen.ready if seen.verdict is not None and seen.verdict.phase == "serving" else UNKNOWN
            return died(record, death, failure, facts, limits, now=now, jitter=jitter, served=served), failure.cause
    if seen.unit in (UnitState.STARTING, UnitState.UP):
        ladder = kept(record.ladder, seen.facts)
        if seen.unit is UnitState.UP:
            troubles = [(died.at, died.cause) for died in record.deaths]
            ladder = climbed(ladder, ready=seen.ready, troubles=troubles, now=now) or ladder
            if record.hold and not record.knows(seen.run):  # not carried out, and a later run serves all the same
                record = replace(record, hold="")
        record = replace(record, ladder=ladder)
        if record.wanted and seen.run and seen.run != record.over:
            record = fulfilled(record)
        return _unseen_death(seen, record, limits, now=now)
    return record, ""


def _is_open(seen: Seen, record: Record) -> bool:
    """Whether an end that was entered may still find a better cause."""
    due = record.over == seen.run and record.not_before is not None
    return due and bool(seen.run) and seen.age_s <= BURST_AHEAD_S and record.cause in CARRIERS


def died(
    record: Record,
    death: Death,
    failure: Failure,
    facts: Facts,
    limits: Restart,
    *,
    now: float,
    jitter: float,
    served: Maybe[float] = UNKNOWN,
) -> Record:
    """A death enters the record, with what follows from it: a restart, a changed restart, or a hold. `served` is when
    the run began to serve.

    Where a GPU may be behind a death, the kernel is given the time to say so before the engine meets that GPU again.
    """
    before = [(earlier.at, earlier.cause) for earlier in record.deaths]
    answer = answered(failure, record.ladder, facts, limits, before=before, now=now)
    record = replace(record, ladder=answer.ladder)
    least_s = BURST_AHEAD_S if facts.cuda and failure.cause in CARRIERS else 0.0
    return entered(
        record, death, answer.failure, limits, now=now, jitter=jitter, served=served, least_s=least_s
    )  # fmt: skip


def _unseen_death(seen: Seen, record: Record, limits: Restart, *, now: float) -> tuple[Record, str]:
    """A death that systemd's own restart has mended while the supervisor was away: it counts, nothing is due."""
    verdict, start = seen.verdict, seen.verdict_start
    if verdict is None or not start or start == seen.run or verdict.requested or record.knows(start):
        return record, ""
    failure: Failure | None = failure_of(Exit("exit-code"), verdict)
    if failure is None or seen.verdict_at is None or seen.verdict_at < now - limits.window:
        return record, ""
    death = Death(seen.verdict_at, start, failure.cause, start, failure.killed)
    return counted(record, death, failure, limits, now=now), failure.cause
