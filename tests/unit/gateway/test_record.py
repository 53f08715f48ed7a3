from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.gateway.record import FIELDS, Record, entry, line, record_of
from tests.support.records import record


def test_a_line_says_what_is_known() -> None:
    told = line(record(first_token_ms=None, prompt_tokens=None))
    assert "ttft_ms" not in told and "prompt_tokens" not in told and "resent" not in told
    assert "request=r-1 key=k-1" in told and "queue_ms=1.2" in told


@pytest.mark.parametrize("model", ["a outcome=ok", 'a"b', "a\nMESSAGE=x", "北京", "a\u2028b"])
def test_a_name_cannot_forge_a_field_or_a_line(model: str) -> None:
    told = line(record(model=model))
    assert len(told.splitlines()) == 1
    assert f"model={json.dumps(model)} engine=chat" in told


def test_a_line_has_its_words_in_this_order() -> None:
    told = line(record(engine="", code="queue_full", resent=1))
    assert [word.partition("=")[0] for word in told.split()] == [
        "request", "key", "client", "route", "model", "status", "outcome", "code", "queue_ms", "ttft_ms", "total_ms",
        "events", "prompt_tokens", "completion_tokens", "resent",
    ]  # fmt: skip


text = st.text(st.characters(), max_size=12)
times = st.floats(0, 1e9) | st.integers(0, 10**7).map(lambda tenths: tenths / 10)
counts = st.integers(0, 10**9)
records = st.builds(
    Record, at=st.floats(0, 4e9) | counts.map(float), request_id=text, key_id=text, client=text, route=text, model=text,
    engine=text, status=st.integers(0, 599), outcome=text, code=text, stream=st.booleans(),
    queue_ms=st.none() | times, first_token_ms=st.none() | times, total_ms=times, events=counts,
    prompt_tokens=st.none() | counts, cached_tokens=st.none() | counts, completion_tokens=st.none() | counts,
    estimated=st.booleans(), resent=st.integers(0, 9),
)  # fmt: skip


@given(records)
def test_an_entry_is_what_an_encoder_makes_of_the_record(made: Record) -> None:
    expected: dict[str, object] = dict(zip(FIELDS, made, strict=True))
    expected["at"] = round(made.at, 3)
    for name, value in (
        ("queue_ms", made.queue_ms),
        ("first_token_ms", made.first_token_ms),
        ("total_ms", made.total_ms),
    ):
        expected[name] = None if value is None else round(value, 1)
    assert "{" + entry(made) + "}" == json.dumps(expected, separators=(",", ":"))


@given(records)
def test_a_record_comes_back_from_another_process(made: Record) -> None:
    assert record_of(json.loads(json.dumps(made._asdict()))) == made


def test_another_version_may_know_more_fields_or_fewer() -> None:
    assert record_of({"request_id": "r", "colour": "red"}) == Record(request_id="r")
