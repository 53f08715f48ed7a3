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
SILENCE_S = 1200.0  # longer than any step of the unit takes without saying anything new
STEPS = ("resolving", "downloading", "installing", "testing", "models")


def run_job(report: Callable[[str], None]) -> str:
    """Start the unit and wait for its end; `report` gets each new sentence. The last sentence.

    Raises Unreachable where there is no systemd or the unit falls silent, Failed with the unit's own reason.
    """
    if not systemd.is_running():
        raise Unreachable(
            "this machine is not run by systemd, so llm-runtime.service cannot be started",
            hint="run the builder in the foreground: llm-appliance runtime-build --config FILE",
        )
    began = clock.wall()
    answer = systemd.ask(systemd.change("start", names.RUNTIME_UNIT))
    if answer.status != 0:
        raise Failed(
            f"{names.RUNTIME_UNIT} cannot be started: {answer.errors.strip()}", hint="run the command as root (sudo)"
        )
    told, told_at = "", clock.monotonic()
    while True:
        unit = systemd.ask(systemd.show([names.RUNTIME_UNIT])).get(names.RUNTIME_UNIT, systemd.Unit(names.RUNTIME_UNIT))
        state = _state(began)
        sentence = str(state.get("message", "")) if state else ""
        if sentence and sentence != told:
            told, told_at = sentence, clock.monotonic()
            if state and state.get("phase") in STEPS:
                report(sentence)
        if not unit.job and unit.active in ("failed", "inactive"):
            return _verdict(unit, began)
        if unit.active == "activating" and unit.sub == "auto-restart":
            report("it failed; the unit tries again by itself")
            return _verdict(unit, began)
        if clock.monotonic() - told_at > SILENCE_S:
            raise Unreachable(f"{names.RUNTIME_UNIT} has said nothing new for 20 minutes", hint="llm-appliance logs")
        time.sleep(POLL_S)


def _state(since: float) -> dict[str, object] | None:
    """The unit's state file, when it was written in this run: the unit renews it every other second."""
    path = places.from_environment().under_run(names.RUNTIME_STATE)
    try:
        fresh = os.stat(path).st_mtime >= since - 1
    except OSError:
        return None
    return files.read_json(path) if fresh else None


def _verdict(unit: systemd.Unit, began: float) -> str:
    state = _state(began) or {}
    message = str(state.get("message", ""))
    if unit.active == "inactive" and state.get("phase") != "failed":
        return message
    raise Failed(
        message or f"{names.RUNTIME_UNIT} failed ({unit.result}, status {unit.exit_status})",
        hint=f"journalctl -u {names.RUNTIME_UNIT}",
    )
