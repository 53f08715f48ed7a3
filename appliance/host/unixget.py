"""One GET over a unix socket, for an event loop.

Apart from `unixhttp`, so that who has no loop (the launcher, the command line) starts without asyncio.
"""

from __future__ import annotations

import asyncio

from appliance.errors import Unreachable

from .deadline import within


async def get_async(path: str, target: str, *, deadline_s: float, limit: int) -> tuple[int, bytes]:
    """Status and body of one GET at the server that listens at `path`, within `deadline_s` seconds.

    Raises Unreachable with the reason, also for a body of more than `limit` bytes.
    """
    try:
        return await within(deadline_s, _get(path, target, limit))
    except asyncio.TimeoutError:
        raise Unreachable(f"no answer within {deadline_s:g} s") from None
    except OSError as error:
        raise Unreachable((error.strerror or str(error) or "the connection was lost").lower()) from None


async def _get(path: str, target: str, limit: int) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        # In HTTP/1.0 an answer is never cut into chunks, and it ends with its connection.
        writer.write(f"GET {target} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = bytearray()
        while piece := await reader.read(1 << 16):
            answer += piece
            if len(answer) > limit:
                raise Unreachable(f"an answer of more than {limit} bytes")
    finally:
        writer.close()
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise Unreachable("an answer that is not HTTP")
    return int(words[1]), body
