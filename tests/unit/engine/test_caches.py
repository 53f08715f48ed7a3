from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.engine.caches import move_away, settle
from appliance.host.journal import WARNING
from tests.support.waiting import wait_until

Said = list[tuple[int, str]]


@pytest.fixture
def said() -> Said:
    return []


@pytest.fixture
def log(said: Said) -> Callable[[int, str], None]:
    return lambda priority, message: said.append((priority, message))


def filled(cache: Path, key: str, used: float) -> None:
    (cache / "compiled" / key / "triton").mkdir(parents=True)
    (cache / "compiled" / key / "triton/artifact").write_text(key)
    os.utime(cache / "compiled" / key, (used, used))


def test_each_start_finds_what_was_compiled_for_it(tmp_path: Path, log: Callable[[int, str], None], said: Said) -> None:
    """A runtime, the next one, and back."""
    for key in ("old", "new"):
        settle(str(tmp_path), key, "", log)
        (tmp_path / "compiled" / key / "artifact").write_text(key)
    settle(str(tmp_path), "old", "", log)
    assert (tmp_path / "compiled/old/artifact").read_text() == "old"
    assert (tmp_path / "compiled/new/artifact").read_text() == "new"
    assert said == []


def test_what_was_not_used_for_longest_is_removed(tmp_path: Path, log: Callable[[int, str], None], said: Said) -> None:
    for number in range(6):
        filled(tmp_path, f"k{number}", 1000.0 + number)
    settle(str(tmp_path), "k0", "", log)
    assert {path.name for path in (tmp_path / "compiled").glob("k*")} == {"k0", "k5", "k4", "k3"}
    told = [message for _, message in said]
    assert [message.split(": ")[1].split(" ")[0] for message in told] == ["k2", "k1"]
    wait_until(lambda: len(os.listdir(tmp_path / "compiled")) == 4, 10, "nothing is left of them", pause=0.01)
    settle(str(tmp_path), "k1", "", log)  # and now k0 is the newest of the others
    assert (tmp_path / "compiled/k0").exists() and not (tmp_path / "compiled/k3").exists()


def test_what_a_start_before_could_not_delete_is_deleted(tmp_path: Path, log: Callable[[int, str], None]) -> None:
    (tmp_path / "compiled/.removed-x/part").mkdir(parents=True)
    settle(str(tmp_path), "now", "", log)
    wait_until(lambda: os.listdir(tmp_path / "compiled") == ["now"], 10, "it is gone", pause=0.01)


def test_caches_are_moved_once_for_each_wish(tmp_path: Path, log: Callable[[int, str], None], said: Said) -> None:
    place = tmp_path / "compiled"
    filled(tmp_path, "now", 1000.0)
    filled(tmp_path, "other", 1000.0)
    assert move_away(str(tmp_path), "now", "") == ""
    settle(str(tmp_path), "now", "1.000", log)
    assert [message for _, message in said] == [f"compile caches moved away: {place}/now.broken-1"]
    assert os.listdir(place / "now") == [] and (place / "now.broken-1/triton/artifact").exists()
    assert (place / "other/triton/artifact").exists()
    assert move_away(str(tmp_path), "now", "1.000") == ""
    assert move_away(str(tmp_path), "now", "2.000") == "now.broken-2"


def test_a_note_of_the_last_wish_that_is_torn_is_none(tmp_path: Path, log: Callable[[int, str], None]) -> None:
    filled(tmp_path, "key", 1000.0)
    (tmp_path / ".caches-moved").write_bytes(b"1.0\xff\x00")
    settle(str(tmp_path), "key", "1.0", log)
    assert not (tmp_path / "compiled/key/triton").exists()
    assert (tmp_path / ".caches-moved").read_text() == "1.0"


def test_an_engine_that_never_ran_has_no_caches(tmp_path: Path) -> None:
    assert move_away(str(tmp_path / "new"), "now", "1.000") == ""


def test_a_disk_that_refuses_is_told_and_stops_nothing(
    tmp_path: Path, log: Callable[[int, str], None], said: Said
) -> None:
    (tmp_path / "compiled").write_text("")
    settle(str(tmp_path), "now", "1.000", log)
    assert [priority for priority, _ in said] == [WARNING, WARNING]
