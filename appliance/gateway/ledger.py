"""What is written of a finished call: one line for the journal, one for the usage ledger. Never a prompt, never a key.

The loop hands over a frozen record and goes on; a thread of its own writes, so a slow disk or journal costs no token.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from appliance.host import journal

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


def _word(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    # Names come from clients: one that holds a blank or a control character is quoted, so it cannot forge a field.
    return text if text.isascii() and text.isprintable() and " " not in text and '"' not in text else json.dumps(text)


class Ledger:
    """The writer. `finish` is called once for each finished call."""

    def __init__(self, log: journal.Journal) -> None:
        self._log = log
        self._queue: queue.SimpleQueue[Record | str | None] = queue.SimpleQueue()
        self._directory: str | None = None
        self._file: tuple[str, int] | None = None
        self.dropped = 0
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def configure(self, directory: str | None) -> None:
        """Where the ledger lies; None writes none."""
        self._queue.put(directory or "")

    def finish(self, record: Record) -> None:
        """Hand a record over; never blocks."""
        if self._queue.qsize() > BACKLOG:
            self.dropped += 1
            return
        self._queue.put(record)

    def close(self) -> None:
        """Write what waits, at most five seconds long."""
        self._queue.put(None)
        self._thread.join(5)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                break
            if isinstance(item, str):
                self._directory = item or None
                self._close_file()
                continue
            self._log.log(
                journal.INFO,
                line(item),
                LLM_EVENT="request",
                LLM_REQUEST_ID=item.request_id,
                LLM_KEY_ID=item.key_id,
                LLM_ENGINE=item.engine or None,
            )
            self._append(item)
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file[1])
            self._file = None

    def _append(self, record: Record) -> None:
        if self._directory is None:
            return
        day = datetime.fromtimestamp(record.at, timezone.utc).strftime("%Y-%m-%d")
        try:
            if self._file is None or self._file[0] != day:
                self._close_file()
                path = Path(self._directory) / f"usage-{day}.jsonl"
                self._file = (day, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640))
            os.write(self._file[1], json.dumps(asdict(record), separators=(",", ":")).encode() + b"\n")
            self.problem = ""
        except OSError as error:
            problem = f"the usage ledger cannot be written: {self._directory}: {error.strerror}"
            if problem != self.problem:
                self._log.log(journal.WARNING, problem, LLM_EVENT="ledger-unwritable")
            self.problem = problem
