"""What the launcher says of itself: state.json, verdict.json, the service manager's status line, the journal.

One writer for each: the launcher's main thread. A state file that cannot be written is said once and does not stop an
engine that serves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from appliance import clock, names
from appliance.host import files, notify
from appliance.host.journal import ERR, INFO, WARNING, Journal, message_id
from appliance.policy.ladder import Place
from appliance.wire.vllmfigures import merged
from appliance.wire.vllmlog import Progress

from .timetable import Timetable
from .verdict import Verdict, exit_of

EXTENSION_S = 600.0  # a start that says something is given so much more: the longest silent compile
_EXTEND_EVERY_S = 10.0
_NOTICE_EVERY_S = 1.0  # a kind of notice is written so often at most; what is left out comes with the next writing
_LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What does not change in a run. `start` names this start; `served` are the names clients may use.

    `unit` is systemd's name of the unit's run, empty without systemd, and `again` how many runs of vLLM came before
    this one in it.
    """

    engine: str
    start: str
    model: str
    served: tuple[str, ...]
    run: str
    unit: str = ""
    again: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """What vLLM was started with, for the supervisor: where, the flags that a ladder changes, what was changed.

    `planned` is what it should find when it divides memory (`planned.figures`), None where that cannot be told.
    """

    place: Place = field(default_factory=Place)
    cuda: bool = False
    flags: Mapping[str, object] = field(default_factory=dict)
    changed: str = ""
    planned: Mapping[str, object] | None = None


