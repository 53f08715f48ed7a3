from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.gateway.ledger import Ledger
from appliance.gateway.record import FIELDS, Record
from appliance.host import auditfiles
from appliance.host.journal import Journal
from appliance.wire import auditchain
from tests.support.records import record
from tests.support.waiting import wait_until

Job = Callable[[Ledger], None]


def keep(
    directory: Path,
    *jobs: Job,
    wall: Callable[[], float] = lambda: 1_800_000_000.0,
    days: int = 30,
    **options: Any,
) -> Ledger:
    """A ledger in `directory` that lives as long as the jobs take, each in a thread so that the loop runs on."""

    async def live() -> Ledger:
        ledger = Ledger(Journal("test", path=str(directory / "none")), wall=wall, **options)
        ledger.configure(str(directory), days * 86400.0)
        loop = asyncio.get_running_loop()
        for job in jobs:
            await loop.run_in_executor(None, job, ledger)
        await loop.run_in_executor(None, ledger.close)
        return ledger

    return asyncio.run(live())


def finish(*records: Record) -> Job:
    def job(ledger: Ledger) -> None:
        for one in records:
            ledger._loop.call_soon_threadsafe(ledger.finish, one)
        done = threading.Event()
        ledger._loop.call_soon_threadsafe(done.set)
        assert done.wait(10)

    return job


def until(condition: Callable[[Ledger], object], what: str) -> Job:
    return lambda ledger: wait_until(lambda: condition(ledger), 10, what, 0.01) and None


def entries(directory: Path) -> list[dict[str, Any]]:
    """Every line of a ledger that is whole."""
    files = [(name, list(auditfiles.lines(str(directory / name)))) for name in auditfiles.names(str(directory))]
    report = auditchain.verify(files, auditfiles.head(str(directory)))
    assert report.faults == 0, report.findings
    return [json.loads(raw) for _, lines in files for raw in lines]


def test_the_ledger_is_json_lines_in_files_of_days(tmp_path: Path) -> None:
    records = [record(request_id=f"r-{n}", at=1_800_000_000.0 + n * 86400 / 250) for n in range(500)]
    ledger = keep(tmp_path, finish(*records))
    assert ledger.dropped == 0 and ledger.waiting == 0 and ledger.problem == ""
    assert len(auditfiles.names(str(tmp_path))) == 3
    found = entries(tmp_path)
    assert [one["request_id"] for one in found] == [f"r-{n}" for n in range(500)]
    assert tuple(found[0]) == ("v", "seq", "prev", *FIELDS, "hash")


def test_a_call_counts_on_the_day_on_which_it_ends(tmp_path: Path) -> None:
    midnight = 1_800_057_600.0
    keep(tmp_path, finish(record(at=midnight - 1), record(at=midnight - 30, total_ms=60_000.0)))
    assert auditfiles.names(str(tmp_path)) == ["usage-2027-01-15.jsonl", "usage-2027-01-16.jsonl"]
    assert len(entries(tmp_path)) == 2


def test_the_next_process_continues_the_chain(tmp_path: Path) -> None:
    for _ in range(3):
        keep(tmp_path, finish(record(), record()))
    assert [one["seq"] for one in entries(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_what_cannot_be_written_waits_and_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "audit"

    def mend(_ledger: Ledger) -> None:
        place.mkdir()

    ledger = keep(
        place,
        finish(*(record(request_id=f"r-{n}") for n in range(8))),
        until(lambda ledger: ledger.problem and ledger.waiting == 5 and ledger.dropped == 3, "it is full"),
        mend,
        until(lambda ledger: not ledger.waiting, "it is written"),
        until(lambda ledger: not ledger.problem, "the problem is over"),
        backlog=5,
    )
    assert ledger.dropped == 3 and ledger.problem == ""
    lost, *kept = entries(place)
    assert lost["event"] == "lost" and lost["count"] == 3
    assert [one["request_id"] for one in kept] == [f"r-{n}" for n in range(5)]
    told = capsys.readouterr().err
    assert told.count("cannot be written") == 1 and told.count("written again: 5 waited, 3 are lost") == 1
    assert told.count("request=r-") == 5


def test_what_is_lost_in_the_end_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "missing", finish(record()))
    assert "1 lines of the usage ledger are lost" in capsys.readouterr().err


def test_old_files_are_deleted_as_days_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = [1_800_000_000.0]

    def day_passes(ledger: Ledger) -> None:
        now[0] += 86400
        finish(record(at=now[0]))(ledger)
        wait_until(lambda: not ledger.waiting, 10, "it is written", 0.01)

    keep(tmp_path, finish(record(at=now[0])), *[day_passes] * 7, wall=lambda: now[0], days=3)
    files = auditfiles.names(str(tmp_path))
    assert files == [f"usage-2027-01-{day}.jsonl" for day in (19, 20, 21, 22)]
    assert [one["seq"] for one in entries(tmp_path)] == [5, 6, 7, 8]
    told = capsys.readouterr().err
    assert "1 files of days before" in told and "usage-2027-01-15.jsonl ends with line 1, hash " in told


def test_a_name_that_no_text_can_hold_is_kept(tmp_path: Path) -> None:
    keep(tmp_path, finish(record(model="\ud800\u2028北京", request_id="a\nb")))
    assert entries(tmp_path)[0]["model"] == "\ud800\u2028北京"
