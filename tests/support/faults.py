"""Faults of a real engine: how they are put into it, what the supervisor tells of it, and the table of them all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.machine import Appliance
from tests.support.waiting import wait_until

UNIT = "llm-engine@default.service"
DROPIN = "/etc/llm-appliance/config.d/90-faults.toml"
MODEL = "/var/lib/llm-appliance/models/builtin/smollm2-135m"
COPY, WIDE = "/srv/copy", "/srv/wide"
RUNTIME_PYTHON = "/var/lib/llm-appliance/runtimes/current/bin/python"
RECOVERY = "/var/lib/llm-appliance/supervisor/recoveries/default"
# Kills the supervisor as soon as it has written each step of a recovery.
STRIKES = f"""
group=/sys/fs/cgroup$(systemctl show -P ControlGroup llm-supervisor.service)
for step in '"recorded": false' '"recorded": true' '"aborted": [0-9]' '"killed": [0-9]'; do
    until grep -qs "$step" {RECOVERY}; do [ $SECONDS -lt 150 ] || exit 0; sleep 0.01; done
    echo 1 > $group/cgroup.kill
    echo "$step"
done
"""
NAMES = {"EngineCore": "VLLM::EngineCor", "worker": "VLLM::Worker"}  # as the kernel cuts them
HEAD = ("fault", "cause that was found", "action", "known after", "serves again after")


@dataclass
class Table:
    """What was measured, a row a fault, as the README has it."""

    rows: list[tuple[str, str, str, str, str]] = field(default_factory=list)

    def add(self, fault: str, causes: str, action: str, known: float | None, again: float | str) -> None:
        """A row; times in seconds."""
        told = "-" if known is None else f"{known:.0f} s"
        found = ", ".join(f"`{cause}`" for cause in causes.split()) or "-"
        self.rows.append((fault, found, action, told, again if isinstance(again, str) else f"{again:.0f} s"))

    def text(self) -> str:
        """The table in Markdown."""
        lines = [HEAD, *self.rows]
        lines = ["| " + " | ".join(row) + " |" for row in lines]
        return "\n".join([lines[0], "|" + "---|" * len(HEAD), *lines[1:]])


@dataclass(frozen=True)
class End:
    """An end of an engine that the supervisor told in the journal."""

    engine: str
    cause: str
    at: float


def ends(appliance: Appliance) -> list[End]:
    """All of them, oldest first."""
    told = map(json.loads, appliance.journal("-q -o json -t llm-supervisor LLM_EVENT=engine-ended").splitlines())
    return [
        End(one["LLM_ENGINE"], one["LLM_CAUSE"], int(one["__REALTIME_TIMESTAMP"]) / 1e6)
        for one in told
        if one.get("LLM_CAUSE")
    ]


def next_end(appliance: Appliance, seen: int, limit: float = 420) -> End:
    """The one after the first `seen`."""
    wait_until(lambda: len(ends(appliance)) > seen, limit, "the supervisor tells of an end", pause=0.5)
    return ends(appliance)[seen]


def told(appliance: Appliance, name: str = "default") -> dict[str, Any]:
    """What the supervisor says of an engine."""
    engines = json.loads(appliance.box.read("/run/llm-appliance/supervisor/fleet.json"))["engines"]
    return dict(engines.get(name) or {})


def is_held(appliance: Appliance) -> bool:
    """Whether the engine is held and its unit has ended."""
    return told(appliance).get("state") == "held" and appliance.show(UNIT, "MainPID")["MainPID"] == "0"


def settle(appliance: Appliance, settings: str) -> None:
    """These settings are in force, the engine serves with them, and a first request was finished."""
    appliance.box.write(DROPIN, settings)
    appliance.cli("apply --yes --no-rollback", check=False, timeout=600)
    if told(appliance).get("state") == "held":
        appliance.cli("resume default", timeout=240)
    appliance.wait_serving("default")
    appliance.wait_answer()


# --- how faults are made ---------------------------------------------------------------------------------------------

Act = Callable[[Appliance], object]


def signal_to(number: str, victim: str) -> Act:
    """Sends a signal to one of vLLM's processes."""

    def act(appliance: Appliance) -> object:
        pid = appliance.engine()["pid"]
        if victim in NAMES:
            found = appliance.processes(UNIT)
            pid = next(found[name] for name in found if name.startswith(NAMES[victim]))
        return appliance.box.sh(f"kill -{number} {pid}")

    return act


def applied(settings: str) -> Act:
    """An operator applies these settings, and does not want them taken back."""

    def act(appliance: Appliance) -> object:
        appliance.box.write(DROPIN, settings)
        return appliance.cli("apply --yes --no-rollback", check=False, timeout=600)

    return act


def stand_still(appliance: Appliance) -> object:
    """The engine is started again, and its core is stopped as soon as it is there."""
    before = appliance.engine()["start"]
    restarted(appliance)
    wait_until(lambda: appliance.engine().get("start") not in (None, before), 60, "another start", pause=0.1)
    core = NAMES["EngineCore"]
    wait_until(lambda: any(name.startswith(core) for name in appliance.processes(UNIT)), 120, "its core", pause=0.1)
    return signal_to("STOP", "EngineCore")(appliance)


def restarted(appliance: Appliance) -> object:
    """The unit is restarted, as an operator does it."""
    return appliance.box.sh(f"systemctl restart --no-block {UNIT}")


def seconds_away(appliance: Appliance, act: Act) -> float:
    """From the act to the first token of the next run of vLLM."""
    before, began = appliance.engine()["start"], clock()
    act(appliance)

    def ready() -> float | None:
        state = appliance.engine()
        return state.get("ready") if state.get("start") != before else None

    return float(wait_until(ready, 300, "another run of vLLM serves", pause=0.2) or 0.0) - began


def fill(appliance: Appliance) -> object:
    """No page is left in the engine's own /dev/shm; then a request comes that is larger than those before."""
    cut = "mount -o remount,size=$(($(df --output=used /dev/shm | tail -n 1)))k /dev/shm"
    appliance.box.sh(f"nsenter -t {appliance.engine()['pid']} -m -- sh -ec '{cut}'")
    return appliance.sdk("chat", "word " * 3000)


def copied(then: str) -> Act:
    """A copy of the model, with which something was done."""
    return lambda appliance: appliance.box.sh(
        f"rm -rf {COPY} && cp -rL {MODEL} {COPY} && chmod -R a+rX {COPY} && {then}", timeout=120
    )


def widened(appliance: Appliance) -> object:
    """The model, made fit for two ranks; once."""
    appliance.box.put(Path(__file__).with_name("widened.py"), "/root/widened.py")
    make = f"{RUNTIME_PYTHON} /root/widened.py {MODEL} {WIDE} && chmod -R a+rX {WIDE}"
    return appliance.box.sh(f"test -d {WIDE} || ({make})", timeout=180)


def clock() -> float:
    """Now, as the journal counts."""
    return time.time()
