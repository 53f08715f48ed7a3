from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire.auditchain import Report, verify
from appliance.wire.auditline import GENESIS, HEAD_FILE, TORN, Head, compose, members, parse_head

CORPUS = Path(__file__).resolve().parents[2] / "corpus/audit"


def told(report: Report) -> list[str]:
    return [f"{'note: ' if finding.note else ''}{finding}" for finding in report.findings]


@pytest.mark.parametrize("case", sorted(CORPUS.iterdir()), ids=lambda case: case.name)
def test_corpus(case: Path) -> None:
    head = parse_head((case / HEAD_FILE).read_bytes()) if (case / HEAD_FILE).exists() else None
    files = [(file.name, list(io.BytesIO(file.read_bytes()))) for file in sorted(case.glob("usage-*.jsonl"))]
    report = verify(files, head)
    expected = (case / "expected.txt").read_text().splitlines()
    assert told(report) == expected
    assert report.faults == sum(not line.startswith("note: ") for line in expected)


def chain(count: int) -> tuple[list[bytes], Head]:
    lines, digest = [], GENESIS
    for number in range(1, count + 1):
        said = members({"at": 1.0 + number, "key_id": "k-1", "completion_tokens": number})
        raw, digest = compose(number, digest, said)
        lines.append(raw)
    return lines, Head(1, count, digest, "b", 0)


LINES, HEAD = chain(9)
WHOLE = b"".join(LINES)


def faults(data: bytes, split: int = 4) -> int:
    """Faults of a ledger in two files."""
    lines = list(io.BytesIO(data))
    return verify([("a", lines[:split]), ("b", lines[split:])], HEAD).faults


def test_the_whole_chain_is_good() -> None:
    assert all(faults(WHOLE, split) == 0 for split in range(10))


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_any_changed_byte_is_found(at: int, flip: int) -> None:
    assert faults(WHOLE[:at] + bytes([WHOLE[at] ^ flip]) + WHOLE[at + 1 :]) > 0


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 700))
def test_any_bytes_taken_out_are_found(at: int, count: int) -> None:
    assert faults(WHOLE[:at] + WHOLE[at + count :]) > 0


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=300))
def test_any_bytes_put_in_are_found(at: int, more: bytes) -> None:
    assert faults(WHOLE[:at] + more + WHOLE[at:]) > 0


@given(st.permutations(LINES))
def test_any_other_order_is_found(lines: list[bytes]) -> None:
    assert (faults(b"".join(lines)) > 0) == (lines != LINES)


@given(st.sets(st.integers(0, 8), max_size=9))
def test_any_missing_lines_are_counted(gone: set[int]) -> None:
    left = [line for number, line in enumerate(LINES) if number not in gone]
    assert (faults(b"".join(left)) > 0) == bool(gone)


@given(st.integers(0, 8), st.integers(0, 9))
def test_any_repeated_line_is_found(which: int, at: int) -> None:
    assert faults(b"".join([*LINES[:at], LINES[which], *LINES[at:]])) > 0


@given(st.binary(min_size=1, max_size=300).filter(lambda more: b"\n" not in more and b"\r" not in more))
def test_bytes_without_an_end_behind_the_last_line_are_noted(more: bytes) -> None:
    report = verify([("a", [*LINES, more])], HEAD)
    assert report.faults == 0 and [finding.kind for finding in report.findings] == [TORN]


@given(st.integers(1, 9))
def test_a_chain_may_begin_where_the_head_says(first: int) -> None:
    head = Head(first, HEAD.last, HEAD.hash, "b", 0)
    assert verify([("a", LINES[first - 1 :])], head).faults == 0
    assert verify([("a", LINES[first:])], head).faults == 1


def test_no_file_after_all_were_deleted_is_good() -> None:
    assert verify([], Head(10, 9, HEAD.hash, "", 0)).findings == []
    assert verify([], None).findings == []
    assert told(verify([], HEAD)) == ["the directory: missing: lines 1 to 9 are missing at the beginning of the ledger"]


def test_a_ledger_without_sense_keeps_the_report_small() -> None:
    report = verify([("a", [b"x\n"] * 5000)], None)
    assert len(report.findings) == 1000 and report.lines == 0
