"""Drawings as SVG and as PNG."""

from __future__ import annotations

import struct
import zlib
from xml.etree import ElementTree

from appliance.wire.drawing import Anchor, Drawing, Line, Text, svg
from appliance.wire.png import SCALE, png

SHAPES = (
    Line(10, 20, 30, 20, "#ff0000", 2),
    Line(0, 0, 39, 29, "#0000ff", 1),
    Text(20, 15, 'a<b & "c"', "#00ff00", Anchor.MIDDLE),
)
DRAWING = Drawing(40, 30, SHAPES)


def test_svg_is_xml_with_every_shape() -> None:
    tree = ElementTree.fromstring(svg(DRAWING))
    assert (tree.get("width"), tree.get("height")) == ("40", "30")
    kinds = [element.tag.rpartition("}")[2] for element in tree]
    assert kinds == ["rect", "line", "line", "text"]
    assert tree[3].text == 'a<b & "c"'
    assert tree[1].attrib == {"x1": "10.0", "y1": "20.0", "x2": "30.0", "y2": "20.0", "stroke": "#ff0000",
                              "stroke-width": "2"}  # fmt: skip


def dots(data: bytes) -> tuple[int, int, dict[tuple[int, int], str]]:
    """Width, height and the colours of all dots that are not white, of a PNG that is checked on the way."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, position = {}, 8
    while position < len(data):
        (length,) = struct.unpack_from(">I", data, position)
        name, body = data[position + 4 : position + 8], data[position + 8 : position + 8 + length]
        assert struct.unpack_from(">I", data, position + 8 + length)[0] == zlib.crc32(name + body)
        chunks[name] = body
        position += 12 + length
    width, height, depth, kind = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    assert (depth, kind, list(chunks)[-1]) == (8, 3, b"IEND")
    raw = zlib.decompress(chunks[b"IDAT"])
    assert len(raw) == height * (width + 1)
    palette = chunks[b"PLTE"]
    found = {}
    for y in range(height):
        row = raw[y * (width + 1) : (y + 1) * (width + 1)]
        assert row[0] == 0
        for x, index in enumerate(row[1:]):
            if index:
                found[x, y] = palette[index * 3 : index * 3 + 3].hex()
    return width, height, found


def test_png_has_lines_where_they_should_be() -> None:
    width, height, found = dots(png(Drawing(40, 30, SHAPES[:2])))
    assert (width, height) == (40 * SCALE, 30 * SCALE)
    red = {place for place, colour in found.items() if colour == "ff0000"}
    assert {x for x, _ in red} <= set(range(10 * SCALE, 30 * SCALE))
    assert {y for _, y in red} == {20 * SCALE - 2, 20 * SCALE - 1, 20 * SCALE, 20 * SCALE + 1}
    assert found[0, 0] == "0000ff"
    assert any(colour == "0000ff" and x > 76 and y > 56 for (x, y), colour in found.items())


def test_png_writes_letters() -> None:
    """An L: an upright stroke on the left, a level one at the base line."""
    _, _, found = dots(png(Drawing(10, 10, (Text(2, 8, "L", "#000000"),))))
    cells = {(x // SCALE, y // SCALE) for x, y in found}
    assert cells == {(2, y) for y in range(1, 8)} | {(x, 7) for x in range(2, 7)}


def test_png_takes_any_text_and_shapes_beyond_its_edges() -> None:
    odd = Drawing(10, 10, (Text(-5, 3, "é→\n", "#000000"), Line(-50, -50, 500, 40, "#123456", 3)))
    assert dots(png(odd))[:2] == (20, 20)
