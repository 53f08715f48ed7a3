"""An engine that speaks vLLM's HTTP wire format and breaks on demand; standard library only.

    python -m tests.support.fakeengine --uds PATH | --port N [--model NAME] [--tokens N] [--gap S] [--fault SCRIPT]

With `--port 0` the kernel picks; the first line on standard output is `listening PATH` or `listening PORT`.

A fault script is `NAME[=VALUE]` joined by commas. It comes from `--fault`, from `POST /_fake/fault` (the script as
body, for all later requests) or from the words `[[fault:SCRIPT]]` anywhere in one request's body (for it alone).

    first=S       S seconds before the first body byte       gap=S       S seconds between tokens
    head=S        S seconds before the response head         tokens=N    answer with N tokens
    stall=N       say nothing more after N events            reset=N     cut after N events (0: after the head)
    refuse        close without a byte                       garbage     bytes that are not HTTP
    poison        the engine dies of it, where it can (`Engine.dies`)
    status=N      answer N before the first byte             error=N     error event and [DONE] after N events
    big=BYTES     one event of BYTES after the role event    pad=BYTES   every token that long
    split         every byte in its own write
    comments=S    `: keep-alive` each S seconds of silence   noframe     answer delimited by the end of the connection
    merge         all events in one write                    eof=N       end the chunked body after N events, no [DONE]
    gate          an event only when the test lets it pass (`FakeEngine.release`)
    hold=N        wait before event N until `POST /_fake/go` with N as body
    from=N       the rest of a standing script holds from the Nth request on; those before are answered well
    waiting=N kv=SHARE preempted=N   what /metrics says (-1: says nothing of it)
    health=N late=S                  what /health says, and after how many seconds

`GET /_fake/log` tells every request: path, headers, body size, `stream_options`, when it began, ended, was aborted,
and how many events were sent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.fakewire import anthropic, openai, responses
from tests.support.fakewire.answer import Said, compact, said

MOST_TOKENS = 100_000  # of one answer, whatever is asked for: making millions would hold up all its other work
FAULT = re.compile(rb"\[\[fault:([^\]]*)\]\]")


class Cut(Exception):
    """The script says to drop the connection here."""


def parse_fault(script: str) -> dict[str, float]:
    """`stall=3,gap=0.1` as numbers; a name without a value is 1."""
    fault: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in script.split(","))):
        name, _, value = part.partition("=")
        fault[name] = float(value or 1)
    return fault


class Engine:
    """State of one fake engine: its model, its standing fault and the log of its requests."""

    def __init__(self, model: str, *, tokens: int = 8, gap: float = 0.0, fault: str = "") -> None:
        self.model, self.tokens, self.gap = model, tokens, gap
        self.fault = parse_fault(fault)
        self.log: list[dict[str, Any]] = []
        self._gates: dict[float, asyncio.Event] = {}
        self.running = 0
        self.generated = 0
        self.scrapes = 0
        self.probed = 0  # how often its health was asked for
        self.gate = asyncio.Semaphore(0)  # where `gate` waits before each event
        self.dies: Callable[[], None] = lambda: None  # of a request with `poison`

    def held(self, number: float) -> asyncio.Event:
        """What a stream with `hold=number` waits for."""
        return self._gates.setdefault(number, asyncio.Event())

    def metrics(self) -> str:
        self.scrapes += 1
        labels = f'{{engine="0",model_name="{self.model}"}}'
        rows = (
            ("num_requests_running", "gauge", "Number of requests in model execution batches.", float(self.running)),
            ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.",
             self.fault.get("waiting", 0.0)),
            ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", self.fault.get("kv", 0.125)),
            ("num_preemptions_total", "counter", "Cumulative number of preemption from the engine.",
             self.fault.get("preempted", 0.0)),
            ("generation_tokens_total", "counter", "Number of generation tokens processed.", float(self.generated)),
        )  # fmt: skip
        return "".join(
            f"# HELP vllm:{name} {text}\n# TYPE vllm:{name} {kind}\nvllm:{name}{labels} {value}\n"
            for name, kind, text, value in rows
            if value >= 0
        )


class Exchange:
    """One connection: requests one after the other, each answered by the script."""

    def __init__(self, engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.engine, self.reader, self.writer = engine, reader, writer
        self.split = False
        self.chunked = True
        self.held = b""

    async def serve(self) -> None:
        try:
            while await self.one():
                pass
        except (Cut, ConnectionError, asyncio.IncompleteReadError, TimeoutError, asyncio.TimeoutError):
            pass
        finally:
            self.writer.transport.abort()

    async def one(self) -> bool:
        try:  # vLLM closes an idle connection after five seconds
            rest = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)
            head, self.held = self.held + rest, b""
        except asyncio.LimitOverrunError:
            return False
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        path = target.partition("?")[0]
        if path.startswith("/_fake/"):
            await self.control(path, body)
        elif method == "GET":
            await self.get(path)
        else:
            await self.post(path, headers, body)
        return headers.get("connection", "").lower() != "close" and self.chunked

    async def control(self, path: str, body: bytes) -> None:
        if path == "/_fake/fault":
            self.engine.fault = parse_fault(body.decode())
        elif path == "/_fake/go":
            self.engine.held(float(body)).set()
        elif path == "/_fake/clear":
            self.engine.log.clear()
        await self.reply(200, {"requests": self.engine.log, "running": self.engine.running})

    async def get(self, path: str) -> None:
        if path == "/v1/models":
            await self.reply(200, openai.models(self.engine.model))
        elif path == "/metrics":
            await self.reply(200, self.engine.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif path in ("/health", "/ping"):
            self.engine.probed += 1
            await asyncio.sleep(self.engine.fault.get("late", 0.0))
            fault = self.engine.fault.get("health")
            await self.reply(int(fault) if fault else 200, b"")
        elif path == "/version":
            await self.reply(200, {"version": "0.32.0"})
        elif path == "/load":
            await self.reply(200, {"server_load": self.engine.running})
        else:
            await self.reply(404, {"detail": "Not Found"})

    async def post(self, path: str, headers: dict[str, str], body: bytes) -> None:
        fault = dict(self.engine.fault) if len(self.engine.log) + 1 >= self.engine.fault.get("from", 0) else {}
        own = FAULT.search(body)
        if own:
            fault |= parse_fault(own[1].decode())
        request: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            request = json.loads(body)
        entry: dict[str, Any] = {
            "path": path, "headers": headers, "size": len(body), "began": time.time(), "ended": None, "aborted": None,
            "events": 0, "stream_options": request.get("stream_options"), "keys": list(request),
            "max_tokens": request.get("max_tokens"), "model": request.get("model"),
        }  # fmt: skip
        self.engine.log.append(entry)
        self.engine.running += 1
        gone = asyncio.ensure_future(self.watch())
        work = asyncio.ensure_future(self.answer(path, request, fault, entry))
        try:
            await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                entry["aborted"] = time.time()
                raise ConnectionResetError
            work.result()
            entry["ended"] = time.time()
        except ConnectionError:
            entry["aborted"] = entry["aborted"] or time.time()
            raise
        finally:
            self.engine.running -= 1
            for task in (gone, work):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def watch(self) -> None:
        """Ends when the peer has closed; the first byte of a next request is kept for it."""
        self.held = await self.reader.read(1)
        if self.held:
            await asyncio.get_running_loop().create_future()

    async def answer(self, path: str, request: dict[str, Any], fault: dict[str, float], entry: dict[str, Any]) -> None:
        self.split = bool(fault.get("split"))
        if "poison" in fault:
            self.engine.dies()
            raise Cut
        if "refuse" in fault:
            raise Cut
        if "garbage" in fault:
            self.writer.write(b"\x00\xffgarbage that is no HTTP at all\r\n\r\n")
            await self.writer.drain()
            raise Cut
        if "head" in fault:
            await asyncio.sleep(fault["head"])
        if "status" in fault:
            await self.reply(int(fault["status"]), openai.scripted(int(fault["status"])))
            return
        if request.get("stream") and path in ("/v1/chat/completions", "/v1/completions", "/v1/messages",
                                              "/v1/responses"):  # fmt: skip
            await Stream(self, path, request, fault, entry).run()
            return
        if "first" in fault:
            await asyncio.sleep(fault["first"])
        count = int(fault.get("tokens", min(request.get("max_tokens") or self.engine.tokens, MOST_TOKENS)))
        await self.reply(200, format_of(path).whole(self.engine.model, path, request, count))

    async def reply(self, status: int, body: object, content_type: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else compact(body).encode()
        head = (
            f"HTTP/1.1 {status} X\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\nserver: uvicorn\r\n"
            f"content-length: {len(data)}\r\ncontent-type: {content_type}\r\n\r\n"
        )
        await self.send(head.encode() + data)

    async def send(self, data: bytes) -> None:
        if not self.split:
            self.writer.write(data)
            await self.writer.drain()
            return
        for index in range(len(data)):
            self.writer.write(data[index : index + 1])
            await self.writer.drain()
            await asyncio.sleep(0)

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)


class Stream:
    """The events of one streamed answer, with the script's faults between them."""

    def __init__(self, exchange: Exchange, path: str, request: dict[str, Any], fault: dict[str, float],
                 entry: dict[str, Any]) -> None:  # fmt: skip
        self.exchange, self.path, self.request, self.fault, self.entry = exchange, path, request, fault, entry
        self.engine = exchange.engine
        self.merged = b""

    def events(self) -> Iterable[bytes]:
        asked = self.request.get("max_tokens") or self.request.get("max_output_tokens") or self.engine.tokens
        answer = said(self.request, int(self.fault.get("tokens", min(asked, MOST_TOKENS))))
        padded = {piece: piece.ljust(int(self.fault.get("pad", 0))) for piece in answer.pieces}
        pieces = tuple(padded[piece] for piece in answer.pieces)  # few strings, however many tokens
        big = int(self.fault.get("big", 0))
        answer = Said((("x" * big,) if big else ()) + pieces, answer.tool, answer.finish)
        made: Iterable[bytes] = format_of(self.path).events(self.engine.model, self.path, self.request, answer)
        return made

    async def run(self) -> None:
        fault, exchange = self.fault, self.exchange
        exchange.chunked = "noframe" not in fault
        framing = "transfer-encoding: chunked\r\n" if exchange.chunked else "connection: close\r\n"
        await exchange.send(
            f"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\nserver: uvicorn\r\n"
            f"content-type: text/event-stream; charset=utf-8\r\n{framing}\r\n".encode()
        )
        await self.pause(fault.get("first", 0.0))
        gap = fault.get("gap", self.engine.gap)
        for number, event in enumerate(self.events()):
            await self.break_at(number)
            if "gate" in fault:
                await self.engine.gate.acquire()
            if number > 1:
                await self.pause(gap)
            await self.emit(event)
            self.entry["events"] += 1
            self.engine.generated += 1
        if self.merged:
            await exchange.send(self.merged + b"0\r\n\r\n")
        elif exchange.chunked:
            await exchange.send(b"0\r\n\r\n")

    async def break_at(self, number: int) -> None:
        if number == self.fault.get("stall"):
            await self.pause(86400)
        if number == self.fault.get("hold"):
            await self.engine.held(number).wait()
        if number == self.fault.get("reset"):
            raise Cut
        if number == self.fault.get("eof"):
            await self.exchange.send(b"0\r\n\r\n")
            raise Cut
        if number == self.fault.get("error"):
            await self.emit(format_of(self.path).error_event())
            await self.emit(b"data: [DONE]\n\n")
            await self.exchange.send(b"0\r\n\r\n")
            raise Cut

    async def emit(self, event: bytes) -> None:
        if "merge" in self.fault:
            self.merged += b"%x\r\n%b\r\n" % (len(event), event)
        else:
            await self.exchange.chunk(event)

    async def pause(self, seconds: float) -> None:
        interval = self.fault.get("comments", 0.0)
        while interval and seconds > interval:
            await asyncio.sleep(interval)
            seconds -= interval
            await self.exchange.chunk(b": keep-alive\n\n")
        if seconds > 0:
            await asyncio.sleep(seconds)


def format_of(path: str) -> Any:
    """The module that writes what this route answers."""
    if path.startswith("/v1/messages"):
        return anthropic
    return responses if path == "/v1/responses" else openai


async def serve(engine: Engine, *, uds: str | None = None, port: int = 0) -> tuple[asyncio.AbstractServer, str]:
    """Listen and answer; returns the server and where it listens (path or port number as text)."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # asyncio's own callback is noisy about it
            await Exchange(engine, reader, writer).serve()

    if uds is not None:
        return await asyncio.start_unix_server(connected, uds, backlog=1024, limit=1 << 20), uds
    server = await asyncio.start_server(connected, "127.0.0.1", port, backlog=1024, limit=1 << 20)
    return server, str(server.sockets[0].getsockname()[1])


async def run(arguments: argparse.Namespace) -> None:
    engine = Engine(arguments.model, tokens=arguments.tokens, gap=arguments.gap, fault=arguments.fault)
    server, place = await serve(engine, uds=arguments.uds, port=arguments.port or 0)
    print(f"listening {place}", flush=True)
    async with server:
        await server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(description="a fake vLLM for tests")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--uds")
    where.add_argument("--port", type=int)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--gap", type=float, default=0.0)
    parser.add_argument("--fault", default="")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
