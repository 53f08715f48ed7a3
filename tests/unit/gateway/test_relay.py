"""The pump with an engine and a client that are lists of bytes: framing cut anywhere, laws of what is passed on."""

from __future__ import annotations

import asyncio
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance import clock
from appliance.gateway.answer import Answer
from appliance.gateway.finish import LEFT, End, Finish
from appliance.gateway.outlet import Outlet
from appliance.gateway.relay import Relay
from appliance.gateway.turn import Turn
from appliance.gateway.upstream import EngineConnection, Pool, Target
from appliance.wire.chunked import ChunkDecoder
from appliance.wire.openai import ROUTES, Call, Shape
from appliance.wire.sse import chunk
from tests.support import fakeengine
from tests.support.wire import Wire


class Stage:
    """One relay between two wires."""

    def __init__(
        self, *, path: str = "/v1/chat/completions", hide: bool = True, http11: bool = True, stream: bool = True
    ) -> None:
        loop = asyncio.get_running_loop()
        self.client, self.engine = Wire(), Wire()
        route = ROUTES[path]
        self.turn = Turn(loop)
        outlet = Outlet(self.client, self.turn)
        self.answer = Answer(outlet, shape=route.shape, request_id="r", http11=http11, keep_alive=True)
        self.answer.stream = stream
        self.ends: list[Finish] = []
        call = Call(model="m", stream=stream, size=1)
        self.relay = Relay(self.answer, call, route, self.ends.append, hide_usage=hide, fields="")
        self.pool = Pool(Target(path="/x"), loop)
        self.connection = EngineConnection(self.pool)
        self.connection.connection_made(self.engine)
        self.relay.send(self.connection, b"HEAD", (b"BODY",))
        self.pool.turn.end()

    def feed(self, data: bytes, size: int = 0) -> None:
        for start in range(0, len(data), size or len(data)):
            if not self.relay.done:
                self.connection.data_received(data[start : start + (size or len(data))])
        self.turn.end()

    def finish(self) -> Finish:
        self.turn.end()
        assert self.relay.done and len(self.ends) == 1
        return self.ends[0]

    def body(self) -> bytes:
        """The payload that the client got, its framing checked."""
        self.turn.end()
        head, _, rest = self.client.data.partition(b"\r\n\r\n")
        if b"transfer-encoding" not in head.lower():
            return rest
        decoder = ChunkDecoder()
        payload = b"".join(decoder.feed(rest))
        assert decoder.done and decoder.rest == b""
        return payload


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def events(path: str = "/v1/chat/completions", tokens: int = 3, usage: bool = True) -> list[bytes]:
    """What the fake engine says on a route."""
    request: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": usage}}
    exchange: Any = type("X", (), {"engine": fakeengine.Engine("m")})
    stream = fakeengine.Stream(exchange, path, request, {"tokens": tokens}, {})
    return list(stream.events())


def wire(said: list[bytes]) -> bytes:
    return HEAD + b"".join(map(chunk, said)) + b"0\r\n\r\n"


async def passed(data: bytes, cuts: list[int], **options: Any) -> tuple[bytes, Finish, Stage]:
    stage = Stage(**options)
    edges = [0, *cuts, len(data)]
    for start, end in pairwise(edges):
        if data[start:end] and not stage.relay.done:
            stage.connection.data_received(data[start:end])
    return stage.body(), stage.finish(), stage


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("http11", [True, False])
def test_every_cut_in_two_passes_the_same(path: str, http11: bool) -> None:
    said = events(path)
    hidden = [event for event in said if b'"choices":[]' not in event]
    data = wire(said)

    async def walk() -> None:
        for cut in range(1, len(data)):
            body, finish, stage = await passed(data, [cut], path=path, http11=http11)
            assert body == b"".join(hidden), cut
            assert finish.end is End.COMPLETE and stage.relay.events in (3, 4)
            assert stage.pool.take() is stage.connection, "the connection is kept"

    asyncio.run(walk())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("hide", [True, False])
def test_chunks_that_come_one_by_one_pass_the_same_and_are_counted_the_same(path: str, hide: bool) -> None:
    said = events(path)
    chunks = [HEAD, *map(chunk, said), b"0\r\n\r\n"]
    cuts = list(accumulate(map(len, chunks)))[:-1]

    async def walk() -> None:
        body, finish, stage = await passed(wire(said), cuts, path=path, hide=hide)
        together, _, other = await passed(wire(said), [], path=path, hide=hide)
        assert body == together and finish.end is End.COMPLETE
        assert stage.relay.events == other.relay.events
        assert stage.relay.usage_event == other.relay.usage_event

    asyncio.run(walk())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_small_pieces_pass_the_same(size: int) -> None:
    said = events()

    async def walk() -> bytes:
        stage = Stage(hide=False)
        stage.feed(wire(said), size)
        assert stage.finish().end is End.COMPLETE
        return stage.body()

    assert asyncio.run(walk()) == b"".join(said)


