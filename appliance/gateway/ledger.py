"""What is written of a finished call: one line for the journal, one for the usage ledger. Never a prompt, never a key.

The loop hands over a frozen record and goes on; a thread of its own writes, so a slow disk or journal costs no token.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from appliance import clock
from appliance.host import journal
from appliance.wire import auditline

from .auditwriter import AuditWriter

GATHER = 0.2  # seconds for which records gather before the writer is woken: a wake-up costs more than a record
SYNC = 0.5  # seconds between two syncs: with GATHER and a slow disk less than one second can be lost
RETRY = 1.0  # seconds between two tries while the ledger cannot be written
LOOK = 600.0  # seconds between two looks for old files
BACKLOG = 20_000  # records that may wait, some 16 MB; beyond that they are counted and dropped
DAY = 86400
CHUNK = 50  # records that one write takes: between two the loop gets its turn, a millisecond later at most


class Record(NamedTuple):
    """One finished call. Times in milliseconds, None where the call did not come that far; counts None if unknown.

    `outcome`: `ok` (answered, also with an engine's own 4xx), `engine_error` (an engine's own 5xx was passed on),
    `refused` (`code` says why), `broken` (the client has part of it, or an error event), `client_left`.
    """

    at: float
    request_id: str
    key_id: str
    client: str
    route: str
    model: str
    engine: str
    status: int
    outcome: str
    code: str
    stream: bool
    queue_ms: float | None
    first_token_ms: float | None
    total_ms: float
    events: int
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    estimated: bool
    resent: int


FIELDS = Record._fields


def record_of(values: Mapping[str, object]) -> Record:
    """A record from its fields as JSON; another version's process may know more of them, or fewer."""
    return Record(**{name: values.get(name) for name in FIELDS})  # type: ignore[arg-type]


def line(record: Record) -> str:
    """The record as `key=value`, what is not known left out."""
    words = [f"{name}={_word(value)}" for name, value in zip(_NAMES, _NAMED(record), strict=True) if value != ""]
    words += [f"{name}={value:.1f}" for name, value in zip(_TIMES, _TIMED(record), strict=True) if value is not None]
    words += [f"{name}={value}" for name, value in zip(_COUNTS, _COUNTED(record), strict=True) if value is not None]
    if record.resent:
        words.append(f"resent={record.resent}")
    return " ".join(words)


_NAMES = ("request", "key", "client", "route", "model", "engine", "status", "outcome", "code")
_NAMED = attrgetter("request_id", "key_id", "client", "route", "model", "engine", "status", "outcome", "code")
_TIMES = ("queue_ms", "ttft_ms", "total_ms")
_TIMED = attrgetter("queue_ms", "first_token_ms", "total_ms")
_COUNTS = ("events", "prompt_tokens", "completion_tokens")
_COUNTED = attrgetter("events", "prompt_tokens", "completion_tokens")


def entry(record: Record) -> dict[str, object]:
    """The record as the ledger keeps it."""
    found: dict[str, object] = record._asdict()
    found["at"] = round(record.at, 3)
    for name in ("queue_ms", "first_token_ms", "total_ms"):
        value = getattr(record, name)
        found[name] = None if value is None else round(value, 1)
    return found


@lru_cache(maxsize=512)
def _word(value: object) -> str:
    text = str(value)
    # Names come from clients: one that holds a blank or a control character is quoted, so it cannot forge a field.
    return text if text.isascii() and text.isprintable() and " " not in text and '"' not in text else json.dumps(text)


