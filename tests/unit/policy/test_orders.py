from __future__ import annotations

import pytest

from appliance.policy.orders import applied, restarted, resumed
from appliance.policy.reconcile import Desired, Seen, UnitState
from appliance.policy.restart import Death, Record, cleared
from appliance.quantity import UNKNOWN

DEATHS = Record(deaths=(Death(1.0, "r0", "engine-died"),))
OPERATOR, POLICY, BUDGET = ("", "by me"), ("config-error", "bad flag"), ("engine-died", "died too often")


def desired(digest: str) -> Desired:
    return Desired("chat", "chat", digest)


@pytest.mark.parametrize(
    ("seen", "hold", "changed", "note"),
    [
        (Seen(UnitState.UP, "r1", digest="old"), None, True, "is restarted"),
        (Seen(UnitState.UP, "r1", digest="new"), None, True, None),  # the file was changed back and forth
        (Seen(UnitState.UP, "r1", digest="old"), None, False, None),
        (Seen(UnitState.UP, "r1", digest=UNKNOWN), None, True, "is restarted"),
        (Seen(UnitState.UP, "r1", digest=UNKNOWN), None, False, None),
        (Seen(UnitState.STARTING, "r1", digest="old"), None, True, "is restarted"),
        (Seen(UnitState.NET, "r1", digest="old"), None, True, "is restarted"),
        (Seen(UnitState.FAILED, "r1"), None, False, "is started"),
        (Seen(UnitState.DOWN, "r1"), None, False, "is started"),
        (Seen(UnitState.DOWN), None, True, "is started"),
        (Seen(UnitState.UNKNOWN), None, True, None),
        (Seen(UnitState.FAILED, "r1"), OPERATOR, True, "stays held"),
        (Seen(UnitState.FAILED, "r1"), POLICY, False, "is no longer held"),
        (Seen(UnitState.FAILED, "r1"), BUDGET, False, "stays held"),
        (Seen(UnitState.FAILED, "r1"), BUDGET, True, "is no longer held"),
    ],
)
def test_apply(seen: Seen, hold: tuple[str, str] | None, changed: bool, note: str | None) -> None:
    new = desired("new" if changed else "old")
    holds = {} if hold is None else {"chat": hold}
    result = applied([desired("old")], [new], {"chat": seen}, {"chat": DEATHS}, holds)
    assert result.released == (("chat",) if note == "is no longer held" else ())
    if note is None:
        assert (result.notes, result.records["chat"].wanted) == ({}, "")
        return
    assert note in result.notes["chat"]
    wish = result.records["chat"]
    assert bool(wish.wanted) is (note != "stays held")
    if wish.wanted:
        assert (wish.over, wish.deaths) == (seen.run, ())


def test_an_engine_that_the_file_leaves_out_is_stopped_and_comes_back() -> None:
    up = {"chat": Seen(UnitState.UP, "r1", digest="d")}
    gone = applied([desired("d")], [], up, {"chat": DEATHS}, {})
    assert gone.records["chat"].drop
    back = applied([], [desired("d")], up, gone.records, {})
    assert back.records["chat"].drop == ""
    forgotten = applied([desired("d")], [], {"chat": Seen(UnitState.DOWN, "r1")}, {"chat": DEATHS}, {})
    assert forgotten.records == {"chat": cleared(DEATHS)}


def test_a_restart_keeps_the_past_and_a_resume_forgets_it() -> None:
    seen = Seen(UnitState.UP, "r1")
    assert restarted(DEATHS, seen, "asked") == Record(deaths=DEATHS.deaths, wanted="asked", over="r1")
    assert resumed(Record(cause="engine-died"), seen, "resumed") == Record(wanted="resumed", over="r1")
