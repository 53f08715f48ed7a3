"""Runs llm-runtime.service and tells how far it is, for every verb that needs a runtime or a model to be there.

The unit does the work; this side only asks for it and reads the unit's state file. Ctrl-C leaves it at work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from appliance import clock, names
from appliance.errors import Failed, Unreachable
from appliance.host import files, places, systemd

POLL_S = 0.5
SILENCE_S = 4000.0  # longer than any step of the unit takes without saying anything new: installing may take an hour
STEPS = ("resolving", "downloading", "installing", "testing", "models")


def run_job(report: Callable[[str], None]) -> str:
    """Start the unit and wait for its end; `report` gets each new sentence. The last sentence.

    A run that is under way began with what was asked before: it is waited for, then there is another one. Raises
    Unreachable where there is no systemd, it refuses, or the unit falls silent, Failed with the unit's own reason.
    """
    if not systemd.is_running():
        raise Unreachable(
            "this machine is not run by systemd, so llm-runtime.service cannot be started",
            hint="run the builder in the foreground: llm-appliance runtime-build --config FILE",
        )
    before = _unit()
    if not _ended(before):
        report("llm-runtime.service is at work already; it is waited for")
        before = _follow(0.0, report)  # whatever the state file says is of this run
    began = clock.wall()
    # A unit that waits for its own restart takes no start before that time.
    verb = "restart" if _waits(before) else "start"
    answer = systemd.ask(systemd.change(verb, names.RUNTIME_UNIT))
    if answer.status != 0:
        raise Unreachable(
            f"{names.RUNTIME_UNIT} cannot be started: {answer.errors.strip()}", hint="run the command as root (sudo)"
        )
    return _verdict(_follow(began, report), began)


def _follow(began: float, report: Callable[[str], None]) -> systemd.Unit:
    """Pass on each new sentence until a run has ended; the unit as it is then. Raises Unreachable when it is silent."""
    told, told_at = "", clock.monotonic()
    while True:
        unit, state = _unit(), _state(began)
        sentence = str(state.get("message") or "")
        if sentence and sentence != told:
            told, told_at = sentence, clock.monotonic()
            if state.get("phase") in STEPS:
                report(sentence)
        if _ended(unit):
            return unit
        if clock.monotonic() - told_at > SILENCE_S:
            raise Unreachable(f"{names.RUNTIME_UNIT} has said nothing new for an hour", hint="llm-appliance logs")
        time.sleep(POLL_S)


def _unit() -> systemd.Unit:
    return systemd.ask(systemd.show([names.RUNTIME_UNIT])).get(names.RUNTIME_UNIT, systemd.Unit(names.RUNTIME_UNIT))


def _waits(unit: systemd.Unit) -> bool:
    """Whether a run failed and systemd starts another one by itself."""
    return unit.active == "activating" and unit.sub.startswith("auto-restart")


def _ended(unit: systemd.Unit) -> bool:
    return not unit.job and (_waits(unit) or unit.active not in ("activating", "deactivating", "reloading"))


def _state(since: float) -> dict[str, object]:
    """The unit's state file, when it was written in this run: the unit renews it every other second. Else empty."""
    path = places.from_environment().under_run(names.RUNTIME_STATE)
    try:
        fresh = os.stat(path).st_mtime >= since - 1
    except OSError:
        return {}
    return (files.read_json(path) or {}) if fresh else {}


def _verdict(unit: systemd.Unit, began: float) -> str:
    state = _state(began)
    message = str(state.get("message") or "")
    if unit.active != "failed" and unit.result == "success" and state.get("phase") != "failed":
        return message
    again = "; it tries again by itself" if _waits(unit) else ""
    raise Failed(
        (message or f"{names.RUNTIME_UNIT} failed ({unit.result}, status {unit.exit_status})") + again,
        hint=f"journalctl -u {names.RUNTIME_UNIT}",
    )
