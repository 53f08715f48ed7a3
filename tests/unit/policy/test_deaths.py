from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config.model import Restart
from appliance.policy.causes import CAUSES, Remedy
from appliance.policy.deaths import remembered
from appliance.policy.failure import EXITED, Evidence, Exit, Failure, Verdict
from appliance.policy.hardware import BURST_AHEAD_S, LADDER_S, Owner, Step
from appliance.policy.ladder import CLIMB_S, HANGS, Facts, Ladder, Place
from appliance.policy.orders import applied, restarted, resumed
from appliance.policy.reconcile import Desired, Seen, UnitState
from appliance.policy.restart import KEPT, Death, Record, forgiven, gpu_steps
from appliance.samples import Xid

LIMITS = Restart(budget=2, backoff=5.0, backoff_max=300.0)
NOW = 10_000.0
DIED = Exit("exit-code", EXITED, 71)


def up(run: str = "r1", digest: str = "new") -> Seen:
    return Seen(UnitState.UP, run, digest=digest, phase="serving")


def look(seen: Seen, record: Record = Record(), now: float = NOW) -> tuple[Record, str]:  # noqa: B008 (frozen)
    return remembered(seen, record, LIMITS, now=now, jitter=0.0)


@pytest.mark.parametrize("unit", [UnitState.FAILED, UnitState.NET, UnitState.OVER])
def test_a_death_is_entered_once(unit: UnitState) -> None:
    seen = Seen(unit, "r1", age_s=3.0, end=DIED)
    record, cause = look(seen)
    assert cause == "engine-died"
    assert record.deaths == (Death(NOW - 3.0, "r1", "engine-died"),)
    assert record.not_before == NOW + 5.0
    assert look(seen, record, NOW + 2) == (record, "")


FALLEN = Evidence(xids=(Xid(t=1.0, number=79, pci="0000:65:00"),))
ILLEGAL = Evidence(xids=(Xid(t=1.0, number=31, pci="0000:65:00"),))


@pytest.mark.parametrize(
    ("age_s", "cause", "evidence", "after"),
    [
        (2.0, "engine-died", FALLEN, "gpu-lost"),
        (2.0, "worker-died", FALLEN, "gpu-lost"),
        (6.0, "engine-died", FALLEN, "engine-died"),  # too late for it
        (2.0, "cuda-oom-serving", FALLEN, "cuda-oom-serving"),  # it has a cause of its own
        (2.0, "engine-died", Evidence(), "engine-died"),
        (2.0, "cuda-fault", ILLEGAL, "cuda-fault"),  # it is no news
    ],
)
def test_what_the_kernel_says_after_a_death_takes_the_place_of_a_cause_that_says_little(
    age_s: float, cause: str, evidence: Evidence, after: str
) -> None:
    seen = Seen(UnitState.NET, "r1", end=DIED, verdict=Verdict(cause, "gone", "serving"))
    record, first = look(seen)
    assert first == cause and record.wanted
    again, told = look(replace(seen, age_s=age_s, evidence=evidence), record, NOW + age_s)
    assert (again.cause, told) == (after, "" if after == cause else after)
    assert [death.cause for death in again.deaths] == [after]  # it counts once
    if after == "gpu-lost":
        assert again.hold and not again.wanted
    begun = replace(record, wanted="", over="", not_before=None)  # the restart was carried out
    assert look(replace(seen, age_s=age_s, evidence=evidence), begun, NOW + age_s) == (begun, "")


@pytest.mark.parametrize(
    ("cause", "phase", "cuda", "pause"),
    [
        ("engine-died", "serving", False, 0.0),
        ("engine-died", "loading", False, 5.0),  # `ready` is of a run before it
        ("engine-died", "serving", True, BURST_AHEAD_S),  # the kernel may have more to say of its GPU
        ("cuda-oom-serving", "serving", True, 0.0),
    ],
)
def test_the_pause_counts_from_when_it_began_to_serve(cause: str, phase: str, cuda: bool, pause: float) -> None:
    seen = Seen(UnitState.NET, "r1", end=DIED, verdict=Verdict(cause, "gone", phase), ready=NOW - 600.0)
    record, _ = look(replace(seen, facts=Facts(cuda=cuda)))
    assert record.not_before == NOW + pause


