"""Each fault that an engine can have, put into a real vLLM: what is found, what is done, how long both take.

Run by `tests/run --faults`, apart from the ordinary run: it takes minutes. A drop-in shortens the limits of silence,
but for one hang, which is waited for with the limits as they are installed. The README has the table that comes out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.machine import Appliance
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.faults]
UNIT = "llm-engine@default.service"
DROPIN = "/etc/llm-appliance/config.d/90-faults.toml"
MODEL = "/var/lib/llm-appliance/models/builtin/smollm2-135m"
COPY = "/srv/copy"
SHORT = """
[supervisor]
interval = "1s"
[supervisor.restart]
backoff = "1s"
budget = 50
[supervisor.hang]
suspect = "4s"
confirm = "12s"
confirm_blind = "20s"
confirm_idle_gpu = "15s"
compile_allowance = "20s"
grammar_allowance = "25s"
"""


@dataclass(frozen=True)
class Fault:
    """A fault: how it is made, and what has to be found. `serves`: it gets well by itself, else it is held."""

    name: str
    make: Callable[[Appliance], object]
    causes: tuple[str, ...]
    serves: bool = True
    config: str = ""
    prepare: str = ""
    stream: bool = True
    settings: str = SHORT


@dataclass
class Table:
    """What was measured, a row a fault."""

    rows: list[tuple[str, str, str, str, str]] = field(default_factory=list)

    def text(self) -> str:
        head = ("fault", "cause", "action", "known after", "serves again after")
        lines = [head, tuple("-" * len(word) for word in head), *self.rows]
        return "\n".join("| " + " | ".join(row) + " |" for row in lines)


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    made = Table()
    yield made
    print(f"\n{made.text()}\n", file=sys.__stdout__, flush=True)


def signal_to(name: str, victim: str) -> Callable[[Appliance], object]:
    """Sends a signal to one of vLLM's processes."""

    def make(appliance: Appliance) -> object:
        found = appliance.processes(UNIT)
        prefix = {"EngineCore": "VLLM::EngineCor", "worker": "VLLM::Worker"}.get(victim, "")
        pid = next(
            (pid for comm, pid in found.items() if prefix and comm.startswith(prefix)), appliance.engine()["pid"]
        )
        return appliance.box.sh(f"kill -{name} {pid}")

    return make


def applied(appliance: Appliance) -> object:
    return appliance.cli("apply --yes --no-rollback", check=False, timeout=600)


def model_at(path: str) -> str:
    return f'[[engine]]\nname = "default"\nmodel = "{path}"\nserved_names = ["smollm2-135m"]\n'


def copied(then: str) -> str:
    return f"rm -rf {COPY} && cp -rL {MODEL} {COPY} && chmod -R a+rX {COPY} && {then}"


HANGS = ("hang-rank-absent", "hang-scheduler", "hang-livelock", "hang-collective", "hang-kernel")
DIED = ("engine-died", "worker-died")
FAULTS = (
    Fault("SIGSTOP of EngineCore", signal_to("STOP", "EngineCore"), HANGS),
    Fault("SIGSTOP of a worker", signal_to("STOP", "worker"), HANGS),
    Fault("SIGSTOP of the API process", signal_to("STOP", "API"), HANGS),
    Fault("kill -9 of EngineCore", signal_to("KILL", "EngineCore"), DIED),
    Fault("kill -9 of a worker", signal_to("KILL", "worker"), DIED),
    Fault("kill -9 of the API process", signal_to("KILL", "API"), DIED),
    Fault("a flag beyond the model", applied, ("config-error",), serves=False, stream=False,
          config='[[engine]]\nname = "default"\n[engine.vllm]\nmax_model_len = 1000000\n'),
    Fault("a missing model directory", applied, ("model-not-found",), serves=False, stream=False,
          config=model_at("/srv/none")),
    Fault("a file that cannot be read", applied, ("model-unreadable",), serves=False, stream=False,
          prepare=copied(f"chmod 0600 {COPY}/model.safetensors"), config=model_at(COPY)),
    Fault("a broken safetensors file", applied, ("model-unreadable",), serves=False, stream=False,
          prepare=copied(f"truncate -s 1000 {COPY}/model.safetensors"), config=model_at(COPY)),
    Fault("a /dev/shm that is too small", applied, ("shm-full",), serves=False, stream=False,
          config='[[engine]]\nname = "default"\nshm_size = "64M"\n'),
    Fault("a start that stands still", lambda a: stand_still(a), ("hang-startup", "hang-init"), stream=False),
    Fault("SIGSTOP of EngineCore, limits as installed", signal_to("STOP", "EngineCore"), HANGS, settings=""),
)  # fmt: skip


