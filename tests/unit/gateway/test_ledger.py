from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from appliance.gateway.ledger import FIELDS, Ledger, Record, entry, line
from appliance.gateway.metrics import Histogram, Metrics
from appliance.host.journal import Journal
from appliance.wire.promtext import samples


def record(**fields: Any) -> Record:
    values: dict[str, Any] = {
        "at": 1_800_000_000.0, "request_id": "r-1", "key_id": "k-1", "client": "127.0.0.1", "route": "/v1/completions",
        "model": "m", "engine": "chat", "status": 200, "outcome": "ok", "code": "", "stream": True, "queue_ms": 1.25,
        "first_token_ms": 20.0, "total_ms": 100.0, "events": 4, "prompt_tokens": 7, "cached_tokens": 2,
        "completion_tokens": 3, "estimated": False, "resent": 0,
    }  # fmt: skip
    return Record(**{**values, **fields})


def test_a_line_says_what_is_known() -> None:
    told = line(record(first_token_ms=None, prompt_tokens=None))
    assert "ttft_ms" not in told and "prompt_tokens" not in told and "resent" not in told
    assert "request=r-1 key=k-1" in told and "queue_ms=1.2" in told


@pytest.mark.parametrize("model", ["a outcome=ok", 'a"b', "a\nMESSAGE=x", "北京", "a\u2028b"])
def test_a_name_cannot_forge_a_field_or_a_line(model: str) -> None:
    told = line(record(model=model))
    assert len(told.splitlines()) == 1
    assert f"model={json.dumps(model)} engine=chat" in told


def test_the_ledger_is_json_lines(tmp_path: Path) -> None:
    async def write() -> None:
        ledger = Ledger(Journal("test", path=str(tmp_path / "none")))
        ledger.configure(str(tmp_path))
        for number in range(500):
            ledger.finish(record(request_id=f"r-{number}", at=1_800_000_000.0 + number * 86400 / 250))
        await asyncio.get_running_loop().run_in_executor(None, ledger.close)
        assert ledger.dropped == 0 and ledger.problem == ""

    asyncio.run(write())
    files = sorted(tmp_path.glob("usage-*.jsonl"))
    assert len(files) == 3
    entries = [json.loads(text) for file in files for text in file.read_text().splitlines()]
    assert [one["request_id"] for one in entries] == [f"r-{n}" for n in range(500)]
    assert tuple(entries[0]) == FIELDS


def test_a_directory_that_is_gone_is_told_and_loses_no_line_of_the_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def write() -> Ledger:
        ledger = Ledger(Journal("test", path=str(tmp_path / "none")))
        ledger.configure(str(tmp_path / "missing"))
        ledger.finish(record())
        await asyncio.get_running_loop().run_in_executor(None, ledger.close)
        return ledger

    assert "cannot be written" in asyncio.run(write()).problem
    assert json.loads(entry(record(model="北京")))["model"] == "北京"


def test_metrics_count_each_call_once() -> None:
    metrics = Metrics()
    metrics.finish(record())
    metrics.finish(record(outcome="refused", status=429, code="queue_full", engine="", queue_ms=None,
                          first_token_ms=None, prompt_tokens=None, completion_tokens=None, events=0))  # fmt: skip
    found = {(s.name, *sorted(s.labels.items())): s.value for s in samples(metrics.exposition([]))}
    assert found["llm_appliance_requests_total", ("engine", "chat"), ("outcome", "ok"), ("status", "200")] == 1
    assert found["llm_appliance_admission_refused_total", ("reason", "queue_full")] == 1
    assert found["llm_appliance_tokens_total", ("engine", "chat"), ("kind", "completion")] == 3
    assert found["llm_appliance_request_ttft_seconds_count", ("engine", "chat")] == 1


def test_a_histogram_adds_up() -> None:
    histogram = Histogram("h", "x", "engine")
    for seconds in (0.001, 0.005, 0.3, 9999):
        histogram.observe("a", seconds)
    buckets = {s.labels["le"]: s.value for s in samples(histogram.text_lines()) if s.name == "h_bucket"}
    assert buckets["0.005"] == 2 and buckets["0.5"] == 3 and buckets["600"] == 3 and buckets["+Inf"] == 4
    assert list(buckets.values()) == sorted(buckets.values())
    assert Histogram("h", "x", "engine").text_lines() == ""