def test_runs_of_one_unit_die_one_by_one() -> None:
    first = Seen(UnitState.OVER, "r1", end=DIED, verdict_start="s1")
    record, _ = look(first)
    again, _ = look(Seen(UnitState.STARTING, "r1.1"), record)
    assert (again.wanted, again.deaths) == ("", record.deaths)
    record, cause = look(Seen(UnitState.OVER, "r1.1", end=DIED, verdict_start="s2"), again)
    assert (cause, [death.key for death in record.deaths], record.over) == ("engine-died", ["r1", "r1.1"], "r1.1")
    ended = Seen(UnitState.NET, "r1.1", end=DIED, verdict_start="s2")  # nobody said anything to its launcher
    assert look(ended, record) == (record, "")


def test_a_run_that_begins_fulfils_the_wish() -> None:
    record, _ = look(Seen(UnitState.NET, "r1", end=DIED))
    assert look(Seen(UnitState.STARTING, "r1"), record)[0].wanted
    assert look(Seen(UnitState.STARTING, "r2"), record)[0].wanted == ""
    assert look(Seen(UnitState.UP, "r2"), record)[0].deaths == record.deaths


def test_a_wish_stands_when_the_run_that_it_replaces_dies() -> None:
    """An applied change is not lost to the death of the old run, whatever that death would have led to."""
    wish = Record(wanted="its configuration changed", over="r1")
    for status in (71, 78):
        record, cause = look(Seen(UnitState.FAILED, "r1", end=Exit("exit-code", EXITED, status)), wish)
        assert (record.wanted, record.hold, record.not_before, len(record.deaths)) == (wish.wanted, "", None, 1)
        assert cause


def test_a_death_that_the_net_mended_counts() -> None:
    verdict = Verdict("worker-died", "gone", "serving")
    seen = replace(up("r2"), verdict=verdict, verdict_start="s1", verdict_at=NOW - 40)
    record, cause = look(seen)
    assert (cause, len(record.deaths), record.wanted) == ("worker-died", 1, "")
    assert look(seen, record) == (record, "")


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": Verdict("engine-died", requested=True)},
        {"verdict_at": NOW - 2 * LIMITS.window},
        {"verdict_start": ""},
        {"verdict_start": "r2"},
        {"verdict": None},
    ],
    ids=["it was asked for", "too long ago", "no run named", "the present run", "no verdict"],
)
def test_other_verdicts_do_not_count(change: dict[str, object]) -> None:
    seen = replace(up("r2"), verdict=Verdict("worker-died"), verdict_start="s1", verdict_at=NOW - 40)
    assert look(replace(seen, **change)) == (Record(), "")  # type: ignore[arg-type]


def test_the_same_death_by_both_names_is_one() -> None:
    verdict = Verdict("worker-died", phase="serving")
    record, _ = look(Seen(UnitState.NET, "r1", end=DIED, verdict=verdict, verdict_start="s1", verdict_at=NOW))
    again = replace(up("r2"), verdict=verdict, verdict_start="s1", verdict_at=NOW)
    assert len(look(again, record)[0].deaths) == 1


PLACE = Place("new", "0.32.0-cuda", ("GPU-1",))
ON_GPU = Facts(place=PLACE, cuda=True)
NO_ROOM = Seen(
    UnitState.FAILED,
    "r1",
    end=Exit("exit-code", EXITED, 78),
    verdict=Verdict("kv-none", "no room", "compiling"),
    facts=ON_GPU,
)


def test_a_start_that_a_change_can_help_is_no_hold() -> None:
    record, cause = look(NO_ROOM)
    assert cause == "kv-none"
    assert (record.hold, record.over) == ("", "r1")
    assert record.ladder.flags == {"gpu_memory_utilization": 0.95}
    assert "starts with a change" in record.reason
    assert look(NO_ROOM, record) == (record, "")  # seen again, it is not stepped again
    again, _ = look(replace(NO_ROOM, run="r2"), record)
    assert again.hold and again.ladder == record.ladder


