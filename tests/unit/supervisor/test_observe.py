from __future__ import annotations

from pathlib import Path

import pytest

from appliance.config.model import Config, Engine, Runtime
from appliance.host import files
from appliance.host.places import Places
from appliance.host.systemd import Unit
from appliance.names import LAUNCHER_ENGINE_DIED
from appliance.policy.failure import EXITED, Exit
from appliance.policy.ladder import Facts
from appliance.policy.reconcile import ANY_GPU, UnitState
from appliance.quantity import UNKNOWN
from appliance.supervisor.observe import desired_of, read_holds, readiness_of, seen_of, unit_state

NAME = "llm-engine@chat.service"
WALL, MONOTONIC = 1_000_000.0, 500.0  # booted at 999 500


def unit(active: str, sub: str = "", **more: object) -> Unit:
    return Unit(NAME, load="loaded", active=active, sub=sub, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        (unit("active", "running"), UnitState.UP),
        (unit("reloading"), UnitState.UP),
        (unit("active", job=True), UnitState.STOPPING),
        (unit("activating", "start"), UnitState.STARTING),
        (unit("activating", "start-pre", job=True), UnitState.STARTING),
        (unit("activating", "auto-restart"), UnitState.NET),
        (unit("activating", "auto-restart-queued", job=True), UnitState.NET),
        (unit("deactivating", "stop-sigterm"), UnitState.STOPPING),
        (unit("failed", "failed"), UnitState.FAILED),
        (unit("failed", job=True), UnitState.QUEUED),
        (unit("inactive", "dead"), UnitState.DOWN),
        (unit("inactive", "dead", job=True), UnitState.QUEUED),
        (unit("maintenance"), UnitState.UNKNOWN),
        (Unit(NAME, load="not-found", active="inactive"), UnitState.UNKNOWN),
        (Unit(NAME, load="masked", active="inactive"), UnitState.DOWN),
        (Unit(NAME), UnitState.UNKNOWN),
    ],
)
def test_unit_states(shown: Unit, state: UnitState) -> None:
    assert unit_state(shown) is state


def look(shown: Unit, state: dict[str, object] | None = None, verdict: dict[str, object] | None = None):  # type: ignore[no-untyped-def]
    return seen_of(shown, state or {}, verdict or {}, Facts(), now=WALL, monotonic=MONOTONIC)


VERDICT: dict[str, object] = {
    "start": "s1",
    "at": WALL - 10,
    "cause": "worker-died",
    "message": "gone",
    "phase": "serving",
}


@pytest.mark.parametrize(
    ("shown", "verdict", "belongs"),
    [
        (unit("failed", started=400.0), VERDICT, True),  # started 100 s ago, written 10 s ago
        (unit("failed", started=495.0), VERDICT, False),  # of the run before: this launcher was killed
        (unit("failed", started=495.0, invocation="s1"), VERDICT, True),
        (unit("failed"), VERDICT, True),
        (unit("failed"), {**VERDICT, "at": None}, False),
        (unit("active", started=495.0), VERDICT, True),  # it speaks of the run before
        (unit("failed"), {}, False),
    ],
)
def test_whose_verdict(shown: Unit, verdict: dict[str, object], belongs: bool) -> None:
    assert (look(shown, verdict=verdict).verdict is not None) is belongs


def test_a_verdict_of_the_present_run_is_of_no_run_that_ended() -> None:
    """The launcher writes it a moment before it ends: the run would be counted as two deaths."""
    assert look(unit("active", started=400.0), {"start": VERDICT["start"]}, VERDICT).verdict is None
    assert look(unit("active", started=400.0), {"start": "another"}, VERDICT).verdict is not None
    assert look(unit("failed", started=400.0), {"start": VERDICT["start"]}, VERDICT).verdict is not None


def own(phase: str, again: int = 1, **more: object) -> dict[str, object]:
    return {"unit": "u1", "start": "s2", "phase": phase, "again": again, "awaits": None, **more}


ACTIVE = unit("active", "running", invocation="u1", started=100.0, since=130.0)


@pytest.mark.parametrize(
    ("shown", "state", "kind", "run"),
    [
        (ACTIVE, own("serving", 0), UnitState.UP, "u1"),
        (ACTIVE, own("serving"), UnitState.UP, "u1.1"),
        (ACTIVE, own("loading"), UnitState.STARTING, "u1.1"),
        (ACTIVE, own("warming", 7), UnitState.STARTING, "u1.7"),
        (ACTIVE, own("exited", awaits=WALL + 8), UnitState.OVER, "u1.1"),
        (ACTIVE, own("exited", awaits=WALL - 8), UnitState.OVER, "u1.1"),  # it stands still
        (ACTIVE, own("exited", ready=WALL - 9), UnitState.UP, "u1.1"),  # a moment before its end
        (ACTIVE, own("exited", ready=None), UnitState.STARTING, "u1.1"),  # the same, and it never served
        (ACTIVE, own("exited", 0, ready=None), UnitState.UP, "u1"),
        (ACTIVE, own("exited", awaits=WALL + 8) | {"unit": "u0"}, UnitState.UP, "u1"),  # an older unit's last word
        (ACTIVE, own("loading", 0), UnitState.UP, "u1"),  # its state could not be written when it began to serve
        (ACTIVE, {}, UnitState.UP, "u1"),
        (unit("active", job=True, invocation="u1"), own("exited", awaits=WALL), UnitState.STOPPING, "u1.1"),
        (unit("activating", "auto-restart", invocation="u1"), own("exited", awaits=WALL), UnitState.NET, "u1.1"),
        (unit("activating", "start", invocation="u2"), own("exited", awaits=WALL), UnitState.STARTING, "u2"),
        (unit("failed", invocation="u1"), own("serving"), UnitState.FAILED, "u1.1"),
    ],
)
def test_runs_within_a_unit(shown: Unit, state: dict[str, object], kind: UnitState, run: str) -> None:
    seen = look(shown, state)
    assert (seen.unit, seen.run) == (kind, run)


