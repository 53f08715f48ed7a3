"""Each fault that an engine can have, put into a real vLLM: what is found, what is done, how long both take.

Run by `tests/run --faults`, apart from the ordinary run: it takes half an hour. A drop-in shortens the limits of
silence, but for one hang, which is waited for with the limits as they are installed. The README has the table that
comes out.

The built-in model has nine heads, which two ranks cannot share: for the faults of one of two workers it gets three more
that add nothing, and answers as before. A fourth hang of one configuration within an hour would be held, so that the
rows that change the configuration stand between the hangs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import pytest

from tests.support.faults import (
    COPY,
    RECOVERY,
    STRIKES,
    UNIT,
    WIDE,
    Act,
    Table,
    applied,
    clock,
    copied,
    ends,
    fill,
    is_held,
    next_end,
    restarted,
    seconds_away,
    settle,
    signal_to,
    stand_still,
    told,
    widened,
)
from tests.support.machine import EMBED, PARIS, Appliance
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.faults]
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
compile_allowance = "30s"
grammar_allowance = "35s"
"""
ENGINE = '[[engine]]\nname = "default"\n'
BUILTIN = f'{ENGINE}model = "builtin:smollm2-135m"\n'
BOTH = f'{BUILTIN}[[engine]]\nname = "embed"\nmodel = "builtin:minilm-l6-v2"\n'


def model_at(path: str) -> str:
    return f'{ENGINE}model = "{path}"\nserved_names = ["smollm2-135m"]\n'


# A small KV cache: each rank has one, and the machine's memory is shared with the tests.
TWO = f"""{model_at(WIDE)}[engine.vllm]
tensor_parallel_size = 2
max_model_len = 4096
kv_cache_memory_bytes = 268435456
"""


@dataclass(frozen=True)
class Fault:
    """A fault of an engine that serves with `settings`: how it is made, and what has to be found."""

    name: str
    make: Act
    causes: tuple[str, ...]
    settings: str = SHORT
    prepare: Act | None = None
    stream: bool = True


HANGS = ("hang-rank-absent", "hang-scheduler", "hang-livelock", "hang-collective", "hang-kernel")
DIED = ("engine-died", "worker-died")
MENDED = (  # the engine gets well by itself
    Fault("SIGSTOP of EngineCore", signal_to("STOP", "EngineCore"), HANGS),
    Fault("SIGSTOP of the worker", signal_to("STOP", "worker"), HANGS),
    Fault("SIGSTOP of the API process", signal_to("STOP", "API"), HANGS),
    Fault("kill -9 of EngineCore", signal_to("KILL", "EngineCore"), DIED),
    Fault("kill -9 of the worker", signal_to("KILL", "worker"), DIED),
    Fault("kill -9 of the API process alone", signal_to("KILL", "API"), DIED),
    Fault("SIGSTOP of one of two workers", signal_to("STOP", "worker"), HANGS, SHORT + TWO, widened),
    Fault("kill -9 of one of two workers", signal_to("KILL", "worker"), DIED, SHORT + TWO, widened),
    Fault("a /dev/shm that fills while it serves", fill, ("shm-full",)),
    Fault("a start that stands still (limit 60 s)", stand_still, ("hang-startup", "hang-init"), stream=False),
    Fault("SIGSTOP of EngineCore, limits as installed", signal_to("STOP", "EngineCore"), HANGS, settings=""),
)
HELD = (  # it will not get better by itself
    Fault("a flag beyond the model", applied(f"{SHORT}{BUILTIN}[engine.vllm]\nmax_model_len = 1000000\n"),
          ("config-error",)),
    Fault("a missing model directory", applied(SHORT + model_at("/srv/none")), ("model-not-found",)),
    Fault("a file that cannot be read", applied(SHORT + model_at(COPY)), ("model-unreadable",),
          prepare=copied(f"chmod 0600 {COPY}/model.safetensors")),
    Fault("a broken safetensors file", applied(SHORT + model_at(COPY)), ("model-unreadable",),
          prepare=copied(f"truncate -s 1000 {COPY}/model.safetensors")),
    Fault("a /dev/shm that is too small", applied(f'{SHORT}{BUILTIN}shm_size = "64M"\n'), ("shm-full",)),
)  # fmt: skip


