"""Engines that die at any moment, with a supervisor that is killed at any moment: what holds for all sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.config.model import Restart
from appliance.policy.deaths import remembered
from appliance.policy.failure import EXITED, Exit
from appliance.policy.reconcile import Action, Desired, Plan, Readiness, Seen, Situation, UnitState, Verb, plan
from appliance.policy.restart import Record

LIMITS = Restart(budget=2, backoff=5.0, backoff_max=300.0)
DIED = Exit("exit-code", EXITED, 71)
TWO = [Desired(name, name, "new", frozenset({"0"})) for name in ("a", "b")]  # they share a GPU


class World:
    """systemd in miniature: carries out actions at once, kills engines by script, forgets nothing."""

    def __init__(self, desired: list[Desired]) -> None:
        self.desired = desired
        self.units = {d.instance: Seen(UnitState.DOWN) for d in desired}
        self.records: dict[str, Record] = {}
        self.holds: dict[str, tuple[str, str]] = {}
        self.now = 10_000.0
        self.runs = 0
        self.starts: list[str] = []

    def cycle(self, killed_after: int | None = None) -> None:
        """One cycle; with `killed_after` the supervisor dies after so many actions and forgets all but the disk."""
        for instance, seen in self.units.items():
            record, _ = remembered(seen, self.records.get(instance, Record()), LIMITS, now=self.now, jitter=0.0)
            self.records[instance] = record
        made = plan(
            Situation(
                desired=self.desired, seen=self.units, holds=self.holds, records=self.records, readiness=Readiness(),
                limits=LIMITS, now=self.now, laid=frozenset(self.units),
            )
        )  # fmt: skip
        self.check(made)
        for action in made.actions[:killed_after]:
            self.do(action)

    def do(self, action: Action) -> None:
        seen = self.units[action.instance]
        if action.verb is Verb.HOLD:
            self.holds[action.instance] = (action.cause, action.reason)
        elif action.verb is Verb.STOP:
            self.units[action.instance] = replace(seen, unit=UnitState.DOWN)
        else:
            assert action.instance not in self.holds, "a held engine was started"
            assert action.verb is not Verb.AGAIN or seen.unit is UnitState.OVER, "nobody is there who could begin again"
            self.runs += 1
            self.starts.append(action.instance)
            self.units[action.instance] = Seen(UnitState.STARTING, f"run{self.runs}")

    def check(self, made: Plan) -> None:
        starting = [d for d in self.desired if self.units[d.instance].unit is UnitState.STARTING]
        begun = [a for a in made.actions if a.verb in (Verb.START, Verb.RESTART, Verb.AGAIN)]
        assert len(starting) + len(begun) <= max(1, len(starting)), "two starts on one GPU"

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for instance, seen in self.units.items():
            aged = replace(seen, age_s=seen.age_s + seconds)
            if aged.unit is UnitState.OVER:  # its launcher waits to be told, and ends
                aged = replace(aged, left_s=aged.left_s - seconds)
                if aged.left_s <= 0.0:
                    aged = replace(aged, unit=UnitState.NET, age_s=0.0)
            if aged.unit is UnitState.NET and aged.age_s >= 30.0:  # systemd's net
                self.runs += 1
                aged = Seen(UnitState.STARTING, f"run{self.runs}")
            self.units[instance] = aged


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["die", "over", "serve", "config", "nothing"]), st.integers(0, 1), st.integers(0, 2)),
        max_size=40,
    )
)
def test_interrupted_sequences(script: list[tuple[str, int, int]]) -> None:
    """Whatever dies, and whenever the supervisor is killed: laws hold, and in the end each engine serves or is held."""
    world = World(TWO)
    for what, which, killed_after in script:
        instance = world.desired[which].instance
        seen = world.units[instance]
        if what == "serve" and seen.unit is UnitState.STARTING:
            world.units[instance] = replace(seen, unit=UnitState.UP)
        if what == "over" and seen.unit is UnitState.UP:
            world.units[instance] = Seen(UnitState.OVER, seen.run, end=DIED, digest="new", phase="exited", left_s=8.0)
        if what in ("die", "config") and seen.unit in (UnitState.STARTING, UnitState.UP):
            status, unit = (78, UnitState.FAILED) if what == "config" else (71, UnitState.NET)
            world.units[instance] = Seen(unit, seen.run, end=Exit("exit-code", EXITED, status))
        world.cycle(killed_after if killed_after < 2 else None)
        world.pass_time(2.0)
    for _ in range(200):
        world.cycle()
        world.pass_time(5.0)
        for instance, seen in world.units.items():
            if seen.unit is UnitState.STARTING:
                world.units[instance] = replace(seen, unit=UnitState.UP)
    for instance, seen in world.units.items():
        assert (seen.unit is UnitState.UP) != (instance in world.holds)


def test_systemds_net_starts_no_engine_out_of_its_turn() -> None:
    """It comes 30 s after an end, whoever else starts then; the wish stays on record until the turn comes."""
    world = World(TWO)
    world.units = {
        "a": Seen(UnitState.STARTING, "r1"),
        "b": Seen(UnitState.NET, "r2", end=DIED),
    }
    world.cycle()
    assert world.units["b"].unit is UnitState.NET  # a request to systemd delays the next one: not for a short wait
    for _ in range(30):
        world.cycle()
        world.pass_time(2.0)
        assert world.units["b"].unit not in (UnitState.STARTING, UnitState.UP)
    world.units["a"] = replace(world.units["a"], unit=UnitState.UP)
    world.cycle()
    assert world.units["b"].unit is UnitState.STARTING
