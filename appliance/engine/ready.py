"""Readiness: the first real unit of work, tried in a thread until the engine has made it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from appliance.host.realwork import Outcome, attempt, listening

POLL_S = 0.1  # between two attempts to connect; the socket is bound long before anyone listens on it
RETRY_S = 2.0  # after an answer that was no success


class Probe:
    """Tries in a thread of its own until an outcome is there; `told` is called from that thread, once for each step.

    `told(None)`: the engine listens and the first request is on its way. `told(outcome)`: the end.
    """

    def __init__(self, path: str, model: str, told: Callable[[Outcome | None], None]) -> None:
        self._path, self._model, self._told = path, model, told
        self._stop = threading.Event()
        self._telling = threading.Lock()
        # A daemon: a request that never ends must not keep the launcher from ending.
        self._thread = threading.Thread(target=self._run, name="readiness", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """No more attempts; one that is under way ends with the engine. After this `told` is not called any more."""
        with self._telling:
            self._stop.set()

    def _tell(self, outcome: Outcome | None) -> None:
        with self._telling:
            if not self._stop.is_set():
                self._told(outcome)

    def _run(self) -> None:
        while not listening(self._path):
            if self._stop.wait(POLL_S):
                return
        self._tell(None)
        while not self._stop.is_set():
            outcome = attempt(self._path, self._model)
            if outcome is not None:
                self._tell(outcome)
                return
            self._stop.wait(RETRY_S)