TOGETHER = "kill -9 of two engines at once"
FROZEN = "SIGSTOP of the supervisor"
STRUCK = "SIGSTOP of all, launcher included; kill -9 of the supervisor at each step of the recovery"
SERVED = 10.0  # seconds, more than the backoff is after three deaths: a crash that comes later is no loop
ROWS = (*(fault.name for fault in (*MENDED, *HELD)), TOGETHER, FROZEN, STRUCK)


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    made = Table()
    yield made
    print(f"\n{made.text()}\n", file=sys.__stdout__, flush=True)


def by_name(fault: Fault) -> str:
    return fault.name.replace(" ", "-")


@pytest.mark.timeout(1200)
def test_a_crash_is_over_sooner_than_a_plain_restart(appliance: Appliance) -> None:
    """In at most 60 % of the time to the first token: the standby has vLLM's modules, and its unit goes on."""
    settle(appliance, SHORT)
    crashes, restarts = [], []
    for _ in range(3):
        wait_until(lambda: clock() - appliance.engine()["ready"] > SERVED, 60, "no pause is due", pause=0.5)
        crashes.append(seconds_away(appliance, signal_to("KILL", "EngineCore")))
        restarts.append(seconds_away(appliance, restarted))
    settle(appliance, f"{SHORT}{BUILTIN}standby = false\n")
    alone = [seconds_away(appliance, restarted) for _ in range(3)]
    told = {"kill -9 of EngineCore": crashes, "systemctl restart": restarts, "without a standby": alone}
    lines = [f"{what}: " + ", ".join(f"{took:.1f}" for took in all_of) + " s" for what, all_of in told.items()]
    print("\nto the first token after", *lines, sep="\n", file=sys.__stdout__, flush=True)
    assert median(crashes) <= 0.6 * median(restarts), lines
    assert median(restarts) < 0.8 * median(alone), lines


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", MENDED, ids=by_name)
def test_an_engine_gets_well_by_itself(appliance: Appliance, table: Table, fault: Fault) -> None:
    """The cause is found, a stream ends with an error, another start of the engine answers rightly."""
    if fault.prepare:
        fault.prepare(appliance)
    settle(appliance, fault.settings)
    start, seen = appliance.engine()["start"], len(ends(appliance))
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(appliance.streaming()) if fault.stream else None
        began = clock()
        fault.make(appliance)
        end = next_end(appliance, seen)
        if stream is not None:
            last = stream.end(120)
            assert last["error"] is not None, last  # no half answer that looks whole
    answer = appliance.wait_answer()
    table.add(fault.name, end.cause, "restart", end.at - began, clock() - began)
    assert end.cause in fault.causes
    assert "Paris" in answer["text"]
    assert appliance.wait_serving("default")["start"] != start
    assert len(ends(appliance)) == seen + 1  # told once


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", HELD, ids=by_name)
def test_an_engine_is_held_until_it_is_mended(appliance: Appliance, table: Table, fault: Fault) -> None:
    """No restart in vain: the cause stands in the status, and the next good configuration is enough."""
    settle(appliance, fault.settings)
    seen = len(ends(appliance))
    try:
        if fault.prepare:
            fault.prepare(appliance)
        began = clock()
        fault.make(appliance)
        end = next_end(appliance, seen)
        wait_until(lambda: is_held(appliance), 240, "it is held", pause=1)
        found, tries = told(appliance), len(ends(appliance)) - seen
        mended = clock()
        settle(appliance, fault.settings)
        action = "held" if tries == 1 else f"held after {tries} starts"
        table.add(fault.name, end.cause, action, end.at - began, f"{clock() - mended:.0f} s, once it is mended")
        assert end.cause in fault.causes
        assert found["cause"] == end.cause and found["reason"]
        assert len(ends(appliance)) == seen + tries
    finally:
        appliance.box.sh(f"rm -rf {COPY}")


