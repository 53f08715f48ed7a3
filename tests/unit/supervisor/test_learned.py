from __future__ import annotations

from pathlib import Path

import pytest

from appliance.quantity import UNKNOWN
from appliance.samples import Learned, Usual
from appliance.supervisor.learned import KEPT, LearnedFile

LEARNED = Learned(gpus={"0000:65:00": Usual(idle_power_w=60.0, busy_power_w=350.0)}, prefill_rate=4000.0)


def test_what_was_learned_outlives_the_supervisor(tmp_path: Path) -> None:
    path = str(tmp_path / "state/learned.json")
    first = LearnedFile(path)
    assert first.of("m 1") == Learned()
    first.keep("m 1", LEARNED)
    assert first.of("m 1") == LEARNED
    first.write()
    again = LearnedFile(path)
    assert again.of("m 1") == LEARNED
    assert again.of("m 1").gpus["0000:65:00"].busy_mem_util is UNKNOWN
    assert again.of("another") == Learned()


def test_nothing_learned_writes_nothing(tmp_path: Path) -> None:
    made = LearnedFile(str(tmp_path / "learned.json"))
    made.keep("m 1", Learned())
    made.write()
    assert not (tmp_path / "learned.json").exists()


@pytest.mark.parametrize(
    "text", ["", "{", '{"v": 1, "engines": []}', '{"v": 1, "engines": {"m 1": {"prefill_rate": "x"}}}']
)
def test_a_file_that_cannot_be_read_is_nothing_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "learned.json").write_text(text)
    assert LearnedFile(str(tmp_path / "learned.json")).of("m 1") == Learned()


def test_a_disk_that_takes_nothing_is_a_fault_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    made = LearnedFile(str(tmp_path / "state/learned.json"))
    made.keep("m 1", LEARNED)
    made.write()
    assert "cannot be written" in made.fault
    assert made.of("m 1") == LEARNED


def test_the_oldest_engines_go(tmp_path: Path) -> None:
    made = LearnedFile(str(tmp_path / "learned.json"))
    for number in range(KEPT + 5):
        made.keep(f"m {number}", LEARNED)
    made.write()
    again = LearnedFile(str(tmp_path / "learned.json"))
    assert (again.of("m 0"), again.of(f"m {KEPT}")) == (Learned(), LEARNED)
