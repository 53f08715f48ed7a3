"""The fleet as the supervisor shows it: one entry an engine, in a file for the others and as journal lines on change.

`since` outlives a restart of the supervisor: the last file is read first, and a state that did not change is no news.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from appliance import __version__, names
from appliance.host import files
from appliance.host.journal import ERR, INFO, NOTICE, WARNING, Journal
from appliance.policy.causes import CAUSES
from appliance.policy.reconcile import Action, Verb, View
from appliance.policy.restart import Death
from appliance.quantity import format_duration

from . import story

REFRESH_S = 10.0  # an unchanged file is written again so often, so that `at` tells that the supervisor lives

# state -> journal event and priority
_EVENTS = {
    "waiting": ("engine-waiting", INFO),
    "starting": ("engine-starting", INFO),
    "serving": ("engine-serving", NOTICE),
    "draining": ("engine-draining", NOTICE),
    "restarting": ("engine-restarting", WARNING),
    "held": ("engine-held", ERR),
    "failed": ("engine-failed", ERR),
    "stopped": ("engine-stopped", NOTICE),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One engine instance as others see it."""

    view: View
    since: float
    restarts: int = 0
    load_s: float | None = None
    incident: str | None = None  # what its present state belongs to
    death: Death | None = None  # the last one

    @property
    def public(self) -> dict[str, object]:
        """The entry of the fleet file."""
        view, died = self.view, self.death
        return {
            "state": view.state,
            "since": round(self.since, 3),
            "cause": view.cause,
            "reason": view.reason,
            "next": view.next,
            "restarts": self.restarts,
            "load_s": self.load_s,
            "not_before": view.not_before,
            "changed": view.changed,
            "incident": self.incident,
            "suspect": view.suspect,
            "death": died and {"start": died.start, "at": died.at, "cause": died.cause, "killed": died.killed},
        }


class Fleet:
    """What the last cycle found, its file, and what is told about changes."""

    def __init__(self, path: str, journal: Journal) -> None:
        self._path = path
        self._journal = journal
        self._written: dict[str, object] = {}
        self._written_at = 0.0
        self.entries: dict[str, Entry] = _remembered(files.read_json(path))

    def update(
        self,
        views: Mapping[str, View],
        known: set[str],
        counts: Mapping[str, int],
        loads: Mapping[str, float],
        now: float,
        incidents: Mapping[str, str] | None = None,
        deaths: Mapping[str, Death] | None = None,
    ) -> list[dict[str, object]]:
        """Take over a cycle's views; returns the changes as events, each told to the journal once.

        `known` are all instances that exist: one of them without a view (UNKNOWN) keeps its last entry.
        """
        events: list[dict[str, object]] = []
        entries: dict[str, Entry] = {}
        for instance in (*views, *(name for name in self.entries if name in known and name not in views)):
            old, view = self.entries.get(instance), views.get(instance)
            if view is None:
                if old is not None:
                    entries[instance] = old
                continue
            changed = old is None or old.view.state != view.state
            since = now if old is None or changed else old.since
            incident, death = (incidents or {}).get(instance), (deaths or {}).get(instance)
            entries[instance] = Entry(view, since, counts.get(instance, 0), loads.get(instance), incident, death)
            if changed:
                events.append(self._tell(instance, entries[instance], old, now))
            elif old is not None and old.view.reason != view.reason:
                events.append(_event(instance, view))
        self.entries = entries
        return events

    def write(
        self,
        mode: str,
        now: float,
        incidents: Sequence[Mapping[str, object]] = (),
        drift: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """Replace the file when it changed or is REFRESH_S old. Raises OSError."""
        engines = {instance: entry.public for instance, entry in self.entries.items()}
        value: dict[str, object] = {
            "mode": mode, "version": __version__, "engines": engines, "incidents": list(incidents),
            "drift": list(drift),
        }  # fmt: skip
        if value == self._written and 0 <= now - self._written_at < REFRESH_S:
            return
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        files.replace_json(self._path, {"at": round(now, 3), **value})
        self._written, self._written_at = value, now

    @property
    def sentence(self) -> str:
        """The fleet in one line, for `systemctl status`."""
        if not self.entries:
            return "no local engine"
        counts: dict[str, list[str]] = {}
        for instance, entry in self.entries.items():
            counts.setdefault(entry.view.state, []).append(instance)
        return ", ".join(f"{len(who)} {state} ({', '.join(who[:4])})" for state, who in sorted(counts.items()))

    def _tell(self, instance: str, entry: Entry, old: Entry | None, now: float) -> dict[str, object]:
        view = entry.view
        event, priority = _EVENTS[view.state]
        text = f"{instance}: {view.state}"
        if view.state == "serving" and old is not None and old.view.state != "serving":
            text += f" after {format_duration(max(now - old.since, 0.0))} {old.view.state}"
        told = view.state == "restarting" and view.not_before is not None  # the line of its death has the reason
        said = [part for part in ("" if told else view.reason, view.next) if part]
        text += f": {'; '.join(said)}" if said else ""
        cause = view.cause if view.cause in CAUSES else ""
        story.line(
            self._journal, priority, text, event=event, instance=instance, cause=cause, incident=entry.incident
        )  # fmt: skip
        return _event(instance, view)


def _event(instance: str, view: View) -> dict[str, object]:
    return {
        "event": "state",
        "engine": instance,
        "state": view.state,
        "cause": view.cause,
        "message": view.reason or view.next,
    }


def _remembered(value: Mapping[str, object] | None) -> dict[str, Entry]:
    """Entries of the last file: states and times, so that what did not change is not told again."""
    engines = value.get("engines") if value is not None else None
    entries = {}
    for instance, entry in engines.items() if isinstance(engines, dict) else ():
        if names.INSTANCE.fullmatch(str(instance)) and isinstance(entry, dict) and entry.get("state") in _EVENTS:
            since = entry.get("since")
            reason, cause, coming, changed = (
                str(entry.get(key) or "") for key in ("reason", "cause", "next", "changed")
            )
            view = View(str(entry["state"]), reason, cause, coming, changed=changed)
            at = float(since) if isinstance(since, (int, float)) else 0.0
            entries[str(instance)] = Entry(view, at, incident=str(entry.get("incident") or "") or None)
    return entries


def observed_only(view: View, action: Action, why: str) -> View:
    """A view while nothing is done, for that reason: what would be."""
    state = "failed" if action.verb is Verb.HOLD else view.state
    return replace(view, state=state, next=f"not done, {why}: {action.verb.value}")