def test_switched_off_it_is_held() -> None:
    record, _ = remembered(NO_ROOM, Record(), replace(LIMITS, oom_ladder=False), now=NOW, jitter=0.0)
    assert record.hold and record.ladder == Ladder()


def test_the_hint_of_a_verdict_reaches_the_ladder() -> None:
    verdict = Verdict("start-failed", "the compile cache is broken", "compiling", hint="compile-cache")
    record, _ = look(replace(NO_ROOM, verdict=verdict))
    assert record.ladder.rungs[-1].caches


def test_the_machines_word_reaches_the_record() -> None:
    owner = Owner(gpus=frozenset({"0000:65:00"}))
    lost = Evidence(owner=owner, xids=[Xid(t=0.0, number=79, pci="0000:65:00")])
    record, cause = look(Seen(UnitState.FAILED, "r1", end=DIED, evidence=lost))
    assert cause == "gpu-lost" and "reboot" in record.hold
    assert gpu_steps([record], NOW) == gpu_steps([record], NOW + 600.0, 600.0) == {"0000:65:00": Step.REBOOT}
    assert gpu_steps([record], NOW + 599.0, 600.0) == {}
    resumed = forgiven(record, "resumed", "r1")
    assert gpu_steps([resumed, Record()], NOW + LADDER_S - 1.0) == {"0000:65:00": Step.REBOOT}
    assert gpu_steps([resumed], NOW + LADDER_S) == {}


def test_why_we_ended_it_ourselves_beats_what_it_looks_like() -> None:
    hung = Failure("hang-kernel", Remedy.RESTART, "no progress for 95 s")
    record, cause = look(Seen(UnitState.FAILED, "r1", end=DIED, judged=hung))
    assert (cause, record.reason) == ("hang-kernel", "no progress for 95 s")


def test_another_configuration_forgets_the_ladder_and_quiet_service_climbs_it() -> None:
    record, _ = look(NO_ROOM)
    serving = replace(up("r2"), facts=ON_GPU, ready=NOW + 60.0)
    kept, _ = look(serving, record, NOW + 100.0)
    assert kept.ladder == record.ladder and not kept.wanted
    climbed, _ = look(serving, record, NOW + 60.0 + CLIMB_S)
    assert climbed.ladder.rungs == () and climbed.ladder.dropped == record.ladder.rungs[0]
    assert not climbed.wanted  # it is not restarted for that
    moved = replace(serving, facts=replace(ON_GPU, place=replace(PLACE, digest="newer")))
    assert look(moved, record, NOW + 100.0)[0].ladder.rungs == ()


FAULTS = [word for word, cause in CAUSES.items() if cause.remedy is not Remedy.NONE]


@given(st.lists(st.tuples(st.sampled_from(FAULTS), st.floats(1.0, 4000.0), st.booleans()), max_size=40), st.booleans())
def test_restarts_stay_within_the_budget_for_any_sequence_of_failures(
    script: list[tuple[str, float, bool]], cuda: bool
) -> None:
    """Whatever ends the engine: a restart within the budget, or a hold; hangs have a shorter count of their own."""
    limits = Restart(budget=5, window=3600.0)
    record, now = Record(), NOW
    restarts: list[tuple[float, str]] = []
    for number, (cause, gap, served) in enumerate(script):
        now += gap
        verdict = Verdict(cause, "it failed", "serving" if served else "loading")
        facts = Facts(place=PLACE, cuda=cuda)
        seen = Seen(UnitState.FAILED, f"run{number}", end=DIED, verdict=verdict, facts=facts)
        record, found = remembered(seen, record, limits, now=now, jitter=0.5)
        assert found
        assert bool(record.hold) is not bool(record.wanted)
        assert len(record.deaths) <= KEPT
        if record.hold:
            assert record.reason
            return
        restarts.append((now, found))
        assert sum(1 for at, _ in restarts if at > now - limits.window) <= limits.budget
        assert sum(1 for at, word in restarts if at > now - 3600.0 and word.startswith("hang-")) < HANGS