class Ledger:
    """The writer. `finish` is called once for each finished call, on the loop; a thread writes what has gathered.

    A record is in the file GATHER seconds after its call ended, and on the disk SYNC seconds later. Lines that cannot
    be written wait, up to BACKLOG; what comes then is counted and told in the ledger when it can be written again.
    """

    def __init__(self, log: journal.Journal, *, wall: Callable[[], float] = clock.wall, backlog: int = BACKLOG) -> None:
        self._log, self._wall, self._backlog = log, wall, backlog
        self._loop = asyncio.get_running_loop()
        self._new: deque[Record] = deque()  # from the loop to the thread
        self._held: deque[Record] = deque()  # the thread's own: said in the journal, not yet in the file
        self._wake = threading.Event()
        self._scheduled = self._closed = self._followed = False
        self._settings: tuple[str | None, float] = (None, 0.0)
        self._writer: AuditWriter | None = None
        self._synced_at = 0.0
        self._expired = ("", 0.0, "")  # directory, retention and day of the last look for old files
        self._told_dropped = 0
        self.dropped = 0
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def configure(self, directory: str | None, retention: float) -> None:
        """Where the ledger lies from now on, None writes none; and after how many seconds a file is deleted."""
        self._settings = (directory, retention)
        self._wake.set()

    @property
    def waiting(self) -> int:
        """Records that are not in the file yet."""
        return len(self._new) + len(self._held)

    def finish(self, record: Record) -> None:
        """Hand a record over; never blocks. The thread is woken a moment later, once for all that came meanwhile."""
        if len(self._new) + len(self._held) >= self._backlog:
            self.dropped += 1
            return
        self._new.append(record)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_later(GATHER, self._hand_over)

    def close(self) -> None:
        """Write what waits, at most five seconds long."""
        self._closed = True
        self._wake.set()
        self._thread.join(5)

    def lay_down(self) -> list[Record]:
        """`close` for a process that another one follows; returns what could not be written."""
        self._followed = True
        self.close()
        return [*self._held, *self._new]

    def _hand_over(self) -> None:
        self._scheduled = False
        self._wake.set()

    # --- the thread -------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._pause())
            self._wake.clear()
            self._turn()
        self._turn()
        self._close_writer()
        if self._held and self._settings[0] is not None and not self._followed:
            self._log.log(journal.ERR, f"{len(self._held)} lines of the usage ledger are lost: {self.problem}",
                          LLM_EVENT="ledger-lost")  # fmt: skip

    def _pause(self) -> float:
        """Seconds until there is something to do by itself."""
        if self.problem:
            return RETRY
        if self._writer is not None and self._writer.dirty:
            return max(self._synced_at + SYNC - clock.monotonic(), 0.0)
        return LOOK

    def _turn(self) -> None:
        try:
            self._tell()
            self._keep()
        except OSError as error:
            self._fail((error.strerror or str(error)).lower())
        except Exception as error:  # the top of the thread: what it cannot do is told, and tried again
            self._fail(f"{type(error).__name__}: {error}")

    def _tell(self) -> None:
        """A line for the journal of each record that is new."""
        records = [self._new.popleft() for _ in range(len(self._new))]
        self._held.extend(records)
        if not records:
            return
        if os.path.exists(journal.SOCKET):
            for record in records:
                self._log.log(
                    journal.INFO,
                    line(record),
                    LLM_EVENT="request",
                    LLM_REQUEST_ID=record.request_id,
                    LLM_KEY_ID=record.key_id,
                    LLM_ENGINE=record.engine or None,
                )
        else:
            mark = f"<{journal.INFO}>" if journal.under_journal() else f"{self._log.identifier}: "
            _say("".join(f"{mark}{line(record)}\n" for record in records))

    def _keep(self) -> None:
        """Bring what waits into the file; raises what stands in the way."""
        directory, retention = self._settings
        if self._writer is not None and self._writer.directory != directory:
            self._close_writer()
        if directory is None:
            self._held.clear()
            self.problem = ""
            return
        if self._writer is None:
            self._writer = AuditWriter(directory)
        writer = self._writer
        dropped, waited = self.dropped, len(self._held)
        lost = dropped - self._told_dropped
        if lost and self._held:
            writer.append(
                _utc(_day(self._held[0])), [{"event": auditline.LOST, "at": round(self._wall(), 3), "count": lost}]
            )
            self._told_dropped = dropped
        while self._held:
            day, some = next(itertools.groupby(itertools.islice(self._held, CHUNK), _day))
            bodies = [entry(record) for record in some]
            writer.append(_utc(day), bodies)
            for _ in bodies:
                self._held.popleft()
        if self._closed or clock.monotonic() - self._synced_at >= SYNC:
            writer.sync()
            self._synced_at = clock.monotonic()
        self._expire(writer, retention)
        for text in writer.sealed:
            self._log.log(journal.NOTICE, f"usage ledger: {text}", LLM_EVENT="ledger-sealed")
        writer.sealed.clear()
        if self.problem:
            self.problem = ""
            self._log.log(journal.NOTICE, f"the usage ledger is written again: {waited} lines waited, {lost} are lost",
                          LLM_EVENT="ledger-written")  # fmt: skip

    def _expire(self, writer: AuditWriter, retention: float) -> None:
        """Once a day: delete the files whose last moment is older than the retention."""
        before = _utc(int((self._wall() - retention) // DAY))
        if self._expired == (writer.directory, retention, before):
            return
        deleted = writer.expire(before)
        self._expired = (writer.directory, retention, before)
        if deleted:
            text = f"usage ledger: {len(deleted)} files of days before {before} are deleted (audit.retention)"
            self._log.log(journal.NOTICE, text, LLM_EVENT="ledger-expired")

    def _fail(self, reason: str) -> None:
        """Say once what stands in the way; the next turn begins anew, as after a crash."""
        self._close_writer()
        problem = f"the usage ledger cannot be written: {self._settings[0]}: {reason}"
        if problem != self.problem:
            self._log.log(journal.WARNING, problem, LLM_EVENT="ledger-unwritable")
        self.problem = problem

    def _close_writer(self) -> None:
        if self._writer is None:
            return
        try:
            self._writer.close()
        except OSError as error:
            self.problem = self.problem or f"the usage ledger was not finished: {error.strerror}"
        self._writer = None


def _day(record: Record) -> int:
    """The day in UTC on which a call ended, as a number: lines stand in the order in which calls end."""
    return int((record.at + record.total_ms / 1000) // DAY)


def _utc(day: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(max(day, 0) * DAY))


def _say(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        return
