"""A supervisor that was killed: the next one goes on where it was, whatever of its files is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stage import CHAT, SETTINGS, Stage, staged, unit


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_killed_between_the_death_and_the_restart(stage: Stage) -> None:
    stage.write(CHAT, SETTINGS.replace('"50ms"', '"3s"'))
    stage.start()
    stage.serving()
    stage.die()
    stage.wait(lambda: stage.ledger().get("not_before"), "the death is on record")
    stage.kill()
    starts = stage.starts()
    stage.start()
    stage.wait_started(starts + 1)
    stage.serving()
    assert len(stage.ledger()["deaths"]) == 1
    assert stage.starts() == starts + 1


@pytest.mark.slow
def test_killed_after_the_restart_was_asked_for(stage: Stage) -> None:
    """The wish is still on record, the run that fulfils it is there: it is not restarted again."""
    stage.start()
    stage.serving()
    stage.ask("restart", engine="chat")
    stage.wait_started(2)
    stage.kill()
    stage.start()
    stage.serving()
    assert stage.ledger().get("wanted", "") == ""
    assert stage.starts() == 2


@pytest.mark.slow
def test_killed_while_the_net_restarted_the_engine(stage: Stage) -> None:
    stage.start()
    stage.serving()
    stage.kill()
    stage.die(cause="cuda-fault", message="illegal access")
    stage.systemd.set(unit(), ActiveState="inactive")
    stage.systemd.start(unit())  # systemd's own restart
    stage.start()
    stage.wait(lambda: stage.ledger().get("deaths"), "the death is on record")
    stage.serving()
    assert [death["cause"] for death in stage.ledger()["deaths"]] == ["cuda-fault"]
    assert stage.starts() == 1


@pytest.mark.parametrize("damage", ["missing", pytest.param("torn", marks=pytest.mark.slow)])
def test_lost_files_lose_no_engine(stage: Stage, damage: str) -> None:
    stage.start()
    stage.serving()
    stage.kill()
    for path in (stage.state / "supervisor/ledger.json", stage.run / "supervisor/fleet.json"):
        path.unlink() if damage == "missing" else path.write_text('{"v": 1, "engines": {"chat": [')
    (stage.run / "engines/chat/state.json").unlink()
    stage.start()
    stage.wait_state("serving")
    assert stage.starts() == 1
    stage.die()
    stage.wait_started(2)
