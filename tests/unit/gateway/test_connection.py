"""A client's connection: requests cut anywhere, what comes behind them, and deadlines that no running call keeps."""

from __future__ import annotations

import asyncio

import pytest

from appliance import clock
from appliance.errors import ApiError
from appliance.gateway.connection import BURST, FAREWELL, ClientConnection
from appliance.gateway.outlet import LAST_WORD
from appliance.gateway.server import KEEPALIVE, ClientServer
from appliance.gateway.tasks import until
from appliance.wire.requesthead import RequestHead
from tests.support.wire import Wire


class Job:
    """A request that is never answered by itself; what it was told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def received(self, size: int) -> None:
        self.told.append(size)

    def body(self, data: bytes) -> None:
        self.told.append(data)

    def body_failed(self, error: ApiError) -> None:
        self.told.append(error.message)

    def client_left(self) -> None:
        self.told.append("left")

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")


class Stage:
    """A connection whose requests are written down; POSTs are asked for their body, others answered at once."""

    def __init__(self) -> None:
        self.heads: list[RequestHead] = []
        self.jobs: list[Job] = []
        self.paused_at = 0  # the request whose answer is more than the client's buffer takes
        self.wire = Wire()
        self.server = ClientServer(self.handle)
        self.connection = self.server()
        self.connection.connection_made(self.wire)

    def handle(self, connection: ClientConnection, head: RequestHead) -> None:
        self.heads.append(head)
        if head.method == "POST":
            self.jobs.append(Job())
            body = connection.collect(self.jobs[-1])
            if body is not None:
                self.jobs[-1].received(len(body))
                self.jobs[-1].body(body)
        else:
            if len(self.heads) == self.paused_at:
                connection.pause_writing()
            connection.answered(keep_alive=head.keep_alive)

    async def settled(self) -> None:
        """Until so many turns of the loop bring no more requests."""
        seen = -1
        while seen != len(self.heads):
            seen = len(self.heads)
            await asyncio.sleep(0)

    def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.data_received(piece)


HEAD = b"POST /p HTTP/1.1\r\nHost: x\r\n"
LENGTH = HEAD + b"Content-Length: 5\r\n\r\nhello"
CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
GET = b"GET /g HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("request_", [LENGTH, CHUNKS])
def test_however_it_is_cut_a_request_is_the_same(request_: bytes) -> None:
    async def run() -> None:
        data = request_ + GET
        for cut in range(1, len(data)):
            for other in (cut, min(cut + 1, len(data)), min(cut + 7, len(data))):
                stage = Stage()
                stage.feed(*(piece for piece in (data[:cut], data[cut:other], data[other:]) if piece))
                assert [head.path for head in stage.heads] == ["/p"], "the second one waits for the first one's answer"
                told = stage.jobs[0].told
                assert told[-1] == b"hello" and sum(size for size in told[:-1] if isinstance(size, int)) == 5
                assert not stage.server.bodies and not stage.server.heads and not stage.server.idle
                stage.connection.answered(keep_alive=True)
                assert [head.path for head in stage.heads] == ["/p", "/g"] and not stage.wire.ended
                assert list(stage.server.idle) == [stage.connection]
                stage.connection.connection_lost(None)
                assert not stage.server.idle and not stage.server.connections

    asyncio.run(run())


def test_many_requests_at_once_are_no_deep_stack() -> None:
    async def run() -> None:
        stage = Stage()
        stage.feed(GET * 5000)
        assert len(stage.heads) == BURST and stage.wire.paused, "the others have their turn"
        await stage.settled()
        assert len(stage.heads) == 5000 and not stage.wire.ended and not stage.wire.paused
        assert list(stage.server.idle) == [stage.connection]
        stage.connection.connection_lost(None)

    asyncio.run(run())


def test_what_comes_behind_a_running_request_is_bounded() -> None:
    async def run() -> None:
        stage = Stage()
        stage.feed(LENGTH, GET * 2000)
        assert not stage.wire.paused
        stage.feed(GET * 1000)
        assert stage.wire.paused
        stage.connection.answered(keep_alive=True)
        await stage.settled()
        assert not stage.wire.paused and len(stage.heads) == 3001
        stage.connection.connection_lost(None)

    asyncio.run(run())


def test_a_client_that_takes_no_answers_gets_no_more_of_them() -> None:
    async def run() -> None:
        stage = Stage()
        stage.paused_at = 7
        stage.feed(GET * 3000)
        assert len(stage.heads) == 7 and stage.wire.paused
        server = stage.server
        assert not (server.idle or server.heads or server.bodies), "what is unsent has a deadline of its own"
        stage.paused_at = 9
        stage.connection.resume_writing()
        assert len(stage.heads) == 9 and stage.wire.paused
        stage.connection.resume_writing()
        await stage.settled()
        assert len(stage.heads) == 3000 and not stage.wire.paused and list(server.idle) == [stage.connection]
        stage.connection.connection_lost(None)

    asyncio.run(run())


def test_many_small_chunks_are_read_in_turns() -> None:
    async def run() -> None:
        stage = Stage()
        stage.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 20_000)
        assert stage.wire.paused, "the others have their turn"
        await stage.settled()
        assert not stage.wire.paused
        stage.feed(b"0\r\n\r\n" + GET)
        assert stage.jobs[0].told[-1] == b" " * 20_000 and len(stage.heads) == 1
        stage.connection.connection_lost(None)

    asyncio.run(run())


def test_a_last_answer_is_not_lost_to_what_was_sent_behind_its_request() -> None:
    async def run() -> None:
        stage = Stage()
        stage.feed(LENGTH, GET * 3000)  # with more in the kernel, which a close would answer with a reset
        stage.connection.answered(keep_alive=False)
        assert stage.wire.at_end and not stage.wire.ended and not stage.wire.paused
        stage.feed(GET)
        assert len(stage.heads) == 1
        stage.connection.connection_lost(None)

    asyncio.run(run())


def test_a_running_request_hears_of_its_client() -> None:
    async def run() -> None:
        stage = Stage()
        stage.feed(LENGTH)
        stage.connection.pause_writing()
        stage.connection.resume_writing()
        stage.connection.eof_received()
        stage.connection.connection_lost(None)
        assert stage.jobs[0].told == [5, b"hello", "pause", "resume", "left"]

    asyncio.run(run())


@pytest.mark.parametrize("keep_alive", [True, False])
def test_a_body_that_comes_after_its_answer_is_thrown_away(keep_alive: bool) -> None:
    async def run() -> None:
        stage = Stage()
        stage.feed(LENGTH.replace(b"hello", b"he"))
        stage.connection.answered(keep_alive=keep_alive)
        assert stage.wire.at_end != keep_alive and not stage.wire.ended
        stage.feed(b"l", b"lo" + GET)
        assert len(stage.heads) == (2 if keep_alive else 1)
        stage.connection.connection_lost(None)

    asyncio.run(run())


@pytest.mark.parametrize("behind", [b"", b"GET /g HTTP/1.1\r\nHost: x\r\n\r\n"])
@pytest.mark.parametrize(
    "broken", [b"G\r\n\r\n", b"\0", b"X" * 70_000, CHUNKS.replace(b"3\r\n", b"zz\r\n"), LENGTH[:-9] + b"x\r\n\r\n"]
)
def test_behind_what_is_no_request_nothing_is_one(broken: bytes, behind: bytes) -> None:
    async def run() -> None:
        stage = Stage()
        stage.feed(broken + behind)
        for job in stage.jobs:
            assert job.told[-1] == "the body cannot be read"
            stage.connection.answered(keep_alive=False)
        assert stage.wire.at_end and (stage.jobs or stage.wire.data.startswith(b"HTTP/1.1 400 "))
        stage.feed(GET)
        assert len(stage.heads) == len(stage.jobs)
        stage.connection.connection_lost(None)

    asyncio.run(run())


def test_an_idle_connection_ends() -> None:
    async def run() -> None:
        stage = Stage()
        now = clock.monotonic()
        stage.server.end_late(now + KEEPALIVE - 1, 1, 1)
        assert not stage.wire.ended
        stage.server.end_late(now + KEEPALIVE + 1, 1, 1)
        assert stage.wire.ended == "closed"
        stage.connection.connection_lost(None)

    asyncio.run(run())


def test_a_slow_body_has_two_deadlines() -> None:
    async def run() -> None:
        for silence, longest, late in ((2, 20, True), (20, 2, True), (20, 200, False)):
            stage = Stage()
            stage.feed(LENGTH[:-2])
            stage.connection.end_late_body(clock.monotonic() + 3, silence, longest)
            assert (stage.jobs[0].told[-1] == "the body did not arrive in time") == late
            stage.connection.connection_lost(None)

    asyncio.run(run())


def test_an_answer_that_nobody_takes_ends_its_connection() -> None:
    async def run() -> None:
        stage = Stage()
        server, connection, wire = stage.server, stage.connection, stage.wire
        wire.unsent = 10
        for now in (0.0, 0.9):
            server.end_unread(now, 1)
        wire.unsent = 9  # something was taken
        for now in (1.1, 2.0):
            server.end_unread(now, 1)
        assert not wire.ended
        connection.job = Job()  # a running call has deadlines of its own
        server.end_unread(9.0, 1)
        connection.job = None
        for now in (9.1, 10.0):
            server.end_unread(now, 1)
        assert not wire.ended
        server.end_unread(10.2, 1)
        assert wire.ended == "aborted"
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_closed_connection_with_an_answer_left_is_ended_too() -> None:
    async def run() -> None:
        stage = Stage()
        stage.wire.unsent = 10
        stage.connection.close()
        assert stage.wire.ended == "closed"
        for now in (0.0, 1.1):
            stage.server.end_unread(now, 1)
        assert stage.wire.ended == "aborted"
        stage.connection.connection_lost(None)

    asyncio.run(run())


def test_a_closed_connection_whose_client_says_no_last_word_is_ended() -> None:
    async def run() -> None:
        stage = Stage()
        stage.connection.close()
        for now in (0.0, LAST_WORD):
            stage.server.end_unread(now, 9 * LAST_WORD)
        assert stage.wire.ended == "closed"
        stage.server.end_unread(LAST_WORD + 0.1, 9 * LAST_WORD)
        assert stage.wire.ended == "aborted"
        stage.connection.connection_lost(None)

    asyncio.run(run())


@pytest.mark.parametrize("data", [b"G", b"GET /x HTTP/1.1\r\nHost: x\r\nX: ", b"\r\n"])
def test_a_late_head_is_told_and_ended(data: bytes) -> None:
    async def run() -> None:
        stage = Stage()
        stage.feed(data)
        begun = clock.monotonic()
        stage.server.end_late(begun + 0.5, 1, 1)
        assert not stage.wire.data
        stage.feed({b"G": b"E", b"\r\n": data}.get(data, b"a"))  # a trickle moves no deadline
        stage.server.end_late(begun + 1.5, 1, 1)
        assert stage.wire.data.startswith(b"HTTP/1.1 400 ") and stage.wire.at_end
        stage.connection.connection_lost(None)

    asyncio.run(run())


def test_a_request_that_is_answered_is_no_late_head() -> None:
    async def run() -> None:
        stage = Stage()
        stage.feed(b"POST / HT", b"TP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabcdefghi", b"GET")
        stage.server.end_late(clock.monotonic() + 99, 1, 1)
        assert not stage.wire.data and not stage.wire.ended
        stage.connection.answered(keep_alive=True)
        stage.server.end_late(clock.monotonic() + 99, 1, 1)
        assert stage.wire.data.startswith(b"HTTP/1.1 400 ")
        stage.connection.connection_lost(None)

    asyncio.run(run())


def test_a_connection_that_is_to_end_soon_ends_by_itself() -> None:
    async def run() -> None:
        stage = Stage()
        stage.feed(LENGTH)
        stage.connection.end_soon()
        stage.connection.answered(keep_alive=True)
        assert not stage.wire.ended
        await until(lambda: stage.wire.ended == "closed", 5 * FAREWELL)
        assert stage.wire.ended == "closed"
        stage.connection.connection_lost(None)

    asyncio.run(run())


@pytest.mark.parametrize("behind", [b"", LENGTH])
def test_one_more_request_is_the_last_and_is_not_cut(behind: bytes) -> None:
    async def run() -> None:
        stage = Stage()
        stage.feed(LENGTH + behind)
        stage.connection.end_soon()
        stage.connection.answered(keep_alive=True)
        stage.feed(b"" if behind else LENGTH, LENGTH)
        assert [head.keep_alive for head in stage.heads] == [True, False]
        await until(lambda: bool(stage.wire.ended), 1.5 * FAREWELL)
        assert not stage.wire.ended, "while it runs"
        stage.connection.answered(keep_alive=False)
        assert stage.wire.at_end and len(stage.heads) == 2, "the third one is not looked at"
        stage.connection.connection_lost(None)

    asyncio.run(run())
