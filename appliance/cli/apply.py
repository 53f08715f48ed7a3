"""`llm-appliance apply`: make the configuration on disk take effect, in an order that hurts least.

    1. check: an invalid file ends here, with every problem and nothing changed
    2. say what changes and what it costs; --dry-run ends here
    3. complete the runtime and the models that the new configuration needs, while the old one serves
    4. remember it as the last good one, let the generator make the units
    5. the gateway takes it over (a changed address restarts it with its sockets)
    6. the supervisor restarts the changed engines, one after the other, and tells how it goes

Killed or refused in between, it can simply be run again.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from appliance import names
from appliance.config import diff, source
from appliance.config.model import Config
from appliance.errors import EXIT_OK, ConfigInvalid, Failed, Unreachable
from appliance.host import files, modelstore, places, systemd

from . import output
from .changes import RESTART, Costs, costs, lines
from .runtimejob import run_job
from .supervisorclient import follow, silence

GATEWAY_DEADLINE_S = 180.0  # a drain takes up to TimeoutStopSec= of the gateway
RELOAD_DEADLINE_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`[--dry-run] [--yes]`."""
    parser.add_argument("--dry-run", action="store_true", help="say what would change and what it costs, do nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask before engines that serve are restarted")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 applied, 1 an engine did not come back, 2 invalid, 3 no systemd, supervisor or permission."""
    found = source.load(args.config)
    if found.config is None:
        raise ConfigInvalid(found.problems)
    for problem in found.problems:
        output.note(f"{problem.severity}: {problem}")
    old = source.last_good(args.config).config
    changed = diff.changes(old, found.config) if old is not None else ()
    price = costs(changed, old, found.config)
    _say(old, changed, price)
    if args.dry_run:
        return EXIT_OK
    if not systemd.is_running():
        raise Unreachable(
            "systemd is not running here, so there are no units to change",
            hint="llm-appliance gateway --config FILE runs the gateway in the foreground",
        )
    if os.geteuid() != 0:
        raise Unreachable("only root may apply a configuration", hint="sudo llm-appliance apply")
    if price.restarted and not args.yes and not _agreed(price):
        raise Failed("nothing was changed")
    return _apply(args.config, found.config, price)


def _apply(path: str, config: Config, price: Costs) -> int:
    missing = _missing(config)
    if missing or price.runtime:
        _complete(missing or "another runtime is wanted")
    _remember(path)
    done = systemd.ask(systemd.daemon_reload(), RELOAD_DEADLINE_S)
    if done.status != 0:
        raise Failed(f"systemctl daemon-reload: {done.errors.strip()}", hint="journalctl -b -p err")
    if price.gateway:
        _gateway(price.gateway == RESTART)
    systemd.ask(systemd.change("restart", names.CONFIG_CHECK_UNIT))  # red for a bad file, and for no longer than that
    try:
        return follow("apply", silence_s=silence(True))
    except Unreachable as error:
        left = ", ".join(price.engines) or "none"
        raise Unreachable(
            f"the gateway has the configuration, engines not yet ({left}): {error.message}",
            hint="systemctl restart llm-supervisor, then llm-appliance apply again",
        ) from None


def _say(old: Config | None, changed: tuple[diff.Change, ...], price: Costs) -> None:
    if old is None:
        print("no configuration was applied before")
    elif not changed:
        print("no setting differs from the configuration that was applied last")
    for line in lines(changed):
        print(line)
    for instance, what in price.engines.items():
        print(f"engine {instance} {what}")
    if price.gateway == RESTART:
        print("the gateway is restarted with its sockets: open connections drop")


def _agreed(price: Costs) -> bool:
    """Ask a person; a script is taken at its word."""
    if not (sys.stdin.isatty() and output.is_terminal()):
        return True
    try:
        answer = input(f"restart {', '.join(price.restarted)}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def _missing(config: Config) -> str:
    """What the engines of the configuration need and this machine has not got; empty when all is there."""
    where = places.from_environment()
    if not os.path.exists(f"{where.under_state(names.CURRENT_RUNTIME)}/{names.RUNTIME_COMPLETE}"):
        return "there is no vLLM runtime yet" if config.local_instances else ""
    for model in modelstore.configured(config, where.under_state(config.models.directory)):
        standing = modelstore.standing(model)
        if model.is_directory and standing != modelstore.READY:
            output.note(f"warning: model {model.model}: {standing}")
        elif standing != modelstore.READY:
            return f"model {model.model}: {standing}"
    return ""


def _complete(why: str) -> None:
    """Have the runtime's unit fetch and build what is missing. Raises Failed, Unreachable."""
    print(f"{why}: {names.RUNTIME_UNIT} completes it", flush=True)
    try:
        run_job(lambda sentence: print(f"  {output.clean(sentence)}", flush=True))
    except Failed as error:
        raise Failed(f"nothing was applied: {error.message}", hint=error.hint) from error


def _remember(path: str) -> None:
    """Write last-good.toml beside the file, for the same readers as the file."""
    target = Path(path).parent / names.LAST_GOOD_NAME
    like = os.stat(path)
    files.replace(target, source.snapshot(path), like.st_mode & 0o777)
    os.chown(target, like.st_uid, like.st_gid)


def _gateway(restart: bool) -> None:
    """Let the gateway take the configuration over."""
    if restart:
        print("restarting the gateway and its sockets", flush=True)
        units = (names.GATEWAY_SOCKET_UNIT, names.GATEWAY_ADMIN_SOCKET_UNIT, names.GATEWAY_UNIT)
        command = systemd.change("restart", *units, block=True)
    else:
        command = systemd.change("reload-or-restart", names.GATEWAY_UNIT, block=True)
    done = systemd.ask(command, GATEWAY_DEADLINE_S)
    if done.status != 0:
        output.note(f"warning: the gateway did not take it over: {done.errors.strip()}")
        output.note("hint: systemctl status llm-gateway llm-gateway.socket")
