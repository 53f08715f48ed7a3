"""What the builder tells the world while it works: the state file, `systemctl status`, the journal, the start timeout.

One thread writes at a fixed pace and asks the work how far it is; a change of phase is written at once. The start
timeout is extended with every tick, so the unit's own limit only counts when this process is stuck as a whole; what the
process waits for has deadlines of its own.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Mapping
from types import TracebackType

from appliance import clock
from appliance.host import files, notify
from appliance.host.journal import ERR, INFO, WARNING, Journal
from appliance.quantity import format_duration, format_size

TICK_S = 2.0
JOURNAL_S = 5.0
EXTEND_S = 120.0
WINDOW_S = 30.0  # the speed of a download is that of its last half minute

# (done, total or None) in bytes
Measure = Callable[[], "tuple[int, int | None]"]


class Speed:
    """Bytes a second over the last WINDOW_S; None until two readings are a second apart."""

    def __init__(self) -> None:
        self._readings: collections.deque[tuple[float, int]] = collections.deque()

    def add(self, now: float, done: int) -> float | None:
        """Take a reading and say the speed."""
        self._readings.append((now, done))
        while self._readings[0][0] < now - WINDOW_S:
            self._readings.popleft()
        then, before = self._readings[0]
        return (done - before) / (now - then) if now - then >= 1.0 else None


def amount(verb: str, done: int, total: int | None, speed: float | None) -> tuple[str, int | None]:
    """(sentence, percent) of a download: `downloading: 47 % (63 of 133 MiB), 2m left`."""
    if total is None:
        return f"{verb}: {format_size(done)}", None
    percent = 100 if total == 0 else min(done * 100 // total, 100)
    whole = format_size(total)
    unit = whole.rpartition(" ")[2]
    part = done / {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[unit]
    text = f"{verb}: {percent} % ({part:.{1 if unit in ('GiB', 'TiB') else 0}f} of {whole})"
    if speed and done < total:
        text += f", {format_duration(max((total - done) / speed, 1))} left"
    return text, percent


class Progress:
    """The state of one run. Use as a context manager; the thread ends with it."""

    def __init__(self, journal: Journal, state_file: str) -> None:
        self._journal = journal
        self._state_file = state_file
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="progress", daemon=True)
        self._state: dict[str, object] = {"phase": "resolving", "message": "starting", "percent": None}
        self._state |= {"since": clock.wall(), "version": "", "device": "", "models": {}}
        self._verb = ""
        self._measure: Measure | None = None
        self._speed = Speed()
        self._writable = True

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is not None:  # a fault of the builder's own: nobody works on any longer, and the state must not say so
            self.fail(f"the builder broke off: {type(error).__name__}: {error}", "its unit's journal has the traceback")
        self._stop.set()
        self._thread.join()

    def describe(self, version: str, device: str) -> None:
        """Say what is being built."""
        with self._lock:
            self._state |= {"version": version, "device": device}

    def phase(self, phase: str, message: str, measure: Measure | None = None) -> None:
        """A new phase. With `measure`, `message` is the verb of a sentence with figures, renewed at each tick."""
        with self._lock:
            if phase != self._state["phase"]:
                self._state["since"] = clock.wall()
            self._verb, self._measure, self._speed = message, measure, Speed()
            self._state |= {"phase": phase, "message": message, "percent": None}
            self._refresh()
            text = str(self._state["message"])
            self._write()
        self._journal.log(INFO, text, LLM_EVENT=f"runtime-{phase}")

    def models(self, states: Mapping[str, str]) -> None:
        """How each configured model stands: `ready`, or why not."""
        with self._lock:
            self._state["models"] = dict(states)
            self._write()

    def fail(self, message: str, remedy: str) -> None:
        """The last word of a run that failed."""
        text = f"{message} ({remedy})" if remedy else message
        with self._lock:
            self._measure = None
            self._state |= {"phase": "failed", "message": text, "percent": None, "since": clock.wall()}
            self._write()
        self._journal.log(ERR, text, LLM_EVENT="runtime-failed")

    def warn(self, message: str) -> None:
        """A line in the journal that changes no state."""
        self._journal.log(WARNING, message)

    def say(self, message: str) -> None:
        """A line in the journal that changes no state."""
        self._journal.log(INFO, message)

    def _refresh(self) -> None:
        if self._measure is not None:
            done, total = self._measure()
            text, percent = amount(self._verb, done, total, self._speed.add(clock.monotonic(), done))
            self._state |= {"message": text, "percent": percent}

    def _write(self) -> None:
        """Under the lock. A state file that cannot be written must not stop the work; it is said once."""
        notify.notify(STATUS=self._state["message"], EXTEND_TIMEOUT_USEC=int(EXTEND_S * 1e6))
        try:
            files.replace_json(self._state_file, self._state)
        except OSError as error:
            if self._writable:
                self._journal.log(WARNING, f"{self._state_file} cannot be written: {error.strerror}")
            self._writable = False

    def _tell(self) -> None:
        told_at, told = clock.monotonic(), ""
        while not self._stop.wait(TICK_S):
            with self._lock:
                self._refresh()
                self._write()
                text, measured = str(self._state["message"]), self._measure is not None
            if measured and text != told and clock.monotonic() - told_at >= JOURNAL_S - 0.5:
                told_at, told = clock.monotonic(), text
                self._journal.log(INFO, text)
