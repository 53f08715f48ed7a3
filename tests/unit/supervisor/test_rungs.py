from __future__ import annotations

from pathlib import Path

from appliance.engine import rung
from appliance.host import files
from appliance.host.places import Places
from appliance.policy.ladder import Ladder, Place, Rung
from appliance.policy.reconcile import Seen, UnitState
from appliance.policy.restart import Record
from appliance.supervisor import rungs

PLACE = Place("d1", "0.32.0-cuda", ("GPU-1",))
LADDER = Ladder(
    PLACE,
    (
        Rung("kv-none", "gpu_memory_utilization 0.92 -> 0.95", 3.5, {"gpu_memory_utilization": 0.95}),
        Rung("start-failed", "compile caches moved away", 4.5, caches=True),
        Rung("hang-collective", "NCCL_DEBUG=INFO", 5.5, env={"NCCL_DEBUG": "INFO"}),
    ),
)


def test_the_launcher_reads_what_the_supervisor_wrote(tmp_path: Path) -> None:
    places = Places(run=str(tmp_path / "run"), state=str(tmp_path))
    rungs.write(places, {"chat": Record(ladder=LADDER), "embed": Record()})
    found = rung.read("chat", places, places.run, PLACE)
    assert (dict(found.change.flags), dict(found.change.env)) == (LADDER.flags, LADDER.env)
    assert (found.told, found.caches) == (LADDER.told, "4.500")
    assert rung.read("embed", places, places.run, PLACE) == rung.Rung()
    assert [path.name for path in (tmp_path / "supervisor/rungs").iterdir()] == ["chat.json"]


def test_a_ladder_that_was_forgotten_is_written_as_such(tmp_path: Path) -> None:
    places = Places(run=str(tmp_path / "run"), state=str(tmp_path))
    rungs.write(places, {"chat": Record(ladder=LADDER)})
    rungs.write(places, {"chat": Record(ladder=Ladder(PLACE))})
    assert rung.read("chat", places, places.run, PLACE) == rung.Rung()
    value = files.read_json(tmp_path / "supervisor/rungs/chat.json")
    assert value is not None and value["told"] == ""


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    places = Places(run=str(tmp_path / "run"), state=str(tmp_path))
    rungs.write(places, {"chat": Record(ladder=LADDER)})
    before = (tmp_path / "supervisor/rungs/chat.json").stat().st_ino
    rungs.write(places, {"chat": Record(ladder=LADDER)})
    assert (tmp_path / "supervisor/rungs/chat.json").stat().st_ino == before


def test_what_a_unit_was_given_at_its_start_is_compared_with_what_is_wanted_now(tmp_path: Path) -> None:
    places = Places(run=str(tmp_path / "run"), state=str(tmp_path))
    seen = {"chat": Seen(UnitState.OVER), "embed": Seen(UnitState.OVER), "up": Seen(UnitState.UP)}
    copy = tmp_path / "run/engines/chat/rung.json"
    copy.parent.mkdir(parents=True)
    assert rungs.laid(places, seen) == {"chat", "embed"}  # nothing is changed about either
    rungs.write(places, {"chat": Record(ladder=LADDER)})
    assert rungs.laid(places, seen) == {"embed"}
    copy.write_bytes((tmp_path / "supervisor/rungs/chat.json").read_bytes())
    assert rungs.laid(places, seen) == {"chat", "embed"}
    rungs.write(places, {"chat": Record(ladder=Ladder(PLACE))})
    assert rungs.laid(places, seen) == {"embed"}
