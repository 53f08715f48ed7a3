"""Small GETs to an engine beside its calls: health of a remote one, metrics of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from appliance import clock
from appliance.wire.chunked import ChunkDecoder, FramingError
from appliance.wire.headers import BadHead, ResponseHead, parse_head

from .engines import Replica
from .upstream import ConnectFailed, EngineConnection, Late

BODY_LIMIT = 8 << 20
PROBE_DEADLINE = 2.0  # seconds


class _Reader:
    """Collects one response."""

    def __init__(self) -> None:
        self.future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.data = b""
        self.body = bytearray()
        self.head: ResponseHead | None = None
        self.decoder: ChunkDecoder | None = None

    def engine_lost(self, connection: EngineConnection) -> None:
        if self.head is not None and self.head.length is None and self.decoder is None:
            self._done()
        elif not self.future.done():
            self.future.set_exception(ConnectFailed("the connection ended"))

    def feed(self, data: bytes) -> None:
        try:
            self._feed(data)
        except (BadHead, FramingError) as error:
            if not self.future.done():
                self.future.set_exception(ConnectFailed(str(error)))

    def _feed(self, data: bytes) -> None:
        if self.head is None:
            self.data += data
            end = self.data.find(b"\r\n\r\n")
            if end < 0:
                if len(self.data) > 65536:
                    raise BadHead("the head is too long")
                return
            self.head = parse_head(self.data[:end])
            self.decoder = ChunkDecoder() if self.head.chunked else None
            data = self.data[end + 4 :]
        self.body += b"".join(self.decoder.feed(data)) if self.decoder else data
        if len(self.body) > BODY_LIMIT:
            raise FramingError("the body is too long")
        whole = self.decoder.done if self.decoder else len(self.body) >= (self.head.length or 0)
        if whole and (self.decoder or self.head.length is not None):
            self._done()

    def _done(self) -> None:
        if not self.future.done() and self.head is not None:
            self.future.set_result((self.head.status, bytes(self.body)))


async def get(replica: Replica, path: str, deadline: float) -> tuple[int, bytes]:
    """Status and body of a GET, on a connection of its own. Raises ConnectFailed within `deadline` seconds,
    Late of it where nothing is known of the engine."""
    connection = await replica.pool.connect(deadline)
    reader = _Reader()
    try:
        target = replica.target
        key = f"authorization: Bearer {target.key}\r\n" if target.key else ""
        head = f"GET {target.prefix}{path} HTTP/1.1\r\nhost: {target.authority}\r\n{key}connection: close\r\n\r\n"
        connection.send(reader, reader.feed, (head.encode("latin-1"),))
        return await asyncio.wait_for(reader.future, deadline)
    except (asyncio.TimeoutError, TimeoutError):
        raise Late(f"no answer within {deadline:g} s") from None
    finally:
        connection.release(keep=False)


async def probe(replicas: Iterable[Replica], connect: float, heard: Callable[[], Mapping[str, float]]) -> None:
    """Ask every remote engine for its health; a local one tells by its state file. `connect`: what a call allows;
    `heard`: when each replica's calls in flight last brought bytes, since one that is late and writes is there.
    """
    deadline = min(connect, PROBE_DEADLINE)

    async def one(replica: Replica) -> None:
        began = clock.monotonic()
        try:
            code, _ = await get(replica, "/health", deadline)
        except ConnectFailed as error:
            late = isinstance(error, Late)
            if late and max(heard().get(replica.name, 0.0), replica.last_byte_at or 0.0) > began:
                replica.worked()
            else:
                replica.failed(clock.monotonic(), late=late)
            return
        if code < 500:
            replica.worked()
        else:
            replica.failed(clock.monotonic())

    await asyncio.gather(*(one(replica) for replica in replicas if replica.remote))
