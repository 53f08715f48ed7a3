"""Handing over to a new process from the code that is installed now: both sides of the minute in which it happens.

SIGUSR2 makes the running process start the new one and give it, over a socket pair, the listening sockets and the
counters; from then on it only finishes its calls (`successor`). Until the new one says that it serves, everything can
be taken back: a new process that does not come up costs nobody anything.

    older                                         newer
    starts it                        <- pid       reads configuration, keys and states; any problem ends it
                                     <- ready
    stops accepting, lays the ledger down
    sockets, counters ->
                                                  counts what the older one holds (`predecessors`)
                                     <- serving   accepts
    tells systemd the new main process
    main ->                                       says READY
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from appliance.errors import Failed
from appliance.host import journal, notify, reexec

START = 60.0  # seconds for the new process to come up: a loaded machine imports slowly
TAKE = 15.0  # seconds for each step after that
SOCKETS = 64  # at most, of all listeners


class _Ended(Exception):
    """The other side is gone."""


class Older(Protocol):
    """The process that hands over."""

    log: journal.Journal

    async def lay_down(self) -> tuple[dict[str, object], list[tuple[str, int]]]:
        """Stop accepting and writing; the counters, and the listening sockets by name."""

    def take_up(self) -> None:
        """Go on as before."""

    def retire(self) -> None:
        """Finish what runs and end."""


async def hand_over(older: Older) -> bool:
    """Start a new process and let it take over; False when it did not, and nothing has changed."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    lines = _Lines(ours)
    child = pid = 0
    laid_down = done = False
    try:
        with theirs:
            child = reexec.start_again(theirs.fileno())
        reaped = loop.run_in_executor(None, os.waitpid, child, 0)
        pid = await lines.pid(START)
        await lines.hear("ready", START)
        laid_down = True
        counters, sockets = await older.lay_down()
        await lines.say({"op": "estate", "names": [name for name, _ in sockets], **counters}, [fd for _, fd in sockets])
        await lines.hear("serving", TAKE)
        await loop.run_in_executor(None, _tell_main, pid)
        done = True
        older.log.log(journal.NOTICE, f"process {pid} has taken over; what runs here is finished here",
                      LLM_EVENT="gateway-handover")  # fmt: skip
        older.retire()
        await lines.say({"op": "main"})
        await reaped
    except (OSError, ValueError, KeyError, _Ended, asyncio.TimeoutError, TimeoutError) as error:
        if not done:
            why = str(error) or "it took too long"
            older.log.log(journal.ERR, f"the new process did not take over ({why}): this one goes on as before",
                          LLM_EVENT="gateway-handover")  # fmt: skip
    finally:
        ours.close()
        if not done:
            _kill(pid or child)
            if laid_down:
                older.take_up()
    return done


def _tell_main(pid: int) -> None:
    notify.notify(MAINPID=pid)
    notify.barrier(5.0)  # so that the new process's READY=1 is not heard before


def _kill(pid: int) -> None:
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            return


class Heir:
    """The newer side."""

    def __init__(self, descriptor: int) -> None:
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        self._lines = _Lines(connection)
        self.sockets: dict[str, list[int]] = {}

    async def inherit(self) -> Mapping[str, Any]:
        """Say that this process is ready, and get counters and `sockets`. Raises Failed."""
        try:
            await self._lines.say({"op": "ready"})
            estate = await self._lines.hear("estate", TAKE)
            for name, descriptor in zip(estate["names"], self._lines.descriptors, strict=True):
                self.sockets.setdefault(name, []).append(descriptor)
        except (OSError, ValueError, KeyError, _Ended, asyncio.TimeoutError, TimeoutError) as error:
            raise Failed(f"the process before does not hand over: {error or 'no answer'}") from None
        return estate

    async def serving(self) -> None:
        """Say that calls are accepted here, and wait until the service manager knows this process. Raises Failed."""
        try:
            await self._lines.say({"op": "serving"})
            await self._lines.hear("main", TAKE)
        except (OSError, ValueError, KeyError, _Ended, asyncio.TimeoutError, TimeoutError) as error:
            raise Failed(f"the process before took it back: {error or 'no answer'}") from None
        finally:
            self._lines.socket.close()


class _Lines:
    """JSON objects over the pair, each behind its length; descriptors come with the first byte of one."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.descriptors: list[int] = []
        self._loop = asyncio.get_running_loop()

    async def say(self, message: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode()
        data = len(data).to_bytes(4, "big") + data
        if descriptors:
            socket.send_fds(self.socket, [data[:1]], descriptors)
            data = data[1:]
        await asyncio.wait_for(self._loop.sock_sendall(self.socket, data), TAKE)

    async def hear(self, word: str, limit: float) -> dict[str, Any]:
        message = await asyncio.wait_for(self._message(), limit)
        if message["op"] != word:
            raise ValueError(f"it said {message['op']!r} instead of {word!r}")
        return message

    async def pid(self, limit: float) -> int:
        """What a process tells first (`reexec.detach`)."""
        return int.from_bytes(await asyncio.wait_for(self._exactly(4), limit), "big")

    async def _message(self) -> dict[str, Any]:
        size = int.from_bytes(await self._exactly(4), "big")
        value: dict[str, Any] = json.loads(await self._exactly(size))
        return value

    async def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self._some(size - len(data))
            if not piece:
                raise _Ended("it ended")
            data += piece
        return data

    async def _some(self, size: int) -> bytes:
        """Bytes and descriptors; asyncio has no call for both."""
        while True:
            try:
                piece, descriptors, _flags, _address = socket.recv_fds(self.socket, size, SOCKETS)
            except BlockingIOError:
                await self._readable()
                continue
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            self.descriptors += descriptors
            return piece

    async def _readable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self.socket.fileno(), _set, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(self.socket.fileno())


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
