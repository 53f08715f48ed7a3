from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.config.model import Restart
from appliance.policy.failure import EXITED, Exit
from appliance.policy.ladder import Ladder, Rung
from appliance.policy.reconcile import (
    ANY_GPU,
    RUNNING,
    Action,
    Desired,
    Memory,
    Plan,
    Readiness,
    Seen,
    Situation,
    UnitState,
    Verb,
    plan,
)
from appliance.policy.restart import Record
from appliance.quantity import UNKNOWN, Maybe

LIMITS = Restart(budget=2, backoff=5.0, backoff_max=300.0)
NOW = 10_000.0
DIED = Exit("exit-code", EXITED, 71)


def engine(name: str, gpus: str = "", *, of: str = "", digest: str = "new") -> Desired:
    return Desired(name, of or name, digest, frozenset(gpus.split()))


def up(run: str = "r1", digest: str = "new") -> Seen:
    return Seen(UnitState.UP, run, digest=digest, phase="serving")


def over(left_s: float = 8.0, digest: str = "new") -> Seen:
    return Seen(UnitState.OVER, "r1", end=DIED, digest=digest, phase="exited", left_s=left_s)


def situation(desired: list[Desired], seen: dict[str, Seen], **more: object) -> Situation:
    values: dict[str, object] = {
        "holds": {},
        "records": {},
        "readiness": Readiness(),
        "limits": LIMITS,
        "now": NOW,
        **more,
    }
    return Situation(desired=desired, seen=seen, **values)  # type: ignore[arg-type]


def steps(made: Plan) -> list[tuple[str, str]]:
    return [(action.verb.value, action.instance) for action in made.actions]


DUE = Record(wanted="engine-died: it died", over="r1", cause="engine-died", reason="it died", not_before=NOW - 1)
LATER = replace(DUE, not_before=NOW + 10)
MUCH_LATER = replace(DUE, not_before=NOW + 100)


@pytest.mark.parametrize(
    ("seen", "record", "state", "action"),
    [
        (up(), Record(), "serving", None),
        (Seen(UnitState.STARTING, "r1", phase="loading"), Record(), "starting", None),
        (Seen(UnitState.QUEUED, "r1"), Record(), "waiting", None),
        (Seen(UnitState.DOWN), Record(), "starting", "start"),  # it has not run yet
        (Seen(UnitState.DOWN, "r1", skipped=True), Record(), "starting", "start"),
        (Seen(UnitState.DOWN, "r1"), Record(), "stopped", None),  # by hand
        (Seen(UnitState.DOWN, "r1"), DUE, "restarting", "start"),
        (Seen(UnitState.DOWN, "r1"), LATER, "restarting", None),
        (Seen(UnitState.NET, "r1"), DUE, "restarting", "restart"),
        (Seen(UnitState.NET, "r1"), LATER, "restarting", None),
        (Seen(UnitState.NET, "r1", age_s=2.0), MUCH_LATER, "restarting", None),  # the kernel may yet say why
        (Seen(UnitState.NET, "r1", age_s=6.0), MUCH_LATER, "restarting", "stop"),  # the net would come first
        (Seen(UnitState.NET, "r1", age_s=20.0), LATER, "restarting", "stop"),
        (Seen(UnitState.FAILED, "r1"), DUE, "restarting", "start"),
        (Seen(UnitState.FAILED, "r1"), MUCH_LATER, "restarting", None),
        (Seen(UnitState.FAILED, "r1"), Record(), "starting", "start"),  # its hold file was removed by hand
        (Seen(UnitState.STOPPING, "r1"), DUE, "restarting", None),
        (Seen(UnitState.STOPPING, "r1"), Record(), "stopped", None),
        (Seen(UnitState.FAILED, "r1"), Record(hold="bad flag", cause="config-error"), "held", "hold"),
        (up(), Record(hold="bad flag", cause="config-error"), "serving", None),  # somebody started it meanwhile
        (up(), Record(wanted="operator", over="r1"), "restarting", "restart"),
        (Seen(UnitState.STARTING, "r1"), Record(wanted="operator", over="r1"), "starting", "restart"),
        (Seen(UnitState.STARTING, "r2"), Record(wanted="operator", over="r1"), "starting", None),  # that is the new run
        (up(digest="old"), Record(), "serving", None),  # only `apply` restarts a changed engine
        (over(), DUE, "restarting", "again"),
        (over(), LATER, "restarting", None),  # longer than it waits, and then it ends by itself
        (over(left_s=0.5), DUE, "restarting", "restart"),  # it may be gone before it hears
        (over(left_s=-60.0), DUE, "restarting", "restart"),  # it stands still
        (over(digest="old"), DUE, "restarting", "restart"),  # the unit is another one now
        (over(), replace(DUE, not_before=None), "restarting", "restart"),  # somebody wants the unit restarted
        (over(), replace(DUE, over="r0"), "restarting", "restart"),
        (over(), Record(hold="bad flag", cause="config-error"), "held", "hold"),
        (over(), Record(), "starting", "restart"),
    ],
)
def test_one_engine(seen: Seen, record: Record, state: str, action: str | None) -> None:
    made = plan(situation([engine("chat")], {"chat": seen}, records={"chat": record}, laid=frozenset({"chat"})))
    assert made.views["chat"].state == state
    assert [verb for verb, _ in steps(made)] == ([action] if action else [])


