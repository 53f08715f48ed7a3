from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.cli import output


@pytest.mark.parametrize(
    ("rows", "headers", "made"),
    [
        ([], ("A",), ["A"]),
        ([], (), []),
        ([["x", None, 3]], ("A", "B", "C"), ["A  B  C", "x  -  3"]),
        ([["long", "y"], ["s", "z"]], (), ["long  y", "s     z"]),
        ([["a\nb\x1b]0;evil\x07"]], (), ["a b?]0;evil?"]),
        ([["\x1b[8mhidden\x1b[38;5;0m", "\x1b[31mours\x1b[0m"]], (), ["?[8mhidden?[38;5;0m  \x1b[31mours\x1b[0m"]),
    ],
)
def test_lines(rows: list[list[object]], headers: tuple[str, ...], made: list[str]) -> None:
    assert output.lines(rows, headers) == made


def test_painted_cells_are_measured_without_their_colour() -> None:
    red = "\x1b[31mheld\x1b[0m"
    assert [output.visible(line) for line in output.lines([[red, "x"], ["serving", "x"]])] == [10, 10]


@pytest.mark.slow
@given(st.lists(st.lists(st.text(max_size=30), min_size=2, max_size=4), max_size=6), st.integers(5, 100))
def test_no_line_is_wider_than_asked(rows: list[list[str]], columns: int) -> None:
    for line in output.lines(rows, ("ONE", "TWO"), columns):
        assert output.visible(line) <= columns
        assert "\n" not in line


def test_a_pipe_is_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    output.table([["x" * 300, output.paint("held", "red")]], ("A", "B"))
    assert capsys.readouterr().out.splitlines()[1] == "x" * 300 + "  held"


def test_an_empty_table_has_no_headers(capsys: pytest.CaptureFixture[str]) -> None:
    output.table([], ("A", "B"))
    assert capsys.readouterr().out == ""


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"b": "ü", "a": (1, None)})
    assert capsys.readouterr().out == '{\n  "b": "ü",\n  "a": [\n    1,\n    null\n  ]\n}\n'


def test_a_remark_keeps_its_lines_and_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    output.note("one\ttwo\nthree\x1b]0;evil\x07\r\x9b2J\x1b[8m")
    assert capsys.readouterr().err == "one\ttwo\nthree?]0;evil???2J?[8m\n"