class Report:
    """The run as others see it."""

    def __init__(self, identity: Identity, start: Start) -> None:
        self.identity = identity
        self.start = start
        self.progress = Progress("starting", "starting vLLM")
        self.started = clock.wall()
        self.ready: float | None = None
        self.pid: int | None = None
        self.incident: str | None = None  # the incident that this run is a part of
        self._since = self.started
        self._timetable = Timetable(self.progress, clock.monotonic())
        self._measured: dict[str, float] = {}
        self._notices: dict[str, dict[str, object]] = {}
        self._noticed: dict[str, float] = {}  # kind -> when it was last written
        self._journal = Journal("llm-engine")
        self._extended = 0.0
        self._complained = False
        self._awaits: float | None = None

    def begun(self) -> None:
        """The run has begun: from now on nobody takes the launcher for one that waits after the run before."""
        self._write()

    def started_as(self, pid: int) -> None:
        """vLLM's main process exists."""
        self.pid = pid
        again = ": vLLM starts again in the same unit" if self.identity.again else ""
        self.log(INFO, f"starting {self.identity.model}{again}", event="engine-starting")
        self._write()

    def moved(self, progress: Progress) -> None:
        """The phase or its message changed."""
        if progress == self.progress:
            return
        if progress.phase != self.progress.phase:
            self._since = clock.wall()
        self._timetable.moved(progress, clock.monotonic())
        self.progress = progress
        notify.status(f"{progress.phase}: {progress.message}")
        self._write()

    def alive(self) -> None:
        """The start said something: the service manager waits on."""
        now = clock.monotonic()
        if now - self._extended >= _EXTEND_EVERY_S:
            self._extended = now
            notify.extend_timeout(EXTENSION_S)

    def measured(self, figures: Mapping[str, float]) -> None:
        """vLLM said what it found when it divided memory."""
        self._measured = merged(self._measured, figures)
        self._write()

    def noticed(self, kind: str) -> None:
        """vLLM said something of a kind (`vllmlog.notice`); who judges its silence reads last time and count."""
        now, count = clock.wall(), self._notices.get(kind, {}).get("count")
        self._notices[kind] = {"at": now, "count": count + 1 if isinstance(count, int) else 1}
        pause = _LINE_EVERY_S if kind == "line" else _NOTICE_EVERY_S
        if not 0 <= now - self._noticed.get(kind, 0.0) < pause:
            self._noticed[kind] = now
            self._write()

    def serving(self, proof: str, proven: bool) -> None:
        """The engine did real work (or answers, and could not be given any)."""
        self.ready = self._since = clock.wall()
        text = f"serving {', '.join(self.identity.served)}"
        self.progress = Progress("serving", text)
        self._timetable.moved(self.progress, clock.monotonic())
        self._write()
        notify.ready(text)
        told = f"{text}: {proof}, after {self._timetable.told}"
        self.log(INFO if proven else WARNING, told, event="engine-serving", fields=self._timetable.fields)

    def ended(
        self, verdict: Verdict, status: int | None, *, requested: bool, served: bool, awaits: float | None = None
    ) -> bool:
        """The run is over: verdict.json, the last state, the line in the journal; whether others can read it.

        `awaits`: until when the launcher waits to be told that the next run shall begin in its place.
        """
        code, signal = exit_of(status)
        phase = "serving" if served else self.progress.phase
        content: dict[str, object] = {
            "engine": self.identity.engine,
            "start": self.identity.start,
            "at": clock.wall(),
            "phase": phase,
            "requested": requested,
            "cause": verdict.cause,
            "message": verdict.message,
            "hint": verdict.hint,
            "exit_status": code,
            "signal": signal,
            "lines": list(verdict.lines),
        }
        told = self._replace(names.engine_verdict(self.identity.engine, self.identity.run), content)
        self.pid = None
        self.progress = Progress("exited", verdict.message)
        self._since = clock.wall()
        self._awaits = awaits
        told = self._write() and told
        if verdict.cause is None:
            self.log(INFO, verdict.message, event="engine-ended")
        else:
            self.log(ERR, f"{verdict.cause}: {verdict.message}", event="engine-ended", cause=verdict.cause)
        notify.status(verdict.message + "; the supervisor may have vLLM start again" * (awaits is not None))
        notify.barrier(1.0)
        return told

    def log(
        self,
        priority: int,
        message: str,
        *,
        event: str = "engine-note",
        cause: str | None = None,
        fields: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """A line of the launcher's own in the journal; a cause explains more than an event."""
        self._journal.log(
            priority,
            message,
            LLM_ENGINE=self.identity.engine,
            LLM_EVENT=event,
            LLM_CAUSE=cause,
            LLM_INCIDENT=self.incident,
            MESSAGE_ID=message_id(cause or event),
            **fields,
        )

    def _write(self) -> bool:
        content: dict[str, object] = {
            "engine": self.identity.engine,
            "start": self.identity.start,
            "unit": self.identity.unit,
            "again": self.identity.again,
            "awaits": self._awaits,
            "pid": self.pid,
            "phase": self.progress.phase,
            "message": self.progress.message,
            "since": self._since,
            "started": self.started,
            "ready": self.ready,
            "digest": self.start.place.digest,
            "model": self.identity.model,
            "served": list(self.identity.served),
            "runtime": self.start.place.runtime,
            "gpus": list(self.start.place.gpus),
            "cuda": self.start.cuda,
            "flags": dict(self.start.flags),
            "changed": self.start.changed,
            "planned": self.start.planned,
            "measured": self._measured,
            "phases": self._timetable.phases,
            "notices": self._notices,
        }
        return self._replace(names.engine_state(self.identity.engine, self.identity.run), content)

    def _replace(self, path: str, content: dict[str, object]) -> bool:
        try:
            files.replace_json(path, content)
        except OSError as error:
            if not self._complained:
                self._complained = True
                self.log(WARNING, f"cannot write {path}: {error.strerror}")
            return False
        return True


def prepare(directories: Sequence[str]) -> None:
    """Make the engine's directories, for its user (and the group of the directory above) alone. Raises OSError."""
    for directory in directories:
        os.makedirs(directory, mode=0o750, exist_ok=True)
        if os.stat(directory).st_uid != os.geteuid():
            raise PermissionError(13, "belongs to another user", directory)
