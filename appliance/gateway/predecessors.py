"""The processes that came before this one and still finish their streams; what they hold is counted here.

The seam: a unix socket, JSON objects a line; the older process connects, and connects again to whoever listens now.

    older -> newer  hello    what it holds: `holds`, `calls` (leases, and calls that wait), `events` that
                             they had so far; first, after a loss again
                    fact     `seq` and a `record` or a `settle`: kept until acknowledged, so none is lost or doubled
                    take     allowance for a call that came on an old connection
                    offer leave release correct     the calls of one engine's admission
                    pulse    how silent its calls are, and how many events they had, twice a second
    newer -> older  ack      the last fact that was taken
                    taken denied     the answer to take
                    admit refuse     the answer to offer
                    stop     finish within `drain`

A connection that ends gives back at once all that its process held.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from appliance import clock
from appliance.errors import ApiError
from appliance.host import journal
from appliance.policy.admission import Lease, Outcome, Refuse, Ticket
from appliance.policy.allowance import Demand, Hold

from .allowances import Allowances
from .auth import Gatekeeper, Principal
from .engines import Engines, Group
from .record import Record, record_of

SILENT = 30.0  # seconds without a pulse after which a process is ended: it holds places and moves nothing
LINE_LIMIT = 32 << 20  # a hello of 100,000 calls is half of it


@dataclass(slots=True, eq=False)
class Guest:
    """A call of an older process, which knows it by `number`, in this one's admission."""

    process: Predecessor
    number: int
    group: Group
    ticket: Ticket
    lease: Lease | None = None

    def admitted(self, lease: Lease) -> None:
        """Told to the process, which lets it run."""
        self.lease = lease
        self.process.send(op="admit", n=self.number, engine=self.group.engine.name, replica=lease.replica)

    def refused(self, error: ApiError) -> None:
        """Told to the process, which answers its client."""
        self.process.forget(self.number)
        self.process.send(
            op="refuse", n=self.number, code=error.code, reason=error.message, retry_after=error.retry_after
        )


class Predecessors:
    """All of them. `finished` takes the records of their calls."""

    def __init__(
        self,
        engines: Engines,
        allowances: Allowances,
        gatekeeper: Gatekeeper,
        finished: Callable[[Record], None],
        log: journal.Journal,
    ) -> None:
        self.engines, self.gatekeeper, self.finished, self.log = engines, gatekeeper, finished, log
        self.allowances = allowances
        self.connected: set[Predecessor] = set()
        self.numbers = itertools.count(-1, -1)  # tickets of theirs; those of our own calls count upwards
        self.seen: dict[int, int] = {}  # the last fact of each process
        self._misunderstood: set[int] = set()  # processes of which this was told: they try again and again
        self._server: asyncio.AbstractServer | None = None

    async def open(self, listener: socket.socket) -> None:
        """Let them connect."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: Predecessor(self), sock=listener)

    def close(self) -> None:
        """Let go of all of them, without letting anybody into the places they held: they go to the next process."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for one in list(self.connected):
            one.detach()

    @property
    def pids(self) -> list[int]:
        """The processes that have said what they hold."""
        return [one.pid for one in self.connected if one.pid]

    def status(self) -> list[dict[str, int]]:
        """For `GET /status`."""
        return [{"pid": one.pid, "running": one.running} for one in self.connected if one.pid]

    def events(self) -> Counter[str]:
        """Token events of their running calls, by replica."""
        return sum((Counter(one.events) for one in self.connected), Counter[str]())

    def silences(self, replica: str) -> Iterator[Mapping[str, Any]]:
        """What each says of its calls at a replica."""
        return (one.pulse[replica] for one in self.connected if replica in one.pulse)

    def misunderstood(self, pid: int, error: Exception) -> None:
        """A process speaks otherwise than this one understands: its calls are not counted here."""
        if pid not in self._misunderstood:
            self._misunderstood.add(pid)
            self.log.log(
                journal.ERR, f"process {pid} does not speak as expected, what it holds is not counted: {error!r}",
                LLM_EVENT="gateway-handover",
            )  # fmt: skip

    def stop(self) -> None:
        """Ask them to finish."""
        for one in self.connected:
            one.send(op="stop")

    def late(self, fact: Mapping[str, Any]) -> None:
        """A fact of a call that was not held here: its record, or what its key used."""
        if "record" in fact:
            self.finished(record_of(fact["record"]))
        elif "settle" in fact and fact["settle"][2]:
            _, key, used = fact["settle"]
            self.allowances.count(key, self.gatekeeper.limits(key), used)

    def tick(self, now: float) -> None:
        """End those that stand still."""
        for one in list(self.connected):
            if now - one.pulse_at > SILENT:
                one.end()


