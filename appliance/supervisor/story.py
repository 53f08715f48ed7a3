"""The journal's lines on engines: their one form, and what is said of deaths and of what is changed about starts."""

from __future__ import annotations

from appliance.host.journal import ERR, NOTICE, Journal, message_id
from appliance.policy.causes import CAUSES, Remedy
from appliance.policy.ladder import Ladder
from appliance.policy.restart import Record


def line(
    journal: Journal,
    priority: int,
    text: str,
    *,
    event: str,
    instance: str | None,
    cause: str = "",
    incident: str | None = None,
    entry: str = "",
) -> None:
    """One line with its fields; `entry` is the catalogue's, where it is not the event's own."""
    journal.log(
        priority,
        text,
        MESSAGE_ID=message_id(entry or event),
        LLM_EVENT=event,
        LLM_ENGINE=instance,
        LLM_CAUSE=cause or None,
        LLM_INCIDENT=incident,
    )


def tell_death(journal: Journal, instance: str, record: Record, incident: str | None) -> None:
    """Why an engine ended, and what an operator can do where that is not said elsewhere."""
    cause = CAUSES[record.cause]
    restarts = cause.remedy in (Remedy.RESTART, Remedy.WAIT)
    # The advice says what follows as a rule; where something else does, the reason or the hold's own line says it.
    advice = f". {cause.advice}" if restarts != bool(record.hold) else ""
    text = f"{instance}: {record.cause}: {record.reason.rstrip('.')}{advice}"
    line(
        journal, ERR, text, event="engine-ended", instance=instance, cause=record.cause, incident=incident,
        entry=record.cause,
    )  # fmt: skip


def tell_ladder(journal: Journal, instance: str, before: Ladder, after: Ladder) -> None:
    """A rung more is told with the death that led to it; this is the way up."""
    if len(after.rungs) >= len(before.rungs) or before.told == after.told:
        return
    left = f"; what stays changed: {after.told}" if after.told else ""
    if after.dropped is not None:
        text = f"{instance}: its next start does without {after.dropped.told}, after long service without trouble"
    else:
        text = f"{instance}: its configuration changed, and what was changed about its starts is forgotten"
    line(journal, NOTICE, text + left, event="engine-changed", instance=instance)
