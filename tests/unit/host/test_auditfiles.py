from __future__ import annotations

from pathlib import Path

import pytest

from appliance.host import auditfiles
from appliance.wire.auditline import GENESIS, compose, members

DAYS = ("2027-01-15", "2027-01-16")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Two days of twenty lines: key k-0 on the first day alone, k-1 and k-2 by turns on the second."""
    prev, number = GENESIS, 0
    for day, name in enumerate(DAYS):
        data = b""
        for turn in range(20):
            number += 1
            key = "k-0" if day == 0 else f"k-{1 + turn % 2}"
            raw, prev = compose(number, prev, members({"at": 1000.0 * day + turn, "key_id": key}))
            data += raw
        (tmp_path / f"usage-{name}.jsonl").write_bytes(data)
    (tmp_path / "usage-2027-01-16.jsonl.gz").write_bytes(b"not ours")
    return tmp_path


def test_files_are_found_oldest_first(ledger: Path) -> None:
    assert auditfiles.names(str(ledger)) == [f"usage-{day}.jsonl" for day in DAYS]
    assert list(auditfiles.lines(str(ledger / "gone"))) == []
    assert auditfiles.head(str(ledger)) is None


def test_the_last_uses_are_found_from_the_end(ledger: Path) -> None:
    uses = auditfiles.last_uses(str(ledger), ["k-0", "k-1", "k-2", "k-9"])
    assert uses.at == {"k-0": 19.0, "k-1": 1018.0, "k-2": 1019.0} and uses.since is None


def test_beyond_the_limit_nobody_looks(ledger: Path) -> None:
    uses = auditfiles.last_uses(str(ledger), ["k-0", "k-1"], limit=1000)
    assert uses.at == {"k-1": 1018.0} and uses.since is not None and 1000.0 <= uses.since < 1018.0
    assert auditfiles.last_uses(str(ledger), ["k-2"], limit=1) == auditfiles.LastUses({"k-2": 1019.0}, None)


@pytest.mark.parametrize("block", [1, 7, 64, 4096])
def test_a_file_read_backwards_is_the_file(ledger: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(auditfiles, "BLOCK", block)
    path = ledger / f"usage-{DAYS[0]}.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1]
    assert list(auditfiles._backwards(str(path)))[::-1] == lines
    path.write_bytes(path.read_bytes() + b"torn")
    assert list(auditfiles._backwards(str(path)))[::-1] == [*lines, b"torn"]


def test_entries_begin_at_a_moment_and_tell_of_what_cannot_be_read(ledger: Path) -> None:
    with (ledger / f"usage-{DAYS[1]}.jsonl").open("ab") as file:
        file.write(b"{torn\n[]\n" + compose(41, GENESIS, members({"event": "lost", "count": 3}))[0])
    found = list(auditfiles.entries(str(ledger), 1015.0, DAYS[1]))
    assert [entry and entry.get("at") for entry in found] == [1015.0, 1016.0, 1017.0, 1018.0, 1019.0, None, None]
    assert len(list(auditfiles.entries(str(ledger), 0.0, "1970-01-01"))) == 42
