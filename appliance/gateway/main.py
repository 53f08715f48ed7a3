"""`llm-appliance gateway [--config FILE]`: the process from its first to its last line.

SIGHUP reloads configuration, keys and certificate in place; SIGUSR2 hands over to a new process from the code that is
installed now; SIGTERM and SIGINT drain and end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import resource
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop

from appliance import names
from appliance.config.model import Config
from appliance.errors import EXIT_FOUND, EXIT_OK, EXIT_UNREACHABLE, EXIT_USAGE, ApplianceError
from appliance.host import journal, notify, reexec
from appliance.host.places import Places, from_environment
from appliance.host.proc import open_files_limit
from appliance.policy.descriptors import descriptors_needed
from appliance.quantity import UNKNOWN

from .app import App
from .handover import Heir
from .status import line


def main(arguments: list[str]) -> int:
    """Run the gateway until it is told to stop."""
    parser = argparse.ArgumentParser(prog="llm-appliance gateway", description="Run the gateway in the foreground.")
    text = "the configuration file (default %(default)s)"
    parser.add_argument("--config", default=names.CONFIG_FILE, metavar="FILE", help=text)
    places = from_environment()
    parser.add_argument("--run", default=places.run, metavar="DIRECTORY", help="live state (default %(default)s)")
    try:
        options = parser.parse_args(arguments)
    except SystemExit as exit_:
        return EXIT_USAGE if exit_.code else EXIT_OK
    descriptor = reexec.passed_descriptor()
    if descriptor is not None:
        reexec.detach(descriptor)
    _raise_descriptor_limit()
    try:
        return _run(_serve(options.config, Places(options.run, places.state), descriptor))
    except ApplianceError as error:
        hint = f" (hint: {error.hint})" if error.hint else ""
        print(f"llm-appliance gateway: {error.message}{hint}", file=sys.stderr)
        return EXIT_UNREACHABLE


def _run(work: Coroutine[Any, Any, int]) -> int:
    """Run on uvloop, where relaying costs a tenth less; there is one for every Python that we support."""
    loop = uvloop.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return int(loop.run_until_complete(work))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _serve(config: str, places: Places, descriptor: int | None) -> int:
    log = journal.Journal("llm-gateway")
    loop = asyncio.get_running_loop()
    heir = Heir(descriptor) if descriptor is not None else None
    app = App(config, places, log)
    try:
        await app.start(heir)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, app.stop.set)
        loop.add_signal_handler(signal.SIGHUP, _reload, app)
        if heir is not None:
            await heir.serving()
        loop.add_signal_handler(signal.SIGUSR2, app.begin_hand_over)
        _check_descriptors(app)
        listens = ", ".join(app.addresses)
        log.log(journal.NOTICE, f"listening on {listens}, admin on {app.admin_address}", LLM_EVENT="gateway-started")
        notify.ready(line(app))
        app.watch()
        gc.freeze()  # what is there now stays: looking through it again and again would cost calls their time
        gc.set_threshold(10_000)
        await app.stop.wait()
        log.log(journal.NOTICE, f"stopping, {len(app.exchanges)} calls run", LLM_EVENT="gateway-stopping")
        if not app.retired:
            notify.stopping("draining")
        for number in (signal.SIGTERM, signal.SIGINT):  # a second Ctrl-C ends the drain
            loop.add_signal_handler(number, app.hurry)
        await app.drain()
    finally:
        await app.close()
    return EXIT_FOUND if app.fault else EXIT_OK


def _reload(app: App) -> None:
    if app.retired:  # the process that took over reads them
        return
    notify.reloading()
    app.reload()
    _check_descriptors(app)
    app.log.log(journal.NOTICE, "configuration, keys and certificate were read again", LLM_EVENT="gateway-reloaded")
    notify.ready(line(app))


def _check_descriptors(app: App) -> None:
    """Warn when the configuration may need more open files than this process may have."""
    limit, needed = open_files_limit(), descriptors_needed(app.config or Config())
    if limit is not UNKNOWN and limit < needed:
        app.warn(
            f"{limit} files may be open here, this configuration may need {needed}: beyond that no connection is "
            "accepted (raise LimitNOFILE= of the unit or ulimit -Hn, or lower gateway.admission.max_in_flight)"
        )


def _raise_descriptor_limit() -> None:
    """A stream takes two descriptors; the soft limit of a shell is far below what the hard one allows."""
    with contextlib.suppress(OSError, ValueError):  # a sandbox may refuse both; the unit sets its own limit
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