def test_a_changed_start_needs_the_set_up_of_the_unit() -> None:
    made = plan(situation([engine("chat")], {"chat": over()}, records={"chat": DUE}, laid=frozenset()))
    assert steps(made) == [("restart", "chat")]


def test_a_start_in_place_has_its_turn_like_any_other() -> None:
    desired, both = [engine("a", "0"), engine("b", "0")], frozenset({"a", "b"})
    records = {"a": DUE, "b": DUE}
    assert steps(plan(situation(desired, {"a": over(), "b": over()}, records=records, laid=both))) == [("again", "a")]
    other = {"a": Seen(UnitState.STARTING, "r2"), "b": over()}
    made = plan(situation(desired, other, records=records, laid=both))
    assert (steps(made), made.views["b"].state) == ([], "waiting")
    unsettled = {"0": Memory(used_mib=9.0, stable_s=1.0)}
    made = plan(situation(desired, {"a": over(), "b": over()}, records=records, laid=both, memory=unsettled))
    assert (steps(made), made.views["a"].state) == ([], "waiting")


def test_a_changed_engine_says_so() -> None:
    made = plan(situation([engine("chat")], {"chat": up(digest="old")}))
    assert "apply" in made.views["chat"].next


@pytest.mark.parametrize("unit", list(UnitState))
def test_a_held_engine_is_stopped_and_never_started(unit: UnitState) -> None:
    holds = {"chat": ("config-error", "bad flag")}
    made = plan(situation([engine("chat")], {"chat": Seen(unit, "r1")}, holds=holds, records={"chat": DUE}))
    assert steps(made) == ([("stop", "chat")] if unit in RUNNING else [])
    if unit is not UnitState.UNKNOWN:
        assert (made.views["chat"].state, made.views["chat"].reason) == ("held", "bad flag")


def test_what_systemd_does_not_tell_is_not_touched() -> None:
    made = plan(situation([engine("chat"), engine("embed")], {"embed": Seen()}, records={"chat": DUE}))
    assert (made.views, made.actions) == ({}, ())


@pytest.mark.parametrize(
    ("first", "second", "started"),
    [
        ("0", "1", ["a", "b"]),
        ("0", "0", ["a"]),
        ("0 1", "1 2", ["a"]),
        (ANY_GPU, "1", ["a"]),
        ("0", ANY_GPU, ["a"]),
        ("", "", ["a"]),  # both on the CPU
        ("", "0", ["a", "b"]),
    ],
)
def test_one_start_at_a_time_among_those_that_share(first: str, second: str, started: list[str]) -> None:
    made = plan(
        situation([engine("a", first), engine("b", second)], {"a": Seen(UnitState.DOWN), "b": Seen(UnitState.DOWN)})
    )
    assert [instance for verb, instance in steps(made)] == started
    if len(started) == 1:
        assert made.views["b"].state == "waiting"
        assert "a is starting" in made.views["b"].reason


@pytest.mark.parametrize(
    ("other", "record", "goes"),
    [
        (Seen(UnitState.STARTING, "r1"), Record(), False),
        (Seen(UnitState.QUEUED, "r1"), Record(), False),
        (Seen(UnitState.STOPPING, "r1"), DUE, False),  # its GPU memory is not free yet
        (Seen(UnitState.NET, "r1"), LATER, True),  # an engine in its pause keeps nobody waiting
        (Seen(UnitState.STOPPING, "r1"), Record(), True),
        (up(), Record(), True),
    ],
)
def test_whose_turn(other: Seen, record: Record, goes: bool) -> None:
    seen = {"a": other, "b": Seen(UnitState.DOWN)}
    made = plan(situation([engine("a"), engine("b")], seen, records={"a": record}))
    assert (("start", "b") in steps(made)) is goes