def test_an_end_that_was_told_before_the_record_was_cleared_is_no_news() -> None:
    """Resumed, or applied with another configuration: until the next run begins, the unit still shows the old end."""
    ended = Seen(UnitState.FAILED, "r1", end=DIED, verdict=Verdict("config-error", "bad flag", "starting"))
    record, cause = look(ended)
    assert cause == "config-error"
    cleared = forgiven(record, "resumed", "r1")
    assert look(ended, cleared) == (cleared, "")
    assert look(replace(ended, run="r2"), cleared)[1] == "config-error"
    begun, _ = look(up("r2"), cleared)
    assert (begun.wanted, begun.deaths) == ("", ())


def test_an_end_between_an_order_and_what_it_ordered_is_told() -> None:
    ordered = forgiven(Record(), "its configuration changed", "r1")  # while r1 ran
    assert look(Seen(UnitState.FAILED, "r1", end=DIED), ordered)[1] != ""


ALIVE = (UnitState.STARTING, UnitState.UP)


class World:
    """One engine: its unit, the verdict that its last launcher left, and what is remembered of it."""

    def __init__(self) -> None:
        self.run, self.unit = 1, UnitState.UP
        self.verdict: tuple[int, float] | None = None  # of which run, when
        self.record, self.now = Record(), NOW
        self.died: list[int] = []
        self.told: list[int] = []

    def seen(self) -> Seen:
        run, at = self.verdict or (0, NOW)
        verdict = Verdict("worker-died", "gone", "serving") if run and (run == self.run or self.unit in ALIVE) else None
        return Seen(self.unit, f"r{self.run}", end=DIED, verdict=verdict, verdict_start=f"s{run}" * bool(run),
                    verdict_at=at, digest="d", phase="serving")  # fmt: skip

    def look(self) -> None:
        self.record, cause = remembered(self.seen(), self.record, Restart(budget=50), now=self.now, jitter=0.0)
        if cause:
            self.told.append(int(self.record.deaths[-1].key[1:]))

    def do(self, act: str) -> None:
        self.now += 1.0
        if act.startswith("die") and self.unit in ALIVE:
            self.died.append(self.run)
            self.unit = UnitState.NET if act == "die, the net" else UnitState.FAILED
            if act != "die mute":  # its launcher was killed, too
                self.verdict = (self.run, self.now)
            if act == "die unseen":
                self.run, self.unit = self.run + 1, UnitState.UP
        elif act == "begin" and self.unit not in ALIVE:
            self.run, self.unit = self.run + 1, UnitState.STARTING
        elif act == "serve" and self.unit is UnitState.STARTING:
            self.unit = UnitState.UP
        elif act in ("change", "remove", "add"):
            old, new = Desired("chat", "chat", "d"), Desired("chat", "chat", f"d{self.now}")
            before, after = {"change": ([old], [new]), "remove": ([old], []), "add": ([], [old])}[act]
            self.record = applied(before, after, {"chat": self.seen()}, {"chat": self.record}, {}).records["chat"]
        elif act == "resume":
            self.record = resumed(self.record, self.seen(), "resumed")
        elif act == "restart":
            self.record = restarted(self.record, self.seen(), "asked")


ACTS = (
    "die",
    "die, the net",
    "die mute",
    "die unseen",
    "begin",
    "serve",
    "change",
    "remove",
    "add",
    "resume",
    "restart",
)


@given(st.lists(st.sampled_from(ACTS), max_size=30))
def test_each_end_is_told_once_whatever_is_ordered_meanwhile(script: list[str]) -> None:
    """Units and verdicts show an old end long after it; what an operator orders has a record cleared."""
    world = World()
    for act in script:
        world.do(act)
        world.look()
        assert world.told == world.died
