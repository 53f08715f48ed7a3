"""A ladder as a picture: panels of lines over the number of requests at once, laid out as shapes for any writer.

Units are pixels, y goes down. The same numbers as bars of characters for a terminal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.policy.loadfigures import Spread, Step, Target
from appliance.wire.drawing import Anchor, Drawing, Line, Shape, Text

PANEL_W, PANEL_H, LEFT, RIGHT, TOP, BOTTOM = 360, 250, 62, 18, 56, 40
HEAD, MARGIN = 34, 10
INK, GREY, GRID = "#222222", "#777777", "#dddddd"
COLOURS = ("#1f77b4", "#d62728", "#2ca02c")
BAR = 44  # columns


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a panel; None where a step had nothing to show."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram; `limit` is a level to keep below."""

    title: str
    curves: tuple[Curve, ...]
    limit: float | None = None

    @property
    def top(self) -> float:
        """The largest value."""
        return max([value for curve in self.curves for value in curve.values if value is not None], default=0.0)


def panels(steps: Sequence[Step], target: Target) -> list[Panel]:
    """What is worth a diagram."""

    def ms(of: Callable[[Step], Spread | None], which: str) -> tuple[float | None, ...]:
        return tuple(None if (one := of(step)) is None else getattr(one, which) * 1000 for step in steps)

    def limit(seconds: float | None) -> float | None:
        return None if seconds is None else seconds * 1000

    made = [Panel("output tokens/s", (Curve("tokens/s", tuple(step.tokens_per_s for step in steps)),))]
    if target:
        curves = (
            Curve("all", tuple(step.requests_per_s for step in steps)),
            Curve("within the target", tuple(step.goodput for step in steps)),
        )
        made.append(Panel("requests/s", curves))
    for title, of, bound in (
        ("time to first token, ms", lambda step: step.ttft, target.ttft),
        ("time between tokens, ms", lambda step: step.itl, target.itl),
    ):
        made.append(Panel(title, (Curve("p50", ms(of, "p50")), Curve("p99", ms(of, "p99"))), limit(bound)))
    return made


def drawing(steps: Sequence[Step], target: Target, title: str) -> Drawing:
    """All panels side by side, two in a row."""
    shown = panels(steps, target)
    columns = 2
    rows = math.ceil(len(shown) / columns)
    shapes: list[Shape] = [Text(MARGIN, 22, title, INK)]
    labels = [str(step.concurrency) for step in steps]
    for number, panel in enumerate(shown):
        shapes += _panel(panel, labels, number % columns * PANEL_W, HEAD + number // columns * PANEL_H)
    width = max(columns * PANEL_W, MARGIN * 2 + 7 * len(title))
    return Drawing(width, HEAD + rows * PANEL_H, tuple(shapes))


def _panel(panel: Panel, labels: Sequence[str], x: float, y: float) -> list[Shape]:
    left, right = x + LEFT, x + PANEL_W - RIGHT
    top, bottom = y + TOP, y + PANEL_H - BOTTOM
    ticks = _ticks(panel.top)
    highest = ticks[-1]

    def across(number: int) -> float:
        return (left + right) / 2 if len(labels) == 1 else left + 12 + (right - left - 24) * number / (len(labels) - 1)

    def up(value: float) -> float:
        return bottom - (bottom - top) * value / highest

    shapes: list[Shape] = [Text(left, y + 22, panel.title, INK)]
    for tick in ticks:
        shapes += [Line(left, up(tick), right, up(tick), GRID, 1), Text(left - 6, up(tick) + 4, _short(tick), GREY,
                                                                       Anchor.END)]  # fmt: skip
    for number, label in enumerate(labels):
        shapes.append(Text(across(number), bottom + 16, label, GREY, Anchor.MIDDLE))
    shapes.append(Text((left + right) / 2, bottom + 32, "requests at once", GREY, Anchor.MIDDLE))
    if panel.limit is not None and panel.limit <= highest:
        shapes.append(Line(left, up(panel.limit), right, up(panel.limit), COLOURS[2], 1))
        shapes.append(Text(right, up(panel.limit) - 4, "target", COLOURS[2], Anchor.END))
    for number, curve in enumerate(panel.curves):
        colour = COLOURS[number]
        points = [(across(n), up(value)) for n, value in enumerate(curve.values) if value is not None]
        shapes += [Line(*a, *b, colour, 2) for a, b in itertools.pairwise(points)]
        shapes += [Line(px - 3, py, px + 3, py, colour, 6) for px, py in points]
        if len(panel.curves) > 1:
            shapes.append(Text(left + number * 60, y + 42, curve.name, colour))
    return shapes


def _ticks(top: float) -> list[float]:
    """From 0 to a round number not below `top`, in four or five equal steps."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / 4
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999)
    return [step * n for n in range(math.ceil(top / step - 1e-9) + 1)]


def _short(value: float) -> str:
    if value >= 10000:
        return f"{value / 1000:g}k"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def bars(steps: Sequence[Step], target: Target, full: str = "#") -> list[str]:
    """Lines of characters, 80 columns at most: a bar for each step, by the panel's last curve."""
    lines: list[str] = []
    for panel in panels(steps, target):
        names = ", ".join(curve.name for curve in panel.curves)
        lines += ["", panel.title + (f" ({names})" if len(panel.curves) > 1 else "")]
        for number, step in enumerate(steps):
            values = [curve.values[number] for curve in panel.curves]
            last = values[-1]
            size = round(BAR * last / panel.top) if last is not None and panel.top > 0 else 0
            said = "  ".join("-" if value is None else _short(value) for value in values)
            lines.append(f"{step.concurrency:>6} {full * size:<{BAR}} {said}")
    return lines[1:]
