"""The README has the table that `tests/run --faults` prints, with all its rows; the Chinese one has it row by row."""

from __future__ import annotations

from pathlib import Path

from tests.support.faults import HEAD
from tests.system.test_faults import ROWS

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_has_the_table_of_faults() -> None:
    text = (ROOT / "README.md").read_text()
    _, head, rest = text.partition("| " + " | ".join(HEAD) + " |\n")
    assert head
    rows = [line.strip("| ").split(" | ") for line in rest.split("\n\n")[0].splitlines()[1:]]
    assert [row[0] for row in rows] == list(ROWS)
    assert all(len(row) == len(HEAD) for row in rows)


def test_the_chinese_readme_has_the_same_causes_and_times_in_the_same_rows() -> None:
    """Its words are its own; causes, and what is known after how long, are not."""
    tables = []
    for name in ("README.md", "README.zh-CN.md"):
        _, rule, rest = (ROOT / name).read_text(encoding="utf-8").partition("\n" + "|---" * len(HEAD) + "|\n")
        assert rule, name
        rows = [line.strip("| ").split(" | ") for line in rest.split("\n\n")[0].splitlines()]
        tables.append([(row[HEAD.index("cause that was found")], row[HEAD.index("known after")]) for row in rows])
    assert tables[0] == tables[1]
    assert len(tables[0]) == len(ROWS)
