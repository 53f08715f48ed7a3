"""Our own faults in the log: where, and of what kind, in one line, and nothing of what was being handled.

An exception's text may hold what a client or an engine sent; a traceback's lines cannot, but there are many of them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import PurePath

from .webserver import ClientPayloadError, HttpProcessingError, web

FRAMES = 6  # of the innermost calls
_CLIENTS = (HttpProcessingError, ClientPayloadError, web.RequestPayloadError, ConnectionError)  # what clients cause


def place(error: BaseException | None) -> str:
    """`ValueError at relay.py:120 _judge < relay.py:80 feed`."""
    if error is None:
        return "no exception"
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    where = " < ".join(f"{PurePath(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames))
    return f"{type(error).__name__} at {where or 'an unknown place'}"


class ServerLog:
    """Takes the place of the logger in aiohttp's server: what clients send wrong is theirs, the rest is one line."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report

    def debug(self, message: str, *arguments: object, **more: object) -> None:
        """Nobody reads it."""

    def exception(self, message: str, *arguments: object, exc_info: BaseException | None = None) -> None:
        """A fault while a request was handled; a body that cannot be read is none of ours."""
        if not isinstance(exc_info, _CLIENTS):
            self._report(f"a request failed: {place(exc_info)}")

    error = exception


def loop_handler(report: Callable[[str], None]) -> Callable[[object, Mapping[str, object]], None]:
    """For `loop.set_exception_handler`: what no task and no transport has caught."""

    def handle(_loop: object, context: Mapping[str, object]) -> None:
        error = context.get("exception")
        message = str(context.get("message", "")).partition("\n")[0][:200]
        if isinstance(error, BaseException):
            report(f"{message}: {place(error)}")
        else:
            report(message)

    return handle
