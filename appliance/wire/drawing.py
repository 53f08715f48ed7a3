"""A drawing of lines and words, and its text as SVG."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias
from xml.sax.saxutils import escape


class Anchor(enum.Enum):
    """Which point of a text its place is."""

    START = "start"
    MIDDLE = "middle"
    END = "end"


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line; colours are `#rrggbb`."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: str
    width: float


@dataclass(frozen=True, slots=True)
class Text:
    """Words on a base line."""

    x: float
    y: float
    words: str
    colour: str
    anchor: Anchor = Anchor.START


Shape: TypeAlias = "Line | Text"


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes on white, later ones over earlier ones."""

    width: int
    height: int
    shapes: tuple[Shape, ...]


def svg(drawing: Drawing) -> bytes:
    """An SVG document."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width}" height="{drawing.height}" '
        f'viewBox="0 0 {drawing.width} {drawing.height}" font-family="monospace" font-size="11.6">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for shape in drawing.shapes:
        if isinstance(shape, Line):
            lines.append(
                f'<line x1="{shape.x1:.1f}" y1="{shape.y1:.1f}" x2="{shape.x2:.1f}" y2="{shape.y2:.1f}" '
                f'stroke="{shape.colour}" stroke-width="{shape.width:g}"/>'
            )
        else:
            lines.append(
                f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" fill="{shape.colour}" '
                f'text-anchor="{shape.anchor.value}">{escape(shape.words)}</text>'
            )
    return ("\n".join([*lines, "</svg>"]) + "\n").encode("utf-8", "replace")
