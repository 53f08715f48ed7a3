"""`llm-appliance apply`: make the configuration on disk take effect, in an order that hurts least.

    1. check: an invalid file ends here, with every problem and nothing changed
    2. say what changes and what it costs; a new address that another program has ends it, and so does --dry-run
    3. complete the runtime and the models that the new configuration needs, while the old one serves
    4. let the generator make the units; the gateway takes it over (a changed address restarts it with its sockets)
    5. the supervisor restarts the changed engines, one after the other, and tells how it goes
    6. it worked: it is the last good configuration. The gateway did not start with its new addresses, or an engine that
       served before, or that is new: the settings are set aside and the last good configuration comes back the same way
       (--no-rollback leaves it)

Killed or refused in between, it can simply be run again.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance import names
from appliance.config import diff, source
from appliance.config.model import Config
from appliance.errors import EXIT_FOUND, EXIT_OK, ConfigInvalid, Failed, Unreachable, UsageError
from appliance.host import files, modelstore, places, systemd
from appliance.units.render import units

from . import output, ports, rollback
from .changes import RELOAD, RESTART, Costs, costs, lines, listed
from .runtimejob import run_job
from .supervisorclient import ended, followed, silence

GATEWAY_DEADLINE_S = 180.0  # a drain takes up to TimeoutStopSec= of the gateway
RELOAD_DEADLINE_S = 60.0
MUTE = "the gateway did not take the configuration over"


@dataclass(frozen=True, slots=True)
class Step:
    """From one configuration to another: what differs, what it costs, and the text that last-good.toml gets."""

    path: str
    old: Config | None
    new: Config
    text_digest: str
    snapshot: bytes
    changed: tuple[diff.Change, ...]
    price: Costs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`[--dry-run] [--units] [--yes] [--no-rollback] [--json]`."""
    parser.add_argument("--dry-run", action="store_true", help="say what would change and what it costs, do nothing")
    parser.add_argument("--units", action="store_true", help="show how the text of units changes, too")
    parser.add_argument("--yes", action="store_true", help="do not ask before engines that serve are restarted")
    parser.add_argument(
        "--no-rollback",
        action="store_true",
        help="keep the new configuration also when the gateway or an engine does not start",
    )


def run(args: argparse.Namespace) -> int:
    """Exit status 0 applied, 1 an address taken, gateway or engine not up again, 2 invalid, 3 no systemd or right."""
    found = source.load(args.config)
    if found.config is None:
        raise ConfigInvalid(found.problems)
    for problem in found.problems:
        output.note(f"{problem.severity}: {problem}")
    old = source.last_good(args.config).config
    step = _step(args.config, old, found.config, found.text_digest)
    if args.json:
        if not args.dry_run:
            raise UsageError("--json shows a plan: give --dry-run with it")
        output.print_json(listed(step.changed, step.price))
    else:
        _say(step)
        if args.units:
            sys.stdout.writelines(_unit_changes(step))
    if step.price.gateway == RESTART:
        ports.refuse_taken(step.path, step.new)
    if args.dry_run:
        return EXIT_OK
    if not systemd.is_running():
        raise Unreachable(
            "systemd is not running here, so there are no units to change",
            hint="llm-appliance gateway --config FILE runs the gateway in the foreground",
        )
    if os.geteuid() != 0:
        raise Unreachable("only root may apply a configuration", hint="sudo llm-appliance apply")
    if step.price.restarted and not args.yes and not _agreed(step.price):
        raise Failed("nothing was changed")
    return _apply(step, keep=args.no_rollback)


def _step(path: str, old: Config | None, new: Config, text_digest: str) -> Step:
    changed = diff.changes(old, new) if old is not None else ()
    return Step(path, old, new, text_digest, source.snapshot(path), changed, costs(changed, old, new))


def _apply(step: Step, *, keep: bool) -> int:
    missing = _missing(step.new)
    if missing or step.price.runtime:
        _complete(missing or "another runtime is wanted")
        if source.load(step.path).text_digest != step.text_digest:
            raise Failed("nothing was applied: the configuration was edited meanwhile", hint="llm-appliance apply")
    served = rollback.serving()
    rollback.accept(step.path)
    end = _into_force(step.price, at_all_costs=keep)
    lost = end.get("lost")
    back = "gateway" in end or (isinstance(lost, list) and rollback.helps(lost, step.old, served))
    if keep or not back:
        _remember(step)
        return ended(end)
    output.note(f"llm-appliance: {end.get('message')}")
    return _roll_back(step, str(end.get("message") or "an engine did not start"))


