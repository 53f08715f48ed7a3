"""`llm-appliance top`: the page of `status`, live on the whole screen.

Keys: q ends it, arrows, page up and down, j and k scroll, space looks at once. Where standard output is no terminal, or
one that cannot place its cursor, and with `--json`, it is `status --watch`.

Escape sequences that every terminal of the last thirty years knows do all of it: what a library for screens would add
is five megabytes of packages and a tenth of a second at each start, for lines that `statuspage` makes anyway. The
screen is made by one pure function and written at once, so nothing flickers. The terminal is put back as it was however
this ends: by a key, a signal or a fault. A look is taken in a thread of its own: a gateway that does not answer does
not keep `q` waiting.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from appliance import clock
from appliance.errors import EXIT_OK

from . import output, status, statuspage

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # the other screen, no cursor, no line goes on in the next one
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
HELP = "q quit  arrows scroll  space look now"
_KEYS = {"k": -1, "\x1b[A": -1, "\x1bOA": -1, "j": 1, "\x1b[B": 1, "\x1bOB": 1}
_PAGES = {"\x1b[5~": -1, "\x1b[6~": 1}
_ENDS = {"\x1b[H": 0, "\x1b[1~": 0, "g": 0, "\x1b[F": 1 << 30, "\x1b[4~": 1 << 30, "G": 1 << 30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`[--interval SECONDS]`."""
    text = f"look so often (default {status.WATCH_S:.0f})"
    parser.add_argument("--interval", type=status.seconds, default=status.WATCH_S, metavar="SECONDS", help=text)


def run(args: argparse.Namespace) -> int:
    """Show it until `q` or a signal."""
    if args.json or not _has_screen():
        return status.watch(args.config, args.interval, as_json=args.json)
    with _terminal() as wake:
        _show(args.config, args.interval, wake)
    return EXIT_OK


def _has_screen() -> bool:
    return sys.stdin.isatty() and output.is_terminal() and os.environ.get("TERM", "dumb") != "dumb"


# --- pure -------------------------------------------------------------------------------------------------------------


def offset_after(key: str, offset: int, rows: int, count: int) -> int:
    """The first line that is shown after a key; `rows` fit on the screen, `count` there are."""
    if key in _ENDS:
        offset = _ENDS[key]
    else:
        offset += _KEYS.get(key, 0) + _PAGES.get(key, 0) * max(rows - 1, 1)
    return max(min(offset, count - rows), 0)


def frame(page: Sequence[str], foot: str, offset: int, columns: int, rows: int) -> str:
    """A whole screen as one text: the lines from `offset` on, and the foot in the last row."""
    room = max(rows - 1, 0)
    shown = [output.cut(line, columns) for line in page[offset : offset + room]]
    left = len(page) - offset - len(shown)
    foot = f"{foot}  {left} more lines" if left > 0 else foot
    whole = [*shown, *[""] * (room - len(shown)), output.paint(output.cut(foot, columns), "grey")][: max(rows, 1)]
    return HOME + f"{END_OF_LINE}\r\n".join(whole) + END_OF_LINE + END_OF_SCREEN


def keys(data: str) -> Iterator[str]:
    """What was typed, one key at a time; an escape sequence is one."""
    while data:
        length = 1
        if data[:2] in ("\x1b[", "\x1bO"):
            length = 2
            while length < len(data) and not ("@" <= data[length] <= "~"):
                length += 1
            length += 1
        yield data[:length]
        data = data[length:]


# --- the look ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look: what came of it and when."""

    value: dict[str, object]
    fault: str
    unapplied: tuple[str, ...]
    at: float


class _Looks(threading.Thread):
    """Looks again and again, and writes a byte to `wake` each time. `seen` is None before the first one."""

    def __init__(self, config: str, interval: float, wake: int) -> None:
        super().__init__(name="looks", daemon=True)
        self._config, self._interval, self._wake = config, interval, wake
        self.now = threading.Event()  # set: look at once
        self.seen: _Seen | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while True:
                value, fault = status.look(self._config)
                unapplied = tuple(status.unapplied(self._config, value))
                self.seen = _Seen(value, "" if fault is None else fault.message, unapplied, clock.wall())
                os.write(self._wake, b"\0")
                self.now.wait(self._interval)
                self.now.clear()
        except Exception as error:  # told by the thread that has the screen, when it has put it back
            self.error = error
            os.write(self._wake, b"\0")


def _show(config: str, interval: float, wake: tuple[int, int]) -> None:
    """Draw what was seen and what was typed, until `q`."""
    looks = _Looks(config, interval, wake[1])
    looks.start()
    offset = 0
    while True:
        if looks.error is not None:
            raise looks.error
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        columns, rows = columns or 80, rows or 24  # a serial line does not know
        page = _page(looks.seen, columns)
        offset = offset_after("", offset, rows - 1, len(page))
        stamp = "" if looks.seen is None else time.strftime("%H:%M:%S  ", time.localtime(looks.seen.at))
        sys.stdout.write(frame(page, stamp + HELP, offset, columns, rows))
        sys.stdout.flush()
        ready, _, _ = select.select([sys.stdin, wake[0]], [], [])
        if wake[0] in ready:
            os.read(wake[0], 4096)
        if sys.stdin in ready:
            typed = os.read(sys.stdin.fileno(), 1024).decode("utf-8", "replace")
            if not typed:  # the terminal is gone
                return
            for key in keys(typed):
                if key in ("q", "Q"):
                    return
                if key == " ":
                    looks.now.set()
                offset = offset_after(key, offset, rows - 1, len(page))


def _page(seen: _Seen | None, columns: int) -> list[str]:
    if seen is None:
        return ["asking the gateway"]
    told = [output.paint(output.clean(seen.fault), "red")] if seen.fault else []
    return [*told, *statuspage.lines(seen.value, clock.wall(), columns), *seen.unapplied]


# --- the terminal -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _terminal() -> Iterator[tuple[int, int]]:
    """The whole screen and single keys; a pipe that has a byte whenever a signal or a look came.

    Ctrl-C ends it as `q` does; SIGTERM and SIGHUP, with their status; Ctrl-Z puts the terminal back in between.
    """
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)

    def enter() -> None:
        tty.setcbreak(stdin)
        sys.stdout.write(ENTER)
        sys.stdout.flush()

    def leave() -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            termios.tcsetattr(stdin, termios.TCSADRAIN, before)
            sys.stdout.write(LEAVE)
            sys.stdout.flush()

    def suspend(_number: int, _frame: FrameType | None) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        enter()

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    def resized(_number: int, _frame: FrameType | None) -> None:
        """The byte that the wake-up descriptor gets is what matters."""

    try:
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGHUP, end)
        signal.signal(signal.SIGTSTP, suspend)
        signal.signal(signal.SIGWINCH, resized)
        enter()
        yield reading, writing
    except KeyboardInterrupt:
        return
    finally:
        leave()
        signal.set_wakeup_fd(-1)
