"""The writer of what is told of finished calls, in the journal and in the usage ledger.

The loop hands over a record and goes on; a thread of its own writes, so a slow disk or journal costs no token.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable

from appliance import clock
from appliance.host import journal
from appliance.wire import auditline

from .auditwriter import AuditWriter
from .record import Record, entry, line

GATHER = 0.2  # seconds for which records gather before the writer is woken: a wake-up costs more than a record
SYNC = 0.5  # seconds between two syncs: with GATHER and a slow disk less than one second can be lost
RETRY = 1.0  # seconds between two tries while the ledger cannot be written
LOOK = 600.0  # seconds between two looks for old files
BACKLOG = 20_000  # records that may wait, some 16 MB; beyond that they are counted and dropped
DAY = 86400
CHUNK = 100  # records that one write takes: between two the loop gets its turn, a millisecond later at most


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
        self._log.log_all(journal.INFO, [(line(record), _fields(record)) for record in records])

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
            told = {"event": auditline.LOST, "at": round(self._wall(), 3), "count": lost}
            writer.append(_utc(_day(self._held[0])), [auditline.members(told)])
            self._told_dropped = dropped
        while self._held:
            day, some = next(itertools.groupby(itertools.islice(self._held, CHUNK), _day))
            entries = [entry(record) for record in some]
            writer.append(_utc(day), entries)
            for _ in entries:
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
            self._log.log(journal.NOTICE, f"the usage ledger is written again: {waited} waited, {lost} are lost",
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


def _fields(record: Record) -> dict[str, object]:
    """By which `journalctl` finds its line."""
    return {
        "LLM_EVENT": "request",
        "LLM_REQUEST_ID": record.request_id,
        "LLM_KEY_ID": record.key_id,
        "LLM_ENGINE": record.engine or None,
    }