def _roll_back(step: Step, reason: str) -> int:
    """The last good configuration comes into force again; the exit status is that of something that went wrong."""
    print("rolling back to the last good configuration", flush=True)
    rollback.reject(step.path, step.text_digest, reason)
    assert step.old is not None
    changed = diff.changes(step.new, step.old)
    if ended(_into_force(costs(changed, step.new, step.old), at_all_costs=True)) == EXIT_OK:
        print(f"{step.path} is as you left it and not in force: correct it and apply it again", flush=True)
    return EXIT_FOUND


def _into_force(price: Costs, *, at_all_costs: bool) -> Mapping[str, object]:
    """Units, gateway, engines, in that order; the supervisor's last word. Raises Failed, Unreachable.

    Without its gateway no engine is of use: where that does not start at its new addresses, the word is `gateway`, and
    engines are left as they are unless it is to be done at all costs.
    """
    done = systemd.ask(systemd.daemon_reload(), RELOAD_DEADLINE_S)
    if done.status != 0:
        raise Failed(f"systemctl daemon-reload: {done.errors.strip()}", hint="journalctl -b -p err")
    mute = not _took_over(price.gateway or RELOAD)  # it may have started with another file than this one
    if mute and price.gateway == RESTART and not at_all_costs:
        return {"ok": False, "message": MUTE, "gateway": price.gateway}
    systemd.ask(systemd.change("restart", names.CONFIG_CHECK_UNIT))  # red for a bad file, and for no longer than that
    try:
        end = followed("apply", silence_s=silence(True))
        return {**end, "ok": False, "message": f"{MUTE}; {end.get('message')}"} if mute else end
    except Unreachable as error:
        left = ", ".join(price.engines) or "none"
        raise Unreachable(
            f"the gateway has the configuration, engines not yet ({left}): {error.message}",
            hint="systemctl restart llm-supervisor, then llm-appliance apply again",
        ) from None


def _say(step: Step) -> None:
    if step.old is None:
        print("no configuration was applied before")
    elif not step.changed:
        print("no setting differs from the configuration that was applied last")
    for line in lines(step.changed):
        print(line)
    for instance, what in step.price.engines.items():
        print(f"engine {instance} {what}")
    if step.price.gateway == RESTART:
        print("the gateway is restarted with its sockets: open connections drop")


def _unit_changes(step: Step) -> Iterator[str]:
    """Unified differences of what the generator makes."""
    before = units(step.old, step.path) if step.old is not None else {}
    after = units(step.new, step.path)
    for name in sorted({*before, *after}):
        old, new = ((side.get(name, "") or "").splitlines(keepends=True) for side in (before, after))
        gone, came = ("/dev/null" if name not in side else name for side in (before, after))
        yield from difflib.unified_diff(old, new, gone, came)


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


def _remember(step: Step) -> None:
    """Write last-good.toml beside the file, for the same readers as the file."""
    target = Path(step.path).parent / names.LAST_GOOD_NAME
    like = os.stat(step.path)
    files.replace(target, step.snapshot, like.st_mode & 0o777)
    os.chown(target, like.st_uid, like.st_gid)


def _took_over(how: str) -> bool:
    """Let the gateway take the configuration over; whether it did."""
    if how == RESTART:
        print("restarting the gateway and its sockets", flush=True)
        # Not by `restart`: systemd lets no socket listen while its service runs, and starts that again meanwhile.
        units = (names.GATEWAY_SOCKET_UNIT, names.GATEWAY_ADMIN_SOCKET_UNIT, names.GATEWAY_UNIT)
        try:
            systemd.ask(systemd.change("stop", *units, block=True), GATEWAY_DEADLINE_S)
        finally:  # Ctrl-C, too, leaves it running
            done = systemd.ask(systemd.change("start", *units, block=True), GATEWAY_DEADLINE_S)
    else:
        done = systemd.ask(systemd.change("reload-or-restart", names.GATEWAY_UNIT, block=True), GATEWAY_DEADLINE_S)
    if done.status != 0:
        for line in dict.fromkeys(done.errors.strip().splitlines()):
            output.note(f"warning: {line}")
        output.note(f"hint: journalctl -n 20 -u {names.GATEWAY_UNIT} -u {names.GATEWAY_SOCKET_UNIT}")
    return done.status == 0
