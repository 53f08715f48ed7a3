from __future__ import annotations

from pathlib import Path

import pytest

from appliance.policy.ladder import Ladder, Place, Rung
from appliance.policy.reconcile import Seen, UnitState
from appliance.policy.restart import Death, GpuStep, Record
from appliance.supervisor import ledger
from appliance.supervisor.ledger import LOADS_KEPT, Ledger

FULL = Record(
    deaths=(Death(1.5, "r1", "engine-died", "s1"), Death(2.5, "r2", "shm-full")),
    wanted="restart",
    over="r2",
    not_before=7.25,
    hold="too often",
    drop="",
    cause="shm-full",
    reason="full",
    ladder=Ladder(
        Place("d1", "0.32.0-cuda", ("GPU-1",)),
        (
            Rung("kv-none", "more", 3.5, {"gpu_memory_utilization": 0.95}),
            Rung("start-failed", "caches", 4.5, caches=True),
        ),
        Rung("hang-collective", "NCCL_DEBUG=INFO", 5.5, env={"NCCL_DEBUG": "INFO"}),
        6.5,
        2,
    ),
    gpu_steps=(GpuStep("0000:65:00", 2, 7.5),),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "deep/ledger.json")
    kept = Ledger().with_records({"chat": FULL, "embed": Record()}).with_load("d1", 26.04)
    ledger.write(path, kept)
    assert ledger.read(path) == Ledger({"chat": FULL}, {"d1": 26.0})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "nonsense",
        '{"v": 2}',
        '{"v": 1}',
        '{"v": 1, "engines": [], "loads": 3}',
        '{"v": 1, "engines": {"chat": 3}}',
        '{"v": 1, "engines": {"chat": {"ladder": {"rungs": [3, {"at": "x"}], "place": 3, "dropped": []}}}}',
        '{"v": 1, "engines": {"chat": {"gpu_steps": [3, {"at": 1, "step": 9}, {"at": "x", "step": 1}]}}}',
    ],
)
def test_a_damaged_ledger_is_an_empty_one(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(content)
    found = ledger.read(str(path))
    assert all(record == Record() for record in found.records.values())
    assert not found.loads
    assert ledger.read(str(tmp_path / "none")) == Ledger()


def test_only_the_newest_load_times_are_kept() -> None:
    made = Ledger()
    for number in range(LOADS_KEPT + 5):
        made = made.with_load(f"d{number}", number)
    made = made.with_load("d50", 1.0)
    assert len(made.loads) == LOADS_KEPT
    assert "d0" not in made.loads
    assert list(made.loads)[-1] == "d50"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Seen(UnitState.UP, "r1.1"), 26.0),  # should it be restarted as a whole
        (Seen(UnitState.STARTING, "r1"), 26.0),
        (Seen(UnitState.STARTING, "r1.1"), 8.0),
        (Seen(UnitState.OVER, "r1"), 8.0),
        (Seen(), 26.0),
    ],
)
def test_a_start_within_a_unit_has_a_load_time_of_its_own(seen: Seen, expected: float) -> None:
    usual = Ledger().with_load("d1", 26.0)
    both = usual.with_load(ledger.load_key("d1", again=True), 8.0)
    assert both.load_times({"chat": "d1", "embed": "d2"}, {"chat": seen}) == {"chat": expected}
    assert usual.load_times({"chat": "d1"}, {"chat": seen}) == {"chat": 26.0}
