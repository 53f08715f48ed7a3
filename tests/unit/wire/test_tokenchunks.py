import pytest

from appliance.wire import sse
from appliance.wire.openai import Shape
from appliance.wire.tokenchunks import OPENINGS, SHORT, Plain, plain

OPENAI, ANTHROPIC = sse.PROFILES[Shape.OPENAI], sse.PROFILES[Shape.ANTHROPIC]
TOKEN = sse.chunk(b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
DONE = sse.chunk(b"data: [DONE]\n\n")
USAGE = sse.chunk(b'data: {"id":"c","choices":[],"usage":{"total_tokens":3}}\n\n')
DELTA = sse.chunk(b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n')
STOP = sse.chunk(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')


def test_bytes_begin_with_the_opening_of_their_size_exactly_when_they_are_one_chunk() -> None:
    chunks = {len(chunk): chunk for chunk in (sse.chunk(b"x" * n) for n in range(1, SHORT))}
    for size in range(SHORT):
        opening = OPENINGS[size]
        if size in chunks:
            assert chunks[size].startswith(opening) and opening.endswith(b"\r\n")
        else:  # whatever it is, this is not one chunk
            assert len(opening) > size


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (TOKEN, Plain(len(TOKEN), 1, False)),
        (TOKEN * 3, Plain(3 * len(TOKEN), 3, False)),
        (TOKEN + DONE, Plain(len(TOKEN + DONE), 1, True)),
        (TOKEN + USAGE + TOKEN, Plain(len(TOKEN), 1, False)),
        (TOKEN + TOKEN[:-1], Plain(len(TOKEN), 1, False)),
        (TOKEN[:-1], Plain(0, 0, False)),
        (b"0" + TOKEN, Plain(0, 0, False)),
        (b"+" + TOKEN, Plain(0, 0, False)),
        (TOKEN.replace(b"\r\n", b";x=y\r\n", 1), Plain(0, 0, False)),
        (b"0\r\n\r\n", Plain(0, 0, False)),
        (b"", Plain(0, 0, False)),
    ],
)
def test_what_needs_no_decoding(data: bytes, found: Plain) -> None:
    assert plain(data, OPENAI) == found


def test_events_that_only_their_name_tells() -> None:
    assert plain(DELTA * 2 + STOP, ANTHROPIC) == Plain(2 * len(DELTA), 2, False)
    two_in_one = sse.chunk(b"event: content_block_delta\ndata: {}\n\nevent: error\ndata: {}\n\n")
    assert plain(two_in_one, ANTHROPIC) == Plain(0, 0, False)
