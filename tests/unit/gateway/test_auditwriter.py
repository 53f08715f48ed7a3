from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.gateway.auditwriter import AuditWriter
from appliance.host import auditfiles
from appliance.wire.auditchain import Report, verify
from appliance.wire.auditline import HEAD_FILE, head_bytes, members

A, B = "2027-01-15", "2027-01-16"
FILE_A, FILE_B = f"usage-{A}.jsonl", f"usage-{B}.jsonl"


def entries(*numbers: int) -> list[str]:
    return [members({"at": float(number), "key_id": "k-1"}) for number in numbers]


def check(directory: Path) -> Report:
    names = auditfiles.names(str(directory))
    return verify([(name, auditfiles.lines(str(directory / name))) for name in names], auditfiles.head(str(directory)))


def write(directory: Path, day: str, *numbers: int) -> None:
    """As one process would."""
    writer = AuditWriter(str(directory))
    writer.append(day, entries(*numbers))
    writer.close()


def kill(writer: AuditWriter) -> None:
    """What the end of its process does to a writer: nothing is synced, everything is closed."""
    os.close(writer._file)
    os.close(writer._head)


def test_lines_go_into_the_file_of_the_day_and_never_back(tmp_path: Path) -> None:
    writer = AuditWriter(str(tmp_path))
    for day in (A, B, A):
        writer.append(day, entries(1, 2))
    writer.close()
    assert [(tmp_path / name).read_bytes().count(b"\n") for name in (FILE_A, FILE_B)] == [2, 4]
    report = check(tmp_path)
    assert report.findings == [] and (report.first, report.last) == (1, 6)
    assert len(writer.sealed) == 1 and writer.sealed[0].startswith(f"{FILE_A} ends with line 2, hash ")
    assert (tmp_path / FILE_A).stat().st_mode & 0o777 == 0o640


def test_a_killed_writer_leaves_a_whole_chain(tmp_path: Path) -> None:
    writer = AuditWriter(str(tmp_path))
    writer.append(A, entries(1, 2))
    writer.sync()
    writer.append(B, entries(3, 4))
    kill(writer)
    assert check(tmp_path).findings == []
    write(tmp_path, B, 5)
    report = check(tmp_path)
    assert report.findings == [] and report.lines == 5


@pytest.mark.parametrize("with_head", [True, False])
@pytest.mark.parametrize("torn", [b'{"v":1,"seq"', b"\0" * 5000, b"half\n\0\0\nhalf", b"x\n"])
def test_what_a_crash_left_is_set_aside(tmp_path: Path, torn: bytes, with_head: bool) -> None:
    write(tmp_path, A, 1, 2)
    with (tmp_path / FILE_A).open("ab") as file:
        file.write(torn)
    if not with_head:
        (tmp_path / HEAD_FILE).unlink()
    write(tmp_path, B, 3)
    report = check(tmp_path)
    assert report.faults == 0 and report.lines == 4
    (note,) = report.findings
    assert (note.file, note.line, note.kind) == (FILE_A, 3, "torn") and f"{len(torn)} bytes" in note.message
    assert (tmp_path / f"torn-{A}-3").read_bytes() == torn


def test_after_a_power_cut_a_line_behind_a_hole_is_not_believed(tmp_path: Path) -> None:
    writer = AuditWriter(str(tmp_path))
    writer.append(A, entries(1))
    writer.sync()
    before = (tmp_path / FILE_A).stat().st_size
    writer.append(A, entries(2, 3))
    kill(writer)
    data = bytearray((tmp_path / FILE_A).read_bytes())
    data[before : before + 40] = b"\0" * 40
    (tmp_path / FILE_A).write_bytes(data)
    write(tmp_path, A, 4)
    report = check(tmp_path)
    assert report.faults == 0 and report.lines == 3
    assert (tmp_path / f"torn-{A}-2").read_bytes() == data[before:]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3000), st.booleans())
