"""What an operator's order changes in the records; the plan of the next cycle then does it.

Orders become wishes on record, so that they survive the supervisor and are carried out in the plan's order: one start
at a time on a GPU, one replica at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from appliance.quantity import UNKNOWN

from .reconcile import ENDED, RUNNING, Desired, Seen, UnitState
from .restart import Record, asked, cleared, forgiven

BY_OPERATOR = ""  # the cause of a hold that a person made; only a person ends it
# Holds that say "the file": applying a configuration is the answer to them, whatever it changed.
_OF_THE_FILE = frozenset({"config-error", "model-not-found", "model-unreadable", "hub-denied"})


@dataclass(frozen=True, slots=True)
class Applied:
    """The records after `apply`, the holds to be removed, and a sentence for each engine that something happens to."""

    records: Mapping[str, Record]
    released: tuple[str, ...]
    notes: Mapping[str, str]


def restarted(record: Record, seen: Seen, why: str) -> Record:
    """The record of an engine that is to be restarted, or started where its unit is down."""
    return asked(record, why, seen.run)


def drained(record: Record, why: str) -> Record:
    """The record of an engine that gets no new calls from now on; an empty `why` ends that."""
    return replace(record, drained=why)


def resumed(record: Record, seen: Seen, why: str) -> Record:
    """The record of an engine whose hold was removed."""
    return forgiven(record, why, seen.run)


def applied(
    old: Sequence[Desired],
    new: Sequence[Desired],
    seen: Mapping[str, Seen],
    records: Mapping[str, Record],
    holds: Mapping[str, tuple[str, str]],
) -> Applied:
    """What a new configuration does to each instance; one that is up to date is left alone.

    A running engine whose launcher does not say what it was started with is compared by the old configuration.
    """
    before = {desired.instance: desired.digest for desired in old}
    made, released, notes = dict(records), [], {}
    for desired in new:
        instance = desired.instance
        record, now = records.get(instance, Record()), seen.get(instance, Seen())
        changed = before.get(instance) != desired.digest
        if instance in holds:
            cause, reason = holds[instance]
            if cause == BY_OPERATOR or not (changed or cause in _OF_THE_FILE):
                notes[instance] = f"stays held: {reason}"
                continue
            released.append(instance)
            made[instance] = resumed(record, now, "the configuration was applied")
            notes[instance] = "is no longer held and starts"
            continue
        running_with = before.get(instance) if now.digest is UNKNOWN else now.digest
        if now.unit in RUNNING and running_with == desired.digest:
            made[instance] = replace(record, drop="")
        elif now.unit in RUNNING:
            made[instance] = forgiven(record, "its configuration changed", now.run)  # deaths of the old one say nothing
            notes[instance] = "is restarted: its configuration changed"
        elif now.unit in ENDED or now.unit in (UnitState.DOWN, UnitState.STOPPING):
            made[instance] = resumed(record, now, "the configuration was applied")
            notes[instance] = "is started"
    for instance in sorted(set(seen) - {desired.instance for desired in new}):
        left = cleared(records.get(instance, Record()))
        if seen[instance].unit in RUNNING:
            made[instance] = replace(left, drop="the configuration does not name it any more")
            notes[instance] = "is stopped: the configuration does not name it any more"
        else:
            made[instance] = left
    return Applied(made, tuple(released), notes)
