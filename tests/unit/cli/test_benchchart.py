"""A ladder as a picture: what is in it, and that it fits."""

from __future__ import annotations

import pytest

from appliance.cli.benchchart import bars, drawing, panels
from appliance.policy.loadfigures import Request, Step, Target, figures
from appliance.wire.drawing import Line, Text

TARGET = Target(ttft=0.15, itl=0.04)


def steps(*counts: int, target: Target = TARGET) -> list[Step]:
    return [
        figures([Request(ttft=0.1 * n, e2el=0.1 * n + 0.08, gaps=[0.02] * 4, output_tokens=5)] * n, n, 1.0, target)
        for n in counts
    ]


def test_panels_hold_the_figures_in_the_units_of_their_titles() -> None:
    found = {panel.title: panel for panel in panels(steps(1, 2), TARGET)}
    assert list(found) == ["output tokens/s", "requests/s", "time to first token, ms", "time between tokens, ms"]
    assert found["output tokens/s"].curves[0].values == (5.0, 10.0)
    assert [curve.values for curve in found["requests/s"].curves] == [(1.0, 2.0), (1.0, 0.0)]
    assert found["time to first token, ms"].curves[0].values == pytest.approx((100.0, 200.0))
    assert found["time to first token, ms"].limit == 150.0
    assert "requests/s" not in [panel.title for panel in panels(steps(1), Target())]


@pytest.mark.parametrize("counts", [(1,), (1, 2), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)])
def test_everything_lies_inside_the_picture(counts: tuple[int, ...]) -> None:
    made = drawing(steps(*counts), TARGET, "a model at a place")
    for shape in made.shapes:
        points = [(shape.x1, shape.y1), (shape.x2, shape.y2)] if isinstance(shape, Line) else [(shape.x, shape.y)]
        assert all(0 <= x <= made.width and 0 <= y <= made.height for x, y in points)
    words = {shape.words for shape in made.shapes if isinstance(shape, Text)}
    assert {str(count) for count in counts} | {"p99", "within the target"} <= words
    assert ("target" in words) == (len(counts) > 1)  # a level above all that is shown is left out


def test_a_step_without_an_answer_leaves_a_gap() -> None:
    empty = figures([Request(failure="timeout")], 4, 1.0, TARGET)
    made = [*steps(1, 2), empty]
    assert drawing(made, TARGET, "x").shapes
    lines = bars(made, TARGET)
    assert [line for line in lines if line.strip().startswith("4") and line.endswith("-  -")]


def test_bars_are_as_long_as_their_values_and_fit_a_terminal() -> None:
    lines = bars(steps(1, 2, 4), TARGET)
    tokens = lines[1:4]
    assert [line.count("#") for line in tokens] == [11, 22, 44]
    assert [line.split()[-1] for line in tokens] == ["5", "10", "20"]
    assert max(map(len, lines)) <= 80