def test_replicas_are_restarted_one_after_the_other() -> None:
    wish = Record(wanted="its configuration changed", over="r1")
    fleet = [engine("chat", "0", of="chat"), engine("chat-2", "1", of="chat")]
    records = {"chat": wish, "chat-2": wish}
    both = {"chat": up(), "chat-2": up()}
    assert steps(plan(situation(fleet, both, records=records))) == [("restart", "chat")]
    for first in (Seen(UnitState.STOPPING, "r1"), Seen(UnitState.STARTING, "r2"), Seen(UnitState.DOWN, "r1")):
        made = plan(situation(fleet, both | {"chat": first}, records=records))
        assert ("restart", "chat-2") not in steps(made)
        assert made.views["chat-2"].state == "serving"
    made = plan(situation(fleet, both | {"chat": up("r2")}, records={"chat-2": wish}))
    assert steps(made) == [("restart", "chat-2")]


TWO = [engine("chat", "0", of="chat"), engine("chat-2", "1", of="chat")]
WISH = Record(wanted="its configuration changed", over="r1")


@pytest.mark.parametrize(
    ("inflight", "draining", "state"),
    [
        (UNKNOWN, {}, "restarting"),  # no gateway
        ({"chat": 3}, {}, "draining"),
        ({"chat": 0}, {}, "draining"),  # the gateway has not read yet that it drains
        ({"chat": 0}, {"chat": 2.0}, "draining"),
        ({"chat": 0}, {"chat": 3.0}, "restarting"),
        ({"chat": 3}, {"chat": 3.0}, "draining"),
        ({"chat": UNKNOWN}, {"chat": 59.0}, "draining"),
        ({}, {"chat": 59.0}, "draining"),
        ({"chat": 3}, {"chat": 60.0}, "restarting"),
        ({}, {"chat": 60.0}, "restarting"),
    ],
)
def test_an_engine_drains_before_a_voluntary_restart(
    inflight: Maybe[dict[str, Maybe[int]]], draining: dict[str, float], state: str
) -> None:
    seen = {"chat": up(), "chat-2": up()}
    records = {"chat": WISH, "chat-2": WISH}
    made = plan(situation(TWO, seen, records=records, inflight=inflight, draining=draining))
    assert made.views["chat"].state == state
    assert made.views["chat-2"].state == "serving"  # never both
    assert steps(made) == ([("restart", "chat")] if state == "restarting" else [])


def test_the_one_that_drains_goes_on_when_another_is_to_be_restarted_as_well() -> None:
    seen = {"chat": up(), "chat-2": up()}
    records = {"chat": WISH, "chat-2": WISH}
    made = plan(situation(TWO, seen, records=records, inflight={"chat": 1, "chat-2": 1}, draining={"chat-2": 9.0}))
    assert (made.views["chat"].state, made.views["chat-2"].state) == ("serving", "draining")


@pytest.mark.parametrize("gpus", ["", "GPU-1", ANY_GPU])
@pytest.mark.parametrize(
    ("seen", "record", "step"),
    [
        (Seen(UnitState.DOWN), Record(), "start"),
        (Seen(UnitState.NET, "r1", end=DIED), DUE, "restart"),
        (up(), Record(wanted="by the operator", over="r1"), "restart"),
    ],
)
def test_an_engine_that_gets_no_calls_is_in_nobodys_way(gpus: str, seen: Seen, record: Record, step: str) -> None:
    """It serves, for as long as an operator wants it to get none; a start on its GPU need not wait for that."""
    desired = [engine("chat", gpus), engine("embed", gpus)]
    records = {"chat": Record(drained="new fans"), "embed": record}
    made = plan(situation(desired, {"chat": up(), "embed": seen}, records=records, draining={"chat": 9.0}))
    assert made.views["chat"].state == "draining"
    assert steps(made) == [(step, "embed")]


@pytest.mark.parametrize("other", [Seen(UnitState.DOWN, "r1"), None])
def test_without_another_replica_nothing_is_won_by_draining(other: Seen | None) -> None:
    seen = {"chat": up()} | ({"chat-2": other} if other is not None else {})
    desired = TWO if other is not None else TWO[:1]
    made = plan(situation(desired, seen, records={"chat": WISH}, inflight={"chat": 3}))
    assert steps(made) == [("restart", "chat")]