@given(st.lists(st.integers(1, 3000), max_size=10), st.booleans(), st.integers(0, 6))
def test_any_cuts_and_any_grouping_of_events_in_chunks(cuts: list[int], hide: bool, group: int) -> None:
    said = events(tokens=5)
    grouped = [b"".join(said[n : n + group]) for n in range(0, len(said), group)] if group else said
    data = wire(grouped)
    expected = [event for event in said if not (hide and b'"choices":[]' in event)]

    async def walk() -> bytes:
        body, finish, _ = await passed(data, sorted(cut % len(data) for cut in cuts), hide=hide)
        assert finish.end is End.COMPLETE
        return body

    assert asyncio.run(walk()) == b"".join(expected)


@given(st.integers(0, 3000), st.booleans())
@example(-5, True)  # behind `[DONE]`, before the last chunk
@example(-1, False)
def test_an_engine_that_goes_anywhere_leaves_whole_events_and_an_error(cut: int, hide: bool) -> None:
    said = events(tokens=4)
    data = wire(said)
    cut %= len(data)
    told = [event for event in said if not hide or b'"choices":[]' not in event]

    async def walk() -> None:
        stage = Stage(hide=hide)
        if cut:
            stage.connection.data_received(data[:cut])
        if stage.relay.done:
            return
        stage.connection.connection_lost(None)
        finish = stage.finish()
        if not stage.answer.committed:
            assert finish.end is End.LOST and stage.client.data == b""
            return
        if finish.end is End.COMPLETE:
            assert cut >= len(data) - 5 - 2 and stage.body() == b"".join(told), "no error stands behind `[DONE]`"
            return
        got = stage.body().split(b"\n\n")
        assert finish.end is End.BROKEN and finish.error and finish.error.code == "engine_died"
        assert b'"engine_died"' in got[-2] and got[-1] == b""
        assert [event + b"\n\n" for event in got[:-2]] == told[: len(got) - 2] and b"[DONE]" not in stage.body()
        assert stage.answer.broken

    asyncio.run(walk())


def test_a_comment_of_the_engine_is_no_progress_and_no_first_byte() -> None:
    async def walk() -> None:
        stage = Stage()
        stage.connection.data_received(HEAD + chunk(b": keep-alive\n\n"))
        assert stage.client.data == b"" and stage.relay.first_at is None
        stage.connection.data_received(chunk(events()[0]))
        progress = stage.relay.progress_at
        stage.connection.data_received(chunk(b": keep-alive\n\n"))
        assert stage.relay.progress_at == progress and stage.client.data.endswith(b": keep-alive\n\n\r\n")

    asyncio.run(walk())


def test_usage_in_every_chunk_is_passed_on() -> None:
    request = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    exchange: Any = type("X", (), {"engine": fakeengine.Engine("m")})
    said = list(fakeengine.Stream(exchange, "/v1/chat/completions", request, {"tokens": 3}, {}).events())

    async def walk() -> None:
        body, _, stage = await passed(wire(said), [], hide=False)
        assert body == b"".join(said) and b'"completion_tokens":3' in stage.relay.usage_event

    asyncio.run(walk())


@pytest.mark.parametrize(
    ("head", "rest", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n", b'{"a":1}', b'{"a":1}'),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            b'3\r\n{"a\r\n4\r\n":1}\r\n0\r\nT: 1\r\n\r\n',
            b'{"a":1}',
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\ncontent-length: 2\r\n\r\n", b"no", b"no"),
    ],
)
def test_a_body_passes_however_it_is_framed_and_cut(head: bytes, rest: bytes, body: bytes) -> None:
    async def walk() -> None:
        data = head + rest
        for cut in range(1, len(data)):
            got, finish, _ = await passed(data, [cut], stream=False)
            assert got == body and finish.end is End.COMPLETE, cut

    asyncio.run(walk())


