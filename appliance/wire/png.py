"""A drawing as PNG: straight lines and the letters of a 5x7 dot matrix, on an image of few colours.

Characters beyond ASCII become question marks.
"""

from __future__ import annotations

import struct
import zlib

from .drawing import Anchor, Drawing, Line, Text

SCALE = 2  # dots of the image for a unit of the drawing
ADVANCE, HEIGHT = 6, 7  # of a letter, in units

# Five columns for each character from the space to the tilde, the lowest bit on top.
_GLYPHS = bytes.fromhex(
    "0000000000 00005f0000 0007000700 147f147f14 242a7f2a12 2313086462 3649562050 0000070000 001c224100 0041221c00"
    "14083e0814 08083e0808 0080603000 0808080808 0000606000 2010080402 3e5149453e 00427f4000 4261514946 2141454b31"
    "1814127f10 2745454539 3c4a494930 0171090503 3649494936 064949291e 0000360000 0080563600 0008142241 1414141414"
    "4122140800 0201510906 3e415d551e 7e1111117e 7f49494936 3e41414122 7f4141413e 7f49494941 7f09090901 3e41495939"
    "7f0808087f 00417f4100 2040413f01 7f08142241 7f40404040 7f020c027f 7f0408107f 3e4141413e 7f09090906 3e4151215e"
    "7f09192946 4649494931 01017f0101 3f4040403f 1f2040201f 3f4038403f 6314081463 0304780403 6151494543 007f414100"
    "0204081020 0041417f00 0402010204 4040404040 0001020400 2054545478 7f48444438 3844444428 384444487f 3854545418"
    "087e090102 18a4a4a47c 7f08040478 00447d4000 4080847d00 7f10284400 00417f4000 7c04180478 7c08040478 3844444438"
    "fc24242418 18242418fc 7c08040408 4854545424 043f444020 3c4040207c 1c2040201c 3c4030403c 4428102844 1ca0a0a07c"
    "4464544c44 0008364100 00007f0000 0041360800 0804080408"
)


def png(drawing: Drawing) -> bytes:
    """A PNG file."""
    image = _Image(drawing.width * SCALE, drawing.height * SCALE)
    for shape in drawing.shapes:
        if isinstance(shape, Line):
            image.line(shape)
        else:
            image.text(shape)
    return image.encoded()


class _Image:
    """One byte a dot, an index into the colours."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._colours = {"#ffffff": 0}
        self._rows = [bytearray(width) for _ in range(height)]

    def fill(self, x: int, y: int, width: int, height: int, colour: int) -> None:
        """A rectangle, as far as it lies on the image."""
        left, right = max(x, 0), min(x + width, self.width)
        if right > left:
            for row in self._rows[max(y, 0) : max(min(y + height, self.height), 0)]:
                row[left:right] = bytes((colour,)) * (right - left)

    def line(self, line: Line) -> None:
        """Square dots of the line's width along it; a level or upright line is one rectangle."""
        colour, size = self._index(line.colour), round(line.width * SCALE)
        x1, y1, x2, y2 = (round(value * SCALE) for value in (line.x1, line.y1, line.x2, line.y2))
        if x1 == x2 or y1 == y2:
            width, height = (size, abs(y2 - y1)) if x1 == x2 else (abs(x2 - x1), size)
            self.fill(min(x1, x2) - (size // 2 if x1 == x2 else 0), min(y1, y2) - (size // 2 if y1 == y2 else 0),
                      width, height, colour)  # fmt: skip
            return
        steps = max(abs(x2 - x1), abs(y2 - y1))
        for n in range(steps + 1):
            x, y = x1 + (x2 - x1) * n // steps, y1 + (y2 - y1) * n // steps
            self.fill(x - size // 2, y - size // 2, size, size, colour)

    def text(self, text: Text) -> None:
        """Letters on their base line."""
        words = text.words.encode("ascii", "replace")
        width = len(words) * ADVANCE
        shift = {Anchor.START: 0.0, Anchor.MIDDLE: width / 2, Anchor.END: width}[text.anchor]
        colour = self._index(text.colour)
        left, top = round((text.x - shift) * SCALE), round((text.y - HEIGHT) * SCALE)
        for number, code in enumerate(words):
            if not 32 <= code <= 126:
                code = ord("?")
            for column in range(5):
                bits = _GLYPHS[(code - 32) * 5 + column]
                for row in range(8):
                    if bits >> row & 1:
                        x = left + (number * ADVANCE + column) * SCALE
                        self.fill(x, top + row * SCALE, SCALE, SCALE, colour)

    def _index(self, colour: str) -> int:
        return self._colours.setdefault(colour, len(self._colours))

    def encoded(self) -> bytes:
        palette = b"".join(bytes.fromhex(colour[1:]) for colour in self._colours)
        dots = zlib.compress(b"".join(b"\0" + row for row in self._rows), 9)
        head = struct.pack(">IIBBBBB", self.width, self.height, 8, 3, 0, 0, 0)  # eight bits, by palette
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            _chunk(name, data) for name, data in ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", dots), (b"IEND", b""))
        )


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
