"""Have llm-runtime.service complete the runtime and the models, and show how far it is."""

from __future__ import annotations

import time

from appliance import clock, names
from appliance.errors import Failed
from appliance.host import files, places, systemd

from . import output

POLL_S = 0.5
LIMIT_S = 12 * 3600.0  # a 400 GB model over a slow line; the unit itself ends a build without progress


def complete(why: str) -> None:
    """Run the unit to its end, printing each new status line. Raises Failed with what it said last."""
    print(f"{why}: {names.RUNTIME_UNIT} completes it", flush=True)
    end = clock.monotonic() + LIMIT_S
    before = _state()
    if before.active == "activating":
        before = _follow(end)  # it began with the configuration of before: let it finish, then ask again
    # A unit that waits for its own restart takes no start before that time.
    verb = "restart" if before.sub.startswith("auto-restart") else "start"
    done = systemd.ask(systemd.change(verb, names.RUNTIME_UNIT))
    if done.status != 0:
        raise Failed(f"{names.RUNTIME_UNIT} does not start: {done.errors.strip()}")
    unit = _follow(end)
    if unit.active == "failed" or unit.result != "success":
        state = files.read_json(places.from_environment().under_run(names.RUNTIME_STATE)) or {}
        said = state.get("message") or unit.status_text or f"result {unit.result}"
        raise Failed(f"nothing was applied: {said}", hint=f"journalctl -u {names.RUNTIME_UNIT}")


def _follow(end: float) -> systemd.Unit:
    """Wait for the end of a run; the unit as it is then."""
    shown = ""
    while True:
        unit = _state()
        if unit.status_text and unit.status_text != shown:
            shown = unit.status_text
            print(f"  {output.clean(shown)}", flush=True)
        waiting = unit.sub.startswith("auto-restart")
        if waiting or (unit.active not in ("activating", "deactivating", "reloading") and not unit.job):
            return unit
        if clock.monotonic() > end:
            raise Failed(f"{names.RUNTIME_UNIT} has not ended", hint=f"journalctl -u {names.RUNTIME_UNIT}")
        time.sleep(POLL_S)


def _state() -> systemd.Unit:
    return systemd.ask(systemd.show([names.RUNTIME_UNIT])).get(names.RUNTIME_UNIT, systemd.Unit(names.RUNTIME_UNIT))
