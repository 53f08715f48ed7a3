"""HTTP/1.1's chunked framing, decoded from pieces cut anywhere."""

from __future__ import annotations

LINE_LIMIT = 16384  # longest chunk-size line, and all trailers together; nothing real comes near it


class FramingError(ValueError):
    """The peer does not speak chunked encoding."""


def whole_chunk(data: bytes, position: int) -> tuple[int, int]:
    """Where the payload of the chunk at `position` begins, and where the next chunk does; zeros unless it is here whole
    with nothing but its size in its first line, as nearly all are."""
    line = data.find(b"\r\n", position, position + 18)
    digits = data[position:line]
    if line < 0 or digits[:1] == b"0" or not digits.isalnum():  # int() takes signs, blanks, `_` and `0x`; HTTP does not
        return 0, 0
    try:
        end = line + 4 + int(digits, 16)
    except ValueError:
        return 0, 0
    return (line + 2, end) if data.startswith(b"\r\n", end - 2) else (0, 0)


class ChunkDecoder:
    """Feed bytes, get payload. After the last chunk and its trailers `done` is true and `rest` holds what followed.

    Law: the payload of a byte string is the same however the string was cut.
    """

    __slots__ = ("_held", "_left", "_trailer_size", "_trailers", "done", "rest")

    def __init__(self) -> None:
        self._held = b""  # an unfinished line
        self._left = 0  # bytes of the current chunk still to come, its CRLF included
        self._trailers = False
        self._trailer_size = 0
        self.done = False
        self.rest = b""

    @property
    def at_boundary(self) -> bool:
        """Whether the next byte begins a chunk."""
        return not (self._left or self._held or self._trailers or self.done)

    def feed(self, data: bytes) -> list[bytes]:
        """Payload pieces in these bytes, in order. Raises FramingError."""
        pieces: list[bytes] = []
        if self._held:
            data, self._held = self._held + data, b""
        position, size = 0, len(data)
        while position < size and not self.done:
            if self._left:
                position = self._payload(data, position, pieces)
                continue
            start, following = whole_chunk(data, position) if not self._trailers else (0, 0)
            if following:
                pieces.append(data[start : following - 2])
                position = following
                continue
            end = data.find(b"\r\n", position)
            if end < 0:
                if size - position > LINE_LIMIT:
                    raise FramingError("a line of the chunked framing is too long")
                self._held = data[position:]
                break
            self._line(data[position:end])
            position = end + 2
        if self.done:
            self.rest = data[position:]
        return pieces

    def _payload(self, data: bytes, position: int, pieces: list[bytes]) -> int:
        available = len(data) - position
        wanted = max(self._left - 2, 0)
        take = min(available, wanted)
        if take:
            pieces.append(data[position : position + take])
        tail = min(available - take, self._left - take)
        if tail and data[position + take : position + take + tail] != b"\r\n"[2 - (self._left - take) :][:tail]:
            raise FramingError("a chunk does not end where it said")
        self._left -= take + tail
        return position + take + tail

    def _line(self, line: bytes) -> None:
        if b"\n" in line or b"\r" in line:  # to another reader this would be two lines
            raise FramingError("a line of the chunked framing holds half a line end")
        if self._trailers:
            self.done = not line
            self._trailer_size += len(line) + 2
            if self._trailer_size > LINE_LIMIT:
                raise FramingError("the trailers are too long")
            return
        digits = line.partition(b";")[0].rstrip(b" \t")
        if not digits or len(digits) > 16 or digits.strip(b"0123456789abcdefABCDEF"):
            raise FramingError("a chunk size is not a hexadecimal number")
        size = int(digits, 16)
        if size:
            self._left = size + 2
        else:
            self._trailers = True
