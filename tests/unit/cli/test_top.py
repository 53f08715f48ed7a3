from __future__ import annotations

import pytest

from appliance.cli.top import END_OF_LINE, END_OF_SCREEN, HOME, frame, keys, offset_after

PAGE = [f"line {n}" for n in range(10)]


def rows_of(text: str) -> list[str]:
    assert text.startswith(HOME) and text.endswith(END_OF_LINE + END_OF_SCREEN)
    return text[len(HOME) : -len(END_OF_LINE + END_OF_SCREEN)].split(f"{END_OF_LINE}\r\n")


def test_a_short_page_fills_the_screen_and_the_foot_is_its_last_row() -> None:
    assert rows_of(frame(PAGE[:2], "foot", 0, 80, 5)) == ["line 0", "line 1", "", "", "foot"]


@pytest.mark.parametrize(("offset", "first", "more"), [(0, "line 0", "  6 more lines"), (6, "line 6", "")])
def test_a_long_page_shows_a_part_and_how_much_follows(offset: int, first: str, more: str) -> None:
    shown = rows_of(frame(PAGE, "foot", offset, 80, 5))
    assert (len(shown), shown[0], shown[-1]) == (5, first, f"foot{more}")


@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (3, 2), (10, 24), (80, 1)])
def test_no_row_is_wider_and_there_are_no_more_than_fit(columns: int, rows: int) -> None:
    shown = rows_of(frame(["x" * 200] * 50, "a long foot", 0, columns, rows))
    assert len(shown) == rows and max(map(len, shown)) <= columns


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("q", ["q"]),
        ("jk", ["j", "k"]),
        ("\x1b[A\x1b[6~q", ["\x1b[A", "\x1b[6~", "q"]),
        ("\x1bOB", ["\x1bOB"]),
        ("\x1b[1;5Cq", ["\x1b[1;5C", "q"]),
        ("\x1b", ["\x1b"]),
        ("\x1b[", ["\x1b["]),
        ("\x1b[5", ["\x1b[5"]),
        ("", []),
    ],
)
def test_keys(typed: str, expected: list[str]) -> None:
    assert list(keys(typed)) == expected


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [("j", 0, 1), ("k", 0, 0), ("\x1b[B", 6, 6), ("\x1b[6~", 0, 3), ("\x1b[5~", 5, 2), ("G", 0, 6), ("g", 6, 0),
     ("x", 2, 2), ("", 99, 6)],
)  # fmt: skip
def test_scrolling_stays_on_the_page(key: str, before: int, after: int) -> None:
    assert offset_after(key, before, 4, 10) == after


def test_a_page_that_fits_does_not_scroll() -> None:
    assert [offset_after(key, 0, 20, 10) for key in ("j", "G", "\x1b[6~")] == [0, 0, 0]