def test_an_end_within_a_unit_is_told_by_its_launcher() -> None:
    verdict = VERDICT | {"start": "s2", "at": WALL - 3}
    seen = look(ACTIVE, own("exited", awaits=WALL + 8), verdict)
    assert (seen.age_s, seen.left_s, seen.end) == (3.0, 8.0, Exit("exit-code", EXITED, LAUNCHER_ENGINE_DIED))
    assert seen.verdict is not None and seen.verdict.cause == "worker-died"
    assert look(ACTIVE, own("exited", awaits=WALL + 8), VERDICT).verdict is None  # of the run before
    killed = unit("failed", result="signal", invocation="u1", started=100.0)
    assert look(killed, own("serving"), VERDICT).verdict is None  # the launcher was, in its second run
    assert look(killed, own("exited"), verdict).verdict is not None
    assert look(ACTIVE, own("loading"), VERDICT).verdict is not None  # of a run that runs, the one before


def test_a_launcher_that_has_told_an_end_is_about_to_end() -> None:
    told = VERDICT | {"start": "s2", "at": WALL - 1}
    assert look(ACTIVE, own("serving"), told).ending
    assert look(ACTIVE, own("exited"), told).ending
    assert not look(ACTIVE, own("exited"), told | {"at": WALL - 60}).ending  # it stands still
    assert not look(ACTIVE, own("exited", awaits=WALL + 8), told).ending
    assert not look(ACTIVE, own("serving"), VERDICT).ending
    assert not look(ACTIVE, {}, {"at": WALL}).ending


def test_missing_readings_are_unknown() -> None:
    seen = look(unit("active"))
    assert (seen.digest, seen.phase, seen.verdict, seen.verdict_at) == (UNKNOWN, "", None, None)
    assert look(unit("active"), {"digest": 7}).digest is UNKNOWN


def test_skipped_by_a_condition() -> None:
    assert look(unit("inactive", condition=False)).skipped
    assert not look(unit("inactive", condition=None)).skipped
    assert not look(unit("active", condition=False)).skipped


def test_desired_in_start_order_with_their_gpus() -> None:
    config = Config(
        engines=(
            Engine(name="late", priority=5, gpus=(0, 1, 2, 3), replicas=2),
            Engine(name="any"),
            Engine(name="cpu", gpus=()),
            Engine(name="far", remote=("http://127.0.0.1:9",)),
        )
    )
    found = [(d.instance, d.engine, d.gpus) for d in desired_of(config)]
    assert found == [
        ("any", "any", frozenset({ANY_GPU})),
        ("cpu", "cpu", frozenset()),
        ("late", "late", frozenset({"0", "1"})),
        ("late-2", "late", frozenset({"2", "3"})),
    ]
    on_cpu = Config(runtime=Runtime(device="cpu"), engines=(Engine(),))
    assert [d.gpus for d in desired_of(on_cpu)] == [frozenset()]
    assert desired_of(None) == ()


def test_a_hold_file_is_a_hold_whatever_it_holds(tmp_path: Path) -> None:
    places = Places(str(tmp_path / "run"), str(tmp_path))
    assert read_holds(places) == {}
    holds = tmp_path / "supervisor/holds"
    holds.mkdir(parents=True)
    files.replace_json(holds / "chat", {"at": 1.0, "cause": "kv-none", "reason": "no room"})
    (holds / "embed").write_text("")
    (holds / ".chat.tmp").write_text("")
    assert read_holds(places) == {"chat": ("kv-none", "no room"), "embed": ("", "held")}


def test_readiness(tmp_path: Path) -> None:
    places = Places(str(tmp_path / "run"), str(tmp_path))
    config = Config(engines=(Engine(name="a", model="builtin:x"), Engine(name="b", model="/models/mine")))
    empty = readiness_of(config, places, None)
    assert empty.runtime == "the vLLM runtime: not built yet"
    assert empty.models == {"a": "model builtin:x: not here yet"}
    (tmp_path / "run/runtime").mkdir(parents=True)
    state = {"phase": "downloading", "message": "torch", "percent": 41.7, "models": {"builtin:x": "no space"}}
    files.replace_json(tmp_path / "run/runtime/state.json", state)
    told = readiness_of(config, places, unit("activating", "start"))
    assert told.runtime == "the vLLM runtime: torch (42 %)"
    assert told.models["a"] == "model builtin:x: no space"
    assert not told.runtime_idle
    for directory in (tmp_path / "runtimes/current", tmp_path / "models/builtin/x"):
        directory.mkdir(parents=True)
        (directory / ".complete").write_text("")
    there = readiness_of(config, places, unit("inactive", "dead"))
    assert (there.runtime, there.models, there.runtime_idle) == ("", {}, True)