@pytest.mark.timeout(900)
def test_two_engines_that_are_killed_at_once_start_one_after_the_other(appliance: Appliance, table: Table) -> None:
    """They share the machine's processors: what one measures while the other starts would be wrong."""
    settle(appliance, SHORT + BOTH)
    appliance.wait_serving("embed")
    before = {name: appliance.engine(name) for name in ("default", "embed")}
    seen, began = len(ends(appliance)), clock()
    appliance.box.sh(f"kill -KILL {before['default']['pid']} {before['embed']['pid']}")
    both = {end.engine: end for end in (next_end(appliance, seen), next_end(appliance, seen + 1))}
    assert "Paris" in appliance.wait_answer()["text"]
    wait_until(lambda: appliance.sdk("embed", PARIS, model=EMBED)["error"] is None, 180, "vectors", pause=1)
    again = clock() - began
    table.add(TOGETHER, " ".join(sorted({end.cause for end in both.values()})),
              "restart, one after the other", max(end.at for end in both.values()) - began, again)  # fmt: skip
    after = {name: appliance.wait_serving(name) for name in before}
    assert all(after[name]["start"] != before[name]["start"] for name in before)
    first, second = sorted(after.values(), key=lambda state: state["started"])
    assert first["ready"] <= second["started"]


@pytest.mark.timeout(600)
def test_a_frozen_supervisor_is_restarted_by_its_watchdog(appliance: Appliance, table: Table) -> None:
    """Engines serve on meanwhile, and afterwards."""
    settle(appliance, SHORT)
    frozen = appliance.show("llm-supervisor.service", "MainPID")["MainPID"]
    start, seen, began = appliance.engine()["start"], len(ends(appliance)), clock()
    appliance.box.sh(f"kill -STOP {frozen}")
    assert "Paris" in appliance.wait_answer(30)["text"]
    wait_until(
        lambda: appliance.show("llm-supervisor.service", "MainPID")["MainPID"] not in ("0", frozen), 180,
        "the watchdog has restarted the supervisor", pause=0.5,
    )  # fmt: skip
    table.add(FROZEN, "", "its watchdog restarts it", clock() - began, "engines serve on")
    assert "Paris" in appliance.wait_answer(30)["text"]
    assert (appliance.engine()["start"], len(ends(appliance))) == (start, seen)


@pytest.mark.timeout(900)
def test_a_supervisor_that_is_killed_at_each_step_of_a_recovery_goes_on(appliance: Appliance, table: Table) -> None:
    """Each next one does what is left: the engine is taken down once, with evidence, and started again.

    The launcher stands still as well: what it answers would spare the last step, the kill.
    """
    settle(appliance, SHORT)
    start, seen = appliance.engine()["start"], len(ends(appliance))
    with appliance.streaming() as stream:
        began = clock()
        appliance.box.sh("systemctl kill -s STOP " + UNIT)
        steps = appliance.box.sh(STRIKES, timeout=180).out.splitlines()
        end = next_end(appliance, seen)
        assert stream.end(120)["error"] is not None
    answer = appliance.wait_answer()
    table.add(STRUCK, end.cause,
              "the next one goes on", end.at - began, clock() - began)  # fmt: skip
    assert end.cause in HANGS
    assert len(steps) == 4, steps
    assert "Paris" in answer["text"]
    assert appliance.wait_serving("default")["start"] != start
    assert len(ends(appliance)) == seen + 1
    assert not appliance.box.path(RECOVERY).exists()
    bundle = appliance.box.sh("ls -d /var/lib/llm-appliance/incidents/*-default-hang-* | tail -n 1").out.strip()
    assert "VLLM::EngineCor" in appliance.box.read(f"{bundle}/processes.txt")
