from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.host.journal import message_id
from appliance.policy.reconcile import View
from appliance.supervisor.fleet import Fleet
from tests.support.journalsocket import Listener


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(tmp_path / "journal")
    yield made
    made.close()


def update(fleet: Fleet, now: float, **views: View) -> list[dict[str, object]]:
    return fleet.update(views, set(views), {}, {}, now)


def test_a_change_is_told_once_with_its_fields(listener: Listener, tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path / "fleet.json"), listener.journal)
    starting = View("starting", "loading", "starting")
    assert len(update(fleet, 10.0, chat=starting)) == 1
    assert update(fleet, 12.0, chat=starting) == []
    update(fleet, 36.0, chat=View("serving"))
    update(fleet, 40.0, chat=View("held", "bad flag", "config-error", "llm-appliance resume chat"))
    told = listener.entries()
    assert [entry["LLM_EVENT"] for entry in told] == ["engine-starting", "engine-serving", "engine-held"]
    assert {entry["LLM_ENGINE"] for entry in told} == {"chat"}
    assert told[1]["MESSAGE"] == "chat: serving after 26s starting"
    assert told[2]["LLM_CAUSE"] == "config-error"
    assert told[2]["MESSAGE_ID"] == message_id("engine-held")
    assert told[2]["MESSAGE"] == "chat: held: bad flag; llm-appliance resume chat"


def test_another_reason_is_an_event_but_no_line(listener: Listener, tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path / "fleet.json"), listener.journal)
    update(fleet, 1.0, chat=View("starting", "weights 10 %"))
    events = update(fleet, 2.0, chat=View("starting", "weights 20 %"))
    assert [event["message"] for event in events] == ["weights 20 %"]
    assert len(listener.entries()) == 1


def test_the_file_outlives_the_supervisor(listener: Listener, tmp_path: Path) -> None:
    path = tmp_path / "run/fleet.json"
    fleet = Fleet(str(path), listener.journal)
    fleet.update({"chat": View("serving")}, {"chat"}, {"chat": 2}, {"chat": 26.0}, 100.0)
    fleet.write("act", 100.0)
    written = json.loads(path.read_text())
    assert (written["v"], written["at"], written["mode"]) == (1, 100.0, "act")
    assert written["engines"]["chat"] == {
        "state": "serving",
        "since": 100.0,
        "cause": "",
        "reason": "",
        "next": "",
        "restarts": 2,
        "load_s": 26.0,
        "not_before": None,
        "changed": "",
        "incident": None,
        "suspect": False,
        "death": None,
    }
    listener.entries()
    again = Fleet(str(path), listener.journal)
    assert update(again, 500.0, chat=View("serving")) == []
    assert again.entries["chat"].since == 100.0
    assert listener.entries() == []


def test_an_unchanged_file_is_written_again_now_and_then(listener: Listener, tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    fleet = Fleet(str(path), listener.journal)
    update(fleet, 1.0, chat=View("serving"))
    for now, at in ((1.0, 1.0), (5.0, 1.0), (11.5, 11.5), (3.0, 3.0)):  # the last: the clock was set back
        fleet.write("act", now)
        assert json.loads(path.read_text())["at"] == at


def test_what_is_unknown_keeps_its_last_word_and_what_is_gone_goes(listener: Listener, tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path / "fleet.json"), listener.journal)
    update(fleet, 1.0, chat=View("serving"), old=View("serving"))
    fleet.update({}, {"chat"}, {}, {}, 2.0)
    assert list(fleet.entries) == ["chat"]
    assert fleet.sentence == "1 serving (chat)"


@pytest.mark.parametrize(
    "content", ["", "[]", '{"v":1,"engines":[]}', '{"v":1,"engines":{"chat":3,"x":{"state":"odd"}}}']
)
def test_a_damaged_file_is_no_memory(listener: Listener, tmp_path: Path, content: str) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(content)
    assert Fleet(str(path), listener.journal).entries == {}