@pytest.mark.parametrize(
    ("gpus", "memory", "starts"),
    [
        ("GPU-1", {}, True),  # nobody knows
        ("GPU-1", {"GPU-1": Memory()}, True),
        ("GPU-1", {"GPU-1": Memory(70_000.0, 10.0)}, True),
        ("GPU-1", {"GPU-1": Memory(70_000.0, 9.0)}, False),
        ("GPU-1", {"GPU-1": Memory(UNKNOWN, 0.0, 119.0)}, False),
        ("GPU-1", {"GPU-1": Memory(70_000.0, 0.0, 120.0)}, True),  # it never settles
        ("GPU-1", {"GPU-2": Memory(70_000.0, 0.0)}, True),
        (ANY_GPU, {"GPU-2": Memory(70_000.0, 0.0)}, False),
        ("", {"GPU-2": Memory(70_000.0, 0.0)}, True),  # on the CPU
    ],
)
def test_a_start_waits_until_the_memory_of_its_gpus_is_settled(
    gpus: str, memory: dict[str, Memory], starts: bool
) -> None:
    made = plan(situation([engine("chat", gpus)], {"chat": Seen(UnitState.DOWN)}, memory=memory))
    assert bool(made.actions) is starts
    if not starts:
        assert "still changes" in made.views["chat"].reason


def test_what_is_changed_is_shown() -> None:
    rung = Rung("kv-none", "gpu_memory_utilization 0.92 -> 0.95", NOW)
    made = plan(situation([engine("chat")], {"chat": up()}, records={"chat": Record(ladder=Ladder(rungs=(rung,)))}))
    assert made.views["chat"].changed == "gpu_memory_utilization 0.92 -> 0.95 (kv-none)"


def test_a_request_is_not_repeated_at_once() -> None:
    seen = {"chat": Seen(UnitState.DOWN)}
    assert steps(plan(situation([engine("chat")], seen, recent={"chat": 1.0}))) == []
    assert steps(plan(situation([engine("chat")], seen, recent={"chat": 60.0}))) == [("start", "chat")]


@pytest.mark.parametrize(
    ("readiness", "actions"),
    [
        (Readiness(runtime="the vLLM runtime: downloading (40 %)"), []),
        (Readiness(runtime="the vLLM runtime: not built yet", runtime_idle=True), [("runtime", "")]),
        (Readiness(models={"chat": "model model-chat: not here yet"}, runtime_idle=True), [("runtime", "")]),
        (Readiness(models={"other": "model model-other: not here yet"}, runtime_idle=True), [("start", "chat")]),
    ],
)
def test_engines_wait_for_runtime_and_model(readiness: Readiness, actions: list[tuple[str, str]]) -> None:
    seen = {"chat": Seen(UnitState.DOWN, skipped=True)}
    made = plan(situation([engine("chat")], seen, readiness=readiness))
    assert steps(made) == actions
    if ("start", "chat") not in actions:
        assert made.views["chat"].state == "waiting"
        assert made.views["chat"].reason in (readiness.runtime, readiness.models.get("chat"))


@pytest.mark.parametrize(("age_s", "verbs"), [(2.0, []), (6.0, ["stop"])])
def test_whatever_is_in_the_way_the_net_is_cut_when_the_end_has_its_cause(age_s: float, verbs: list[str]) -> None:
    """The kernel's line that explains an end may come seconds after it, and is not looked for in a stopped unit."""
    seen = {"chat": Seen(UnitState.NET, "r1", age_s=age_s)}
    made = plan(situation([engine("chat")], seen, readiness=Readiness(runtime="the vLLM runtime: downloading")))
    assert made.views["chat"].state == "waiting"
    assert [verb for verb, _ in steps(made)] == verbs


def test_the_runtime_is_asked_for_with_pauses_and_not_for_held_engines() -> None:
    missing, seen = Readiness(runtime="not built yet", runtime_idle=True), {"chat": Seen(UnitState.DOWN)}
    assert steps(plan(situation([engine("chat")], seen, readiness=missing, recent={"": 0.0}))) == []
    held = situation([engine("chat")], seen, readiness=missing, holds={"chat": ("", "held")})
    assert steps(plan(held)) == []


def test_a_serving_engine_does_not_need_the_runtime_to_be_complete() -> None:
    made = plan(situation([engine("chat")], {"chat": up()}, readiness=Readiness(runtime="not built yet")))
    assert (made.views["chat"].state, made.actions) == ("serving", ())


def test_leftovers_stop_only_by_order() -> None:
    seen = {"chat": up(), "old": up()}
    made = plan(situation([engine("chat")], seen))
    assert made.actions == ()
    assert "does not name it" in made.views["old"].reason
    made = plan(situation([engine("chat")], seen, records={"old": Record(drop="gone from the file")}))
    assert made.actions == (Action(Verb.STOP, "old", "gone from the file"),)
    down = {"chat": up(), "old": Seen(UnitState.DOWN, "r1")}
    assert "old" not in plan(situation([engine("chat")], down)).views