def test_any_crash_in_a_write_leaves_what_can_be_continued(
    tmp_path_factory: pytest.TempPathFactory, cut: int, keep: bool
) -> None:
    """However much of an unsynced write is there: what was synced stays, and the next start continues the chain."""
    directory = tmp_path_factory.mktemp("cut")
    writer = AuditWriter(str(directory))
    writer.append(A, entries(1, 2))
    writer.sync()
    durable = (directory / FILE_A).stat().st_size
    writer.append(A, entries(*range(3, 13)))
    kill(writer)
    os.truncate(directory / FILE_A, min(durable + cut, (directory / FILE_A).stat().st_size))
    if not keep:
        (directory / HEAD_FILE).write_bytes(b"")
    assert check(directory).faults == 0
    write(directory, A, 13)
    report = check(directory)
    assert report.faults == 0 and report.lines >= 3
    assert json.loads((directory / FILE_A).read_bytes().splitlines()[-1])["at"] == 13.0


def test_durable_lines_that_somebody_cut_off_stay_missing(tmp_path: Path) -> None:
    write(tmp_path, A, 1, 2, 3)
    lines = (tmp_path / FILE_A).read_bytes().splitlines(keepends=True)
    (tmp_path / FILE_A).write_bytes(lines[0])
    write(tmp_path, A, 4)
    assert [str(found) for found in check(tmp_path).findings] == [
        f"{FILE_A}:2: missing: lines 2 to 3 are missing before this one"
    ]


def test_a_file_that_somebody_took_away_is_missed_and_the_next_lines_are_kept(tmp_path: Path) -> None:
    writer = AuditWriter(str(tmp_path))
    writer.append(A, entries(1, 2))
    (tmp_path / FILE_A).unlink()
    writer.append(A, entries(3))
    writer.close()
    assert [found.kind for found in check(tmp_path).findings] == ["missing"]
    assert check(tmp_path).last == 3
    (tmp_path / FILE_A).unlink()
    write(tmp_path, A, 4)
    assert [found.message for found in check(tmp_path).findings] == [
        "lines 1 to 3 are missing at the beginning of the ledger"
    ]


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    writer = AuditWriter(str(tmp_path))
    with pytest.raises(OSError, match="another gateway"):
        AuditWriter(str(tmp_path))
    writer.close()
    AuditWriter(str(tmp_path)).close()


def test_files_of_days_before_are_deleted_and_the_chain_goes_on(tmp_path: Path) -> None:
    writer = AuditWriter(str(tmp_path))
    writer.append(A, entries(1, 2))
    writer.append(B, entries(3))
    (tmp_path / f"torn-{A}-2").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("not ours")
    assert writer.expire(A) == [] and writer.expire(B) == [FILE_A]
    assert sorted(os.listdir(tmp_path)) == [HEAD_FILE, "notes.txt", FILE_B]
    assert check(tmp_path).findings == [] and check(tmp_path).first == 3
    assert writer.expire("2027-02-01") == [FILE_B]
    assert check(tmp_path).findings == []
    writer.append("2027-02-01", entries(4))
    writer.close()
    report = check(tmp_path)
    assert report.findings == [] and report.first == report.last == 4


def test_a_crash_between_head_and_deletion_is_no_fault(tmp_path: Path) -> None:
    writer = AuditWriter(str(tmp_path))
    writer.append(A, entries(1, 2))
    writer.append(B, entries(3))
    data = (tmp_path / FILE_A).read_bytes()
    writer.expire(B)
    kill(writer)
    (tmp_path / FILE_A).write_bytes(data)
    assert check(tmp_path).findings == []


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As a full disk does, a write beyond `size` bytes ends early and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    writer = AuditWriter(str(tmp_path))
    writer.append(A, entries(1, 2))
    size = (tmp_path / FILE_A).stat().st_size
    with largest_file(size + 100), pytest.raises(OSError, match="too large"):
        writer.append(A, entries(3))
    assert (tmp_path / FILE_A).stat().st_size == size
    writer.append(A, entries(3))
    writer.close()
    assert check(tmp_path).findings == [] and check(tmp_path).last == 3


def test_the_head_never_says_more_than_is_there(tmp_path: Path) -> None:
    writer = AuditWriter(str(tmp_path))
    writer.append(A, entries(1))
    head = auditfiles.head(str(tmp_path))
    assert head is not None and head.last == 0
    writer.sync()
    head = auditfiles.head(str(tmp_path))
    assert head is not None and (head.last, head.size) == (1, (tmp_path / FILE_A).stat().st_size)
    assert (tmp_path / HEAD_FILE).read_bytes() == head_bytes(head)
    writer.close()