def test_a_body_without_length_ends_with_the_connection() -> None:
    async def walk() -> None:
        stage = Stage(stream=False)
        stage.feed(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        stage.connection.connection_lost(None)
        assert stage.finish().end is End.COMPLETE and stage.body() == b"all of it"

    asyncio.run(walk())


@pytest.mark.parametrize(
    ("framing", "lost"),
    [(b"content-length: 10\r\n\r\n", None), (b"\r\n", ConnectionResetError())],
    ids=["a length", "the close as its end, and a reset"],
)
def test_a_body_that_ends_early_is_cut(framing: bytes, lost: Exception | None) -> None:
    async def walk() -> None:
        stage = Stage(stream=False)
        stage.feed(b"HTTP/1.1 200 OK\r\n" + framing + b"half")
        stage.connection.connection_lost(lost)
        assert stage.finish().end is End.BROKEN and stage.client.aborted

    asyncio.run(walk())


def test_a_body_that_never_begins_is_an_honest_error() -> None:
    async def walk() -> None:
        stage = Stage(stream=False)
        stage.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n")
        stage.connection.connection_lost(None)
        assert stage.finish().end is End.BROKEN and not stage.client.aborted
        assert stage.client.data.startswith(b"HTTP/1.1 502 ") and b'"engine_died"' in stage.body()

    asyncio.run(walk())


def test_bytes_behind_an_answer_cost_the_connection() -> None:
    async def walk() -> None:
        stage = Stage(stream=False)
        stage.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n")
        assert stage.body() == b"ok" and stage.engine.aborted and stage.pool.take() is None

    asyncio.run(walk())


def test_backpressure_and_a_client_that_leaves() -> None:
    async def walk() -> None:
        stage = Stage()
        stage.feed(HEAD + chunk(events()[0]))
        stage.relay.pause()
        assert stage.engine.paused
        stage.relay.resume()
        assert not stage.engine.paused
        stage.relay.finish(LEFT)
        assert stage.engine.aborted and stage.finish().end is End.LEFT
        stage.relay.finish(LEFT)

    asyncio.run(walk())


def test_shapes_have_routes() -> None:
    assert {route.shape for route in ROUTES.values()} == set(Shape)


# --- engines that break the framing ---------------------------------------------------------------------------------
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'


@pytest.mark.parametrize("digits", [b"+%x", b"0x%x", b"0X%x", b" %x", b"%x ", b"00%x", b"_%x", b"%x;ext=1"])
def test_a_chunk_size_that_only_python_reads_is_not_passed_on(digits: bytes) -> None:
    async def run() -> None:
        stage = Stage(hide=False)
        chunked = SSE_HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk(EVENT)
        stage.feed(chunked)
        stage.feed(digits % len(EVENT) + b"\r\n" + EVENT + b"\r\n")
        body = stage.client.data.partition(b"\r\n\r\n")[2]
        if stage.relay.done:
            assert stage.finish().end is End.BROKEN and stage.engine.aborted
            assert body.endswith(b"0\r\n\r\n") and b"[DONE]" not in body
        else:  # what HTTP allows is framed anew
            assert body == chunk(EVENT) * 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("wire", "end"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\nbody", End.COMPLETE),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nbody", End.COMPLETE),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n", End.COMPLETE),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\nx", End.COMPLETE),
        (SSE_HEAD + b"content-length: 0\r\n\r\n", End.BROKEN),
        (SSE_HEAD + b"content-length: 14\r\n\r\ndata: [DONE]\n\n" + EVENT, End.COMPLETE),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9, End.REFUSED),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000, End.REFUSED),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000 + b"\r\n", End.REFUSED),
    ],
)
def test_a_connection_with_a_doubt_is_not_used_again(wire: bytes, end: End) -> None:
    async def run() -> None:
        stage = Stage()
        stage.feed(wire)
        assert stage.finish().end is end
        assert stage.engine.aborted and stage.pool.take() is None
        assert EVENT not in stage.client.data

    asyncio.run(run())


@pytest.mark.parametrize("unsent", [0, 1])
def test_a_connection_that_still_holds_a_request_is_not_used_again(unsent: int) -> None:
    async def run() -> None:
        stage = Stage()
        stage.engine.unsent = unsent
        stage.feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 413 X\r\ncontent-length: 2\r\n\r\n{}")
        assert stage.finish().end is End.COMPLETE
        assert (stage.pool.take() is None) is bool(unsent)

    asyncio.run(run())


def test_when_the_engine_was_heard() -> None:
    """Neither the request that went out, nor a comment, nor a client that caught up is a byte of the engine."""

    async def story() -> None:
        stage = Stage()
        relay = stage.relay
        assert relay.heard_at is None
        stage.feed(HEAD)
        stage.feed(chunk(b": keep-alive\n\n"))
        assert relay.heard_at is None
        before = clock.monotonic()
        stage.feed(b"".join(map(chunk, events()[:2])))
        first = relay.heard_at
        assert first is not None and before <= first <= clock.monotonic()
        stage.feed(chunk(b": keep-alive\n\n"))
        relay.pause()
        relay.resume()
        relay.pause()
        relay.resume()
        assert relay.heard_at == first
        stage.feed(chunk(events()[2]))
        assert relay.heard_at > first

    asyncio.run(story())
