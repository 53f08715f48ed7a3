from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire.incident import ID, Incident, incident_id, parse

ABOUT = Incident(
    id="20261129T173000Z-chat-hang-collective", engine="chat", at=1.5, kind="kill", cause="hang-collective",
    reason="no byte for 94s", verdict="hung", action="restart", evidence=("a", "b"), run="r", again=(2.0, 3.0),
    outcome="done", took_s=1.2, collected={"lines.log": 3}, missing={"metrics.txt": "why"}, facts={"vllm": None},
)  # fmt: skip


def test_a_name_tells_time_engine_and_cause() -> None:
    assert incident_id(1795973400.9, "chat-2", "hang-collective") == "20261129T173000Z-chat-2-hang-collective"
    assert incident_id(0.0, "chat", "") == "19700101T000000Z-chat-asked"


@given(st.floats(0, 4e9), st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True))
def test_names_are_names_and_sort_by_time(at: float, engine: str) -> None:
    assert ID.fullmatch(incident_id(at, engine, "engine-died"))
    assert incident_id(at, engine, "x") < incident_id(at + 1.0, engine, "x")


def test_an_incident_comes_back() -> None:
    assert parse(json.loads(json.dumps(ABOUT.value))) == ABOUT


@pytest.mark.parametrize("value", [None, {}, {"id": "../../etc"}, {"id": 3}, {"id": "20261129T173000Z-"}])
def test_what_is_no_incident(value: dict[str, object] | None) -> None:
    assert parse(value) is None


def test_strange_fields_keep_their_defaults() -> None:
    found = parse({"id": ABOUT.id, "at": "x", "evidence": 3, "again": ["x", True], "collected": [], "facts": 1})
    assert found is not None
    assert (found.at, found.evidence, found.again, found.collected, found.facts) == (0.0, (), (0.0, 0.0), {}, {})