class Predecessor(asyncio.Protocol):
    """One older process, as it is heard."""

    def __init__(self, host: Predecessors) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self.pid = 0
        self.pulse: Mapping[str, Any] = {}
        self.events: Mapping[str, int] = {}  # that its running calls have passed on, by replica
        self.pulse_at = clock.monotonic()
        self._guests: dict[int, Guest] = {}
        self._holds: dict[int, tuple[str, Hold]] = {}
        self._verbs: dict[str, Callable[[dict[str, Any]], None]] = {
            "hello": self._hello, "fact": self._fact, "take": self._take, "offer": self._offer, "leave": self._leave,
            "release": self._release, "correct": self._correct, "pulse": self._pulse,
        }  # fmt: skip

    @property
    def running(self) -> int:
        """Its calls that run or wait."""
        return len(self._guests)

    # --- the connection -------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._host.connected.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self in self._host.connected:
            self.detach()
            now = clock.monotonic()
            for group in self._host.engines.groups.values():
                group.admit_waiting(now)

    def data_received(self, data: bytes) -> None:
        *lines, rest = (bytes(self._buffer) + data).split(b"\n") if b"\n" in data else (data,)
        if lines:
            self._buffer.clear()
        self._buffer += rest
        try:
            if len(self._buffer) > LINE_LIMIT:
                raise ValueError("a line is too long")
            for line in lines:
                message = json.loads(line)
                verb = self._verbs.get(message["op"])
                if verb is not None:  # another version may say more
                    verb(message)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            self._host.misunderstood(self.pid, error)
            if self._transport is not None:
                self._transport.abort()

    def send(self, **message: object) -> None:
        """One line to it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(json.dumps(message).encode() + b"\n")

    def detach(self) -> None:
        """Forget it: every lease, place and reservation it has comes back."""
        self._host.connected.discard(self)
        if self._transport is not None:
            self._transport.abort()
        now = clock.monotonic()
        guests, self._guests = self._guests, {}
        for guest in guests.values():
            guest.group.waiters.pop(guest.ticket.number, None)
            guest.group.admission.leave(guest.ticket)
            if guest.lease is not None:
                guest.group.admission.release(guest.lease, Outcome.IGNORED, now)
        for key, hold in self._holds.values():
            self._give_back(key, hold, 0)
        self._holds.clear()

    def end(self) -> None:
        """It stands still: kill it."""
        assert self._transport is not None
        peer = self._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = int(struct.unpack("3i", peer)[0])
        self._host.log.log(
            journal.ERR, f"process {pid}, which finished its streams, stands still: it is ended",
            LLM_EVENT="gateway-handover",
        )  # fmt: skip
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            self._transport.abort()

    # --- what it says ---------------------------------------------------------------------------------------------
    def _hello(self, message: dict[str, Any]) -> None:
        host, now = self._host, clock.monotonic()
        self.pid = int(message["pid"])
        self.events = _counts(message.get("events"))
        for number, key, tokens, since in message["holds"]:
            self._holds[number] = key, host.allowances.adopt(key, tokens, since)
        for call in message["calls"]:
            group = host.engines.groups.get(call["engine"])
            if call["replica"] is None:
                self._offer(call)
            elif group is not None:
                ticket = self._ticket(call)
                lease = group.admission.adopt(Lease(ticket, call["replica"], now))
                self._guests[call["n"]] = Guest(self, call["n"], group, ticket, lease)

    def _fact(self, message: dict[str, Any]) -> None:
        seq = int(message["seq"])
        if seq > self._host.seen.get(self.pid, 0):
            self._host.seen[self.pid] = seq
            known = self._holds.pop(message["settle"][0], None) if "settle" in message else None
            if known is not None:
                self._give_back(*known, message["settle"][2])
            else:
                self._host.late(message)
        self.send(op="ack", seq=seq)

    def _give_back(self, key: str, hold: Hold, used: int | None) -> None:
        self._host.allowances.give_back(hold, Principal(key, key, limits=self._host.gatekeeper.limits(key)), used)

    def _take(self, message: dict[str, Any]) -> None:
        number, key = message["n"], message["key"]
        principal = Principal(key, key, limits=self._host.gatekeeper.limits(key))
        try:
            hold = self._host.allowances.reserve(principal, Demand(*message["demand"]))
        except ApiError as error:
            self.send(
                op="denied", n=number, code=error.code, message=error.message, param=error.param,
                retry_after=error.retry_after, final=error.final,
            )  # fmt: skip
            return
        self._holds[number] = key, hold
        self.send(op="taken", n=number, tokens=hold.tokens)

    def _ticket(self, call: Mapping[str, Any]) -> Ticket:
        return Ticket(next(self._host.numbers), *call["ticket"])

    def _offer(self, message: dict[str, Any]) -> None:
        number, now = message["n"], clock.monotonic()
        group = self._host.engines.groups.get(message["engine"])
        if group is None:
            self.send(op="refuse", n=number, code="engine_restarting", retry_after=2.0,
                      reason=f"the engine {message['engine']} was removed from the configuration")  # fmt: skip
            return
        guest = self._guests[number] = Guest(self, number, group, self._ticket(message))
        decision = group.admission.offer(guest.ticket, now)
        if isinstance(decision, Lease):
            guest.admitted(decision)
        elif isinstance(decision, Refuse):
            guest.refused(ApiError(decision.code, decision.reason, retry_after=decision.retry_after))
        else:
            group.waiters[guest.ticket.number] = guest
            if decision.displaced is not None:
                group.turn_away(*decision.displaced)

    def forget(self, number: int) -> None:
        """A call of it was turned away."""
        self._guests.pop(number, None)

    def _leave(self, message: dict[str, Any]) -> None:
        guest = self._guests.pop(message["n"], None)
        if guest is None:
            return
        guest.group.waiters.pop(guest.ticket.number, None)
        guest.group.admission.leave(guest.ticket)
        if guest.lease is not None:
            guest.group.release(guest.lease, Outcome.IGNORED)

    def _release(self, message: dict[str, Any]) -> None:
        guest = self._guests.pop(message["n"], None)
        if guest is not None and guest.lease is not None:
            guest.group.release(guest.lease, Outcome(message["outcome"]))

    def _correct(self, message: dict[str, Any]) -> None:
        group = self._host.engines.groups.get(message["engine"])
        if group is not None:
            group.admission.correct(self._ticket(message), message["used"])

    def _pulse(self, message: dict[str, Any]) -> None:
        self.pulse, self.events, self.pulse_at = (
            message.get("replicas", {}),
            _counts(message.get("events")),
            clock.monotonic(),
        )


def _counts(value: object) -> Mapping[str, int]:
    """Events by replica; another version may tell them otherwise, and none are counted then."""
    return (
        {str(key): count for key, count in value.items() if isinstance(count, int)} if isinstance(value, dict) else {}
    )
