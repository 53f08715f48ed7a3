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
from dataclasses import dataclass, fields

from appliance.host import journal

GATHER = 0.2  # seconds for which records gather before the writer is woken: a wake-up costs more than a record
BACKLOG = 50_000  # records that may wait for the writer; beyond that they are counted and dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One finished call. Times in milliseconds, None where the call did not come that far; counts None if unknown."""

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


FIELDS = tuple(field.name for field in fields(Record))


def line(record: Record) -> str:
    """The record as `key=value`, what is not known left out."""
    return " ".join(
        f"{name}={_word(value)}"
        for name, value in (
            ("request", record.request_id),
            ("key", record.key_id),
            ("client", record.client),
            ("route", record.route),
            ("model", record.model),
            ("engine", record.engine),
            ("status", record.status),
            ("outcome", record.outcome),
            ("code", record.code),
            ("queue_ms", record.queue_ms),
            ("ttft_ms", record.first_token_ms),
            ("total_ms", record.total_ms),
            ("events", record.events),
            ("prompt_tokens", record.prompt_tokens),
            ("completion_tokens", record.completion_tokens),
            ("resent", record.resent or None),
        )
        if value not in (None, "")
    )


def entry(record: Record) -> str:
    """The record as one JSON object."""
    return json.dumps({name: getattr(record, name) for name in FIELDS}, separators=(",", ":"), ensure_ascii=False)


def _word(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    # Names come from clients: one that holds a blank or a control character is quoted, so it cannot forge a field.
    return text if text.isascii() and text.isprintable() and " " not in text and '"' not in text else json.dumps(text)


class Ledger:
    """The writer. `finish` is called once for each finished call, on the loop; a thread writes what has gathered."""

    def __init__(self, log: journal.Journal) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Record] = []
        self._wake = threading.Event()
        self._scheduled = self._closed = False
        self._directory: str | None = None
        self._file: tuple[str, int] | None = None
        self.dropped = 0
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def configure(self, directory: str | None) -> None:
        """Where the ledger lies from now on; None writes none."""
        self._directory = directory

    def finish(self, record: Record) -> None:
        """Hand a record over; never blocks. The thread is woken a moment later, once for all that came meanwhile."""
        if len(self._waiting) >= BACKLOG:
            self.dropped += 1
            return
        self._waiting.append(record)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_later(GATHER, self._hand_over)

    def close(self) -> None:
        """Write what waits, at most five seconds long."""
        self._closed = True
        self._wake.set()
        self._thread.join(5)

    def _hand_over(self) -> None:
        self._scheduled = False
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            self._write_waiting()
        self._write_waiting()
        self._close_file()

    def _write_waiting(self) -> None:
        records, self._waiting = self._waiting, []
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
        for day, some in itertools.groupby(records, _day):
            self._append(day, "".join(f"{entry(record)}\n" for record in some).encode())

    def _append(self, day: str, lines: bytes) -> None:
        directory = self._directory
        if directory is None:
            return
        path = f"{directory}/usage-{day}.jsonl"
        try:
            if self._file is None or self._file[0] != path:
                self._close_file()
                self._file = (path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640))
            os.write(self._file[1], lines)
            self.problem = ""
        except OSError as error:
            problem = f"the usage ledger cannot be written: {directory}: {error.strerror}"
            if problem != self.problem:
                self._log.log(journal.WARNING, problem, LLM_EVENT="ledger-unwritable")
            self.problem = problem

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file[1])
            self._file = None


def _day(record: Record) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(record.at))


def _say(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        return
