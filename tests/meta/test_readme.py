"""The README has the table that `tests/run --faults` prints, with all its rows."""

from __future__ import annotations

from pathlib import Path

from tests.support.faults import HEAD
from tests.system.test_faults import ROWS


def test_the_readme_has_the_table_of_faults() -> None:
    text = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    _, head, rest = text.partition("| " + " | ".join(HEAD) + " |\n")
    assert head
    rows = [line.strip("| ").split(" | ") for line in rest.split("\n\n")[0].splitlines()[1:]]
    assert [row[0] for row in rows] == list(ROWS)
    assert all(len(row) == len(HEAD) for row in rows)