def stand_still(appliance: Appliance) -> object:
    """The engine is started again and its processes are stopped as soon as it loads."""
    before = appliance.engine()["start"]
    appliance.box.sh(f"systemctl restart --no-block {UNIT}")
    wait_until(lambda: appliance.engine().get("start") not in (None, before), 60, "another start", pause=0.1)
    wait_until(lambda: any(name.startswith("VLLM::") for name in appliance.processes(UNIT)), 90, "its core", pause=0.1)
    return signal_to("STOP", "EngineCore")(appliance)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault(appliance: Appliance, table: Table, fault: Fault) -> None:
    settle(appliance, fault.settings)
    try:
        if fault.prepare:
            appliance.box.sh(fault.prepare, timeout=120)
        if fault.config:
            appliance.box.write(DROPIN, fault.settings + fault.config)
        row = strike(appliance, fault)
        table.rows.append(row)
        assert row[1] in fault.causes
    finally:
        appliance.box.sh(f"rm -rf {COPY}")


def settle(appliance: Appliance, settings: str) -> None:
    """The engine serves with these settings, and a first request was finished."""
    appliance.box.write(DROPIN, settings)
    appliance.cli("apply --yes --no-rollback", check=False, timeout=600)
    if appliance.cli("status --json", check=False).out.find('"held"') >= 0:
        appliance.cli("resume default", timeout=240)
    appliance.wait_serving("default")
    appliance.wait_answer()


def strike(appliance: Appliance, fault: Fault) -> tuple[str, str, str, str, str]:
    """Make the fault and watch; the row that it gives."""
    start, seen = appliance.engine()["start"], len(ends(appliance))
    began = time.monotonic()
    stream = appliance.streaming() if fault.stream else None
    if stream is not None:
        with stream as running:
            began = time.monotonic()
            fault.make(appliance)
            found = known(appliance, seen)
            end = running.end(120)
            assert end["error"] is not None, end  # no half answer that looks whole
    else:
        fault.make(appliance)
        found = known(appliance, seen)
    detected = time.monotonic() - began
    if not fault.serves:
        wait_until(lambda: appliance.status()["state"] != "serving" and held(appliance), 120, "it is held", pause=1)
        return (fault.name, found["LLM_CAUSE"], "held", f"{detected:.0f} s", "after mending")
    answer = appliance.wait_answer()
    again = time.monotonic() - began
    assert "Paris" in answer["text"]
    assert appliance.wait_serving("default")["start"] != start
    return (fault.name, found["LLM_CAUSE"], "restart", f"{detected:.0f} s", f"{again:.0f} s")


def held(appliance: Appliance) -> bool:
    return '"held"' in appliance.cli("status --json", check=False).out


def known(appliance: Appliance, seen: int) -> dict[str, Any]:
    """The next end that the supervisor tells of, with its cause."""
    wait_until(lambda: len(ends(appliance)) > seen, 420, "the supervisor tells of an end", pause=0.3)
    return ends(appliance)[seen]


def ends(appliance: Appliance) -> list[dict[str, Any]]:
    lines = appliance.journal("-q -o json LLM_EVENT=engine-ended").splitlines()
    return [found for found in map(json.loads, lines) if found.get("LLM_CAUSE")]


def test_the_supervisor_is_killed_in_a_recovery_and_another_frozen(appliance: Appliance, table: Table) -> None:
    """Killed while it takes an engine down, the next one goes on; frozen, the watchdog ends it and engines serve on."""
    settle(appliance, SHORT)
    start, before = appliance.engine()["start"], len(ends(appliance))
    began = time.monotonic()
    signal_to("STOP", "EngineCore")(appliance)
    with appliance.streaming_blind():
        wait_until(
            lambda: appliance.box.sh("ls /var/lib/llm-appliance/supervisor/recoveries", check=False).out.strip(),
            120, "it is being taken down", pause=0.1,
        )  # fmt: skip
        appliance.box.sh("systemctl kill -s KILL llm-supervisor")
    appliance.wait_answer()
    table.rows.append(("supervisor killed while it takes an engine down", ends(appliance)[before]["LLM_CAUSE"],
                       "the next one goes on", "-", f"{time.monotonic() - began:.0f} s"))  # fmt: skip
    assert appliance.engine()["start"] != start
    frozen = appliance.show("llm-supervisor.service", "MainPID")["MainPID"]
    start, began = appliance.engine()["start"], time.monotonic()
    appliance.box.sh(f"kill -STOP {frozen}")
    wait_until(
        lambda: appliance.show("llm-supervisor.service", "MainPID")["MainPID"] not in ("0", frozen), 180,
        "the watchdog has restarted the supervisor", pause=1,
    )  # fmt: skip
    table.rows.append(("SIGSTOP of the supervisor", "-", "watchdog", f"{time.monotonic() - began:.0f} s", "serves on"))
    assert "Paris" in appliance.wait_answer(30)["text"]
    assert appliance.engine()["start"] == start
