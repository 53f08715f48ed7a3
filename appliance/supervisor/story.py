"""The journal's lines on deaths, and on what is changed about starts: each change once, with its reason."""

from __future__ import annotations

from appliance.host.journal import ERR, NOTICE, Journal, message_id
from appliance.policy.causes import CAUSES, Remedy
from appliance.policy.ladder import Ladder
from appliance.policy.restart import Record


def tell_death(journal: Journal, instance: str, record: Record, incident: str | None) -> None:
    """Why an engine ended, and what an operator can do where that is not said elsewhere."""
    cause = CAUSES[record.cause]
    restarts = cause.remedy in (Remedy.RESTART, Remedy.WAIT)
    # The advice says what follows as a rule; where something else does, the reason or the hold's own line says it.
    advice = f". {cause.advice}" if restarts != bool(record.hold) else ""
    text = f"{instance}: {record.cause}: {record.reason.rstrip('.')}{advice}"
    journal.log(
        ERR,
        text,
        MESSAGE_ID=message_id(record.cause),
        LLM_EVENT="engine-ended",
        LLM_ENGINE=instance,
        LLM_CAUSE=record.cause,
        LLM_INCIDENT=incident,
    )


def tell_ladder(journal: Journal, instance: str, before: Ladder, after: Ladder) -> None:
    """A rung more is told with the death that led to it; this is the way up."""
    if len(after.rungs) >= len(before.rungs) or before.told == after.told:
        return
    left = f"; what stays changed: {after.told}" if after.told else ""
    if after.dropped is not None:
        text = f"{instance}: its next start does without {after.dropped.told}, after long service without trouble"
    else:
        text = f"{instance}: its configuration changed, and what was changed about its starts is forgotten"
    event = "engine-changed"
    journal.log(NOTICE, text + left, MESSAGE_ID=message_id(event), LLM_EVENT=event, LLM_ENGINE=instance)
