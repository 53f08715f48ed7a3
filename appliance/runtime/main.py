"""`llm-appliance runtime-build`: what llm-runtime.service runs. Builds the vLLM environment, then fetches the models.

    device -> Python -> is there anything to do? -> uv -> files -> environment -> self-test -> `current` -> models

A start that finds everything in place ends within a second. Exit status: 0 all is there; 1 it failed and another start
may help (the unit tries again); 78 it will not get better until the configuration or the host changes; 143 it was
asked to stop.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from appliance import names
from appliance.config import source
from appliance.config.model import Config
from appliance.errors import Failed
from appliance.host import device, modelstore, places, runtimes
from appliance.host.journal import WARNING, Journal

from . import bootstrap, child, locks
from .decide import Build, Keep, Wanted, decide
from .faults import Busy, Impossible, Stopped
from .layout import Layout
from .locks import Lock
from .progress import Progress
from .resolve import Sources

STOPPED = 143  # 128 + SIGTERM; the unit's SuccessExitStatus=

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .build import Workshop


def main(arguments: list[str]) -> int:
    """Run once; the exit status is the unit's."""
    given = _arguments(arguments)
    os.umask(0o022)  # engines run as another user and have to read what is made here
    found = places.from_environment()
    layout = Layout(given.state_root or found.state, given.run_root or found.run)
    journal = Journal("llm-runtime")
    with Progress(journal, layout.state_file) as progress, _signals():
        try:
            with _only_one(layout):
                run(given, layout, progress)
            return 0
        except Busy as error:
            journal.log(WARNING, error.message)
            return error.exit_status
        except Failed as error:
            progress.fail(error.message, error.hint)
            return error.exit_status
        except OSError as error:
            progress.fail(f"{error.filename or layout.state}: {(error.strerror or str(error)).lower()}", "")
            return 1
        except Stopped:
            progress.fail("stopped before all was there", "the next start goes on where this one ended")
            return STOPPED


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("llm-appliance runtime-build", description="build the vLLM runtime, fetch models")
    parser.add_argument("--config", default=names.CONFIG_FILE, metavar="FILE")
    for option in ("--state-root", "--run-root", "--locks", "--python", "--uv"):  # for tests and for trying out
        parser.add_argument(option, default="", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGINT end the work once, from wherever it is; a second one disturbs neither the clearing up nor
    the exit status.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is stop:
                signal.signal(number, handler)


@contextlib.contextmanager
def _only_one(layout: Layout) -> Iterator[None]:
    for directory in (layout.runtimes, os.path.dirname(layout.state_file)):
        os.makedirs(directory, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(runtimes.exclusive(layout.runtimes))
        except BlockingIOError as error:
            raise Busy(f"another builder is at work in {layout.runtimes}") from error
        yield


def run(given: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Do what is to be done. Raises Failed, Impossible, OSError, Stopped."""
    effective = source.effective(given.config)
    config = effective.config
    if config is None:
        raise Impossible(f"the configuration is invalid: {effective.errors[0]}", hint="llm-appliance check")
    if effective.origin == "last-good":
        progress.warn("the configuration file has errors; the last good one is used (llm-appliance check)")
    shutil.rmtree(layout.scratch, ignore_errors=True)
    os.makedirs(layout.scratch)
    try:
        child.write_certificates(config, layout, os.environ)
        os.environ.update(child.network_environment(config, layout))
        _run(given, config, layout, progress)
    finally:
        shutil.rmtree(layout.scratch, ignore_errors=True)


def _run(given: argparse.Namespace, config: Config, layout: Layout, progress: Progress) -> None:
    directory = Path(given.locks) if given.locks else locks.LOCKS
    kind = device.resolve(config.runtime.device)
    tested = locks.candidates(kind, directory)
    version = config.runtime.version or tested[0].version
    candidates = tuple(lock for lock in tested if lock.version == version)
    supported = sorted({python for lock in tested for python in lock.pythons})
    progress.describe(version, kind)
    request = Path(layout.runtimes, runtimes.REQUEST)
    if not config.local_instances and not request.exists():
        progress.phase("complete", "all engines are remote: this machine needs no vLLM")
        return
    python, python_version = bootstrap.find_python(supported, given.python)
    todo = decide(
        Wanted(
            version,
            kind,
            python_version,
            locks=tuple(lock.digest for lock in candidates),
            pinned=bool(config.runtime.version),
            requested=request.exists(),
        ),
        runtimes.installed(layout.runtimes),
        runtimes.chosen(layout.runtimes),
    )
    workshop = functools.lru_cache(maxsize=1)(
        lambda: _workshop(given, config, layout, progress, directory, python, python_version)
    )
    if isinstance(todo, Build):
        if not candidates:
            raise Impossible(
                f"this release can build vLLM {tested[0].version} alone, not {version}",
                hint='set [runtime] version = ""',
            )
        _build(todo, kind, candidates, layout, workshop())
    active = _activate(todo, layout, progress)
    request.unlink(missing_ok=True)

    models = modelstore.configured(config, layout.models(config))
    states = {model.model: modelstore.standing(model) for model in models}
    progress.models(states)
    if any(state != modelstore.READY for state in states.values()):
        from .models import fetch_missing

        def read(name: str) -> locks.Lock:
            return locks.read(name, directory)

        fetch_missing(models, config, read, workshop, f"{active.path}/bin/python")
    many = "" if len(models) == 1 else "s"
    progress.describe(active.version, active.device)
    progress.models(dict.fromkeys(states, modelstore.READY))
    progress.phase("complete", f"vLLM {active.version} ({active.device}) and {len(models)} model{many} are in place")


def _build(todo: Build, kind: str, candidates: tuple[Lock, ...], layout: Layout, shop: Workshop) -> None:
    from .build import build

    shop.progress.say(f"building {todo.name}: {todo.reason}")
    for one in runtimes.installed(layout.runtimes):
        if not one.complete and not one.current:
            runtimes.remove(layout.runtimes, one.name)
    build(shop, todo.name, kind, candidates)


def _activate(todo: Build | Keep, layout: Layout, progress: Progress) -> runtimes.Installed:
    """Point `current` at the right environment; the active one."""
    if isinstance(todo, Keep) or todo.activate:
        before = runtimes.linked(layout.runtimes, runtimes.CURRENT)
        runtimes.switch(layout.runtimes, todo.name)
        if before != todo.name:
            progress.say(f"{todo.name} is the active runtime now" + (f", in place of {before}" if before else ""))
    active = next((one for one in runtimes.installed(layout.runtimes) if one.current), None)
    if active is None:
        raise Failed("there is no active runtime", hint="llm-appliance runtime list")
    return active


def _workshop(
    given: argparse.Namespace,
    config: Config,
    layout: Layout,
    progress: Progress,
    directory: Path,
    python: str,
    python_version: str,
) -> Workshop:
    """What building and fetching need, uv installed. Raises Failed; may block for minutes."""
    from . import download
    from .build import Workshop

    sources = Sources(config.runtime.wheelhouses, config.runtime.index_url)
    for house in sources.wheelhouses:
        if not os.path.isdir(house):
            raise Impossible(
                f"[runtime] wheelhouse: {house} is not a directory that the user {names.RUNTIME_USER} can enter",
                hint="name a directory of wheels, or several separated by colons",
            )
    env = child.environment(config, layout, os.environ)
    progress.phase("resolving", "preparing uv, the package client")
    uv = given.uv or bootstrap.ensure_uv(
        layout, python, python_version, locks.read("bootstrap.txt", directory), sources, env
    )
    open_ = download.opener(config.runtime.index_url, config.network.ca_file)
    return Workshop(layout, uv, python, python_version, sources, env, open_, progress)
