"""`llm-appliance supervisor [--config FILE]`: keeps the engines of the configuration serving; there is one of it.

Without systemd there is nothing to watch; it says so and idles until it is stopped. SIGHUP reads the settings again,
SIGTERM ends it and leaves the engines as they are.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance import __version__, names
from appliance.errors import EXIT_OK, EXIT_UNREACHABLE, ApplianceError, Failed
from appliance.host import notify, places, systemd
from appliance.host.journal import INFO, WARNING, Journal, message_id

from .control import Control
from .daemon import Daemon

IDENTIFIER = "llm-supervisor"


def main(arguments: list[str]) -> int:
    """Run until stopped; the exit status of the process."""
    parser = argparse.ArgumentParser(prog="llm-appliance supervisor", description="Keep the engines serving.")
    text = "the configuration file (default %(default)s)"
    parser.add_argument("--config", metavar="FILE", default=names.CONFIG_FILE, help=text)
    args = parser.parse_args(arguments)
    journal = Journal(IDENTIFIER)
    where = places.from_environment()
    try:
        with _alone(where.under_run(names.SUPERVISOR_SOCKET) + ".lock"):
            return asyncio.run(_supervise(args.config, where, journal))
    except ApplianceError as error:
        print(f"llm-appliance supervisor: {error.message}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        print(f"llm-appliance supervisor: {error}", file=sys.stderr)
        return EXIT_UNREACHABLE
    except KeyboardInterrupt:
        return EXIT_OK
    finally:
        journal.close()


async def _supervise(config: str, where: places.Places, journal: Journal) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if not systemd.is_running():
        text = "systemd is not running here: there are no units to watch, nothing to do"
        journal.log(WARNING, text, LLM_EVENT="supervisor-started")
        notify.ready(text)
        await stop.wait()
        return EXIT_OK
    daemon = Daemon(config, where, journal)
    loop.add_signal_handler(signal.SIGHUP, lambda: _reread(daemon))
    async with Control(daemon).listening(where.under_run(names.SUPERVISOR_SOCKET)):
        way = daemon.hand.way or "nothing: units cannot be changed"
        text = f"version {__version__}, {len(daemon.desired)} local engines, mode {daemon.settings.mode}, by {way}"
        journal.log(INFO, text, MESSAGE_ID=message_id("supervisor-started"), LLM_EVENT="supervisor-started")
        notify.ready("taking a first look")
        await daemon.run(stop)
        notify.stopping("engines are left as they are")
    return EXIT_OK


def _reread(daemon: Daemon) -> None:
    """SIGHUP: thresholds and mode take effect; a changed engine is restarted by `apply` alone."""
    daemon.read_config()
    daemon.wake.set()


@contextmanager
def _alone(path: str) -> Iterator[None]:
    """Two supervisors would undo each other's work: the second one refuses. Raises Failed."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed("another supervisor runs already: systemctl status llm-supervisor") from None
        yield
    finally:
        os.close(descriptor)
