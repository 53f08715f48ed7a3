"""A process that another one follows: what it still does is asked of the new one, and told to it.

`Successor` is its line to that process (the seam is in `predecessors`), `ReportedAdmission` an engine's admission from
then on. Nothing waits for the line: what must not be lost is kept until it is acknowledged, and what is left when this
process ends goes into a file, which the next process reads when it begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from appliance import clock
from appliance.errors import ApiError
from appliance.host.files import replace
from appliance.policy.admission import Admission, Lease, Outcome, Refuse, Ticket, Wait
from appliance.policy.allowance import Demand, Hold

from .allowances import Allowances
from .engines import Engines, Group
from .predecessors import LINE_LIMIT
from .record import Record

AGAIN = 0.05  # seconds between two tries to connect
ANSWER = 10.0  # seconds that a call waits for its allowance while nobody answers
FACTS = 40_000  # facts that may wait, two a call; beyond that the oldest are dropped and told
SPOOL = "unreported-"  # begins the name of the file of what could not be told


class ReportedAdmission(Admission):
    """What one engine's calls of this process hold; who is admitted is the new process's decision."""

    def __init__(self, group: Group, line: Successor) -> None:
        super().__init__(queue_size=group.admission.queue_size, queue_timeout=group.admission.queue_timeout)
        self._engine, self._line = group.engine.name, line
        self._granted: list[Lease] = []
        for name in group.replicas:
            self.set_replica(name, limit=group.admission.limit(name), serving=False)
        leases, waiting = group.admission.calls()
        for lease in leases:
            self.adopt(lease)
        for ticket in waiting:
            self._queue.push(ticket)

    def offer(self, ticket: Ticket, now: float) -> Lease | Wait | Refuse:
        self._queue.push(ticket)
        self._line.send(op="offer", **self._told(ticket))
        return Wait(len(self._queue))

    def granted(self, number: int, replica: str, now: float) -> None:
        """The new process lets a call in; it is told so by `admit_waiting`."""
        ticket = self._queue.remove(number)
        if ticket is not None:
            self._granted.append(self.adopt(Lease(ticket, replica, now)))

    def admit_waiting(self, now: float) -> list[Lease]:
        granted, self._granted = self._granted, []
        return granted

    def leave(self, ticket: Ticket) -> bool:
        left = super().leave(ticket)
        if left:
            self._line.send(op="leave", n=ticket.number)
        return left

    def overdue(self, now: float) -> list[tuple[Ticket, Refuse]]:
        """The new process turns away who waits too long; without one it is done here."""
        return [] if self._line.connected else super().overdue(now)

    def release(self, lease: Lease, outcome: Outcome, now: float) -> None:
        super().release(lease, outcome, now)
        self._line.send(op="release", n=lease.ticket.number, outcome=outcome.value)

    def move(self, lease: Lease, now: float, avoid: str) -> Lease | None:
        """Which other replica has room is not known here."""
        return None

    def correct(self, ticket: Ticket, used: int) -> None:
        self._line.send(op="correct", used=used, **self._told(ticket))

    def told(self) -> list[dict[str, object]]:
        """Everything for a `hello`."""
        leases, waiting = self.calls()
        return [{**self._told(lease.ticket), "replica": lease.replica} for lease in leases] + [
            {**self._told(ticket), "replica": None} for ticket in waiting
        ]

    def _told(self, ticket: Ticket) -> dict[str, object]:
        facts = [ticket.key, ticket.arrived, ticket.weight, ticket.priority]
        return {"n": ticket.number, "engine": self._engine, "ticket": facts}


class Successor:
    """The line. `view` is how silent this process's calls are; `stop` is called when the new one asks for an end."""

    def __init__(
        self,
        path: str,
        engines: Engines,
        allowances: Allowances,
        *,
        view: Callable[[], dict[str, object]],
        stop: Callable[[], None],
    ) -> None:
        self._path, self._engines, self._allowances, self._view, self._stop = path, engines, allowances, view, stop
        self._writer: asyncio.StreamWriter | None = None
        self._facts: deque[dict[str, Any]] = deque()
        self._seq = 0
        self.dropped = 0
        self._numbers = itertools.count(1)
        self._holds = {hold: (next(self._numbers), key) for key, hold in allowances.holds()}
        self._asked: dict[int, tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        for group in engines.groups.values():
            group.admission = ReportedAdmission(group, self)
        allowances.settled = self._settled

    def give_up(self) -> list[Record]:
        """Nobody follows after all: admission is decided here again. Returns the records that were not taken."""
        now = clock.monotonic()
        self._allowances.settled = None
        for group in self._engines.groups.values():
            leases, waiting = group.admission.calls()
            before = group.admission
            group.admission = own = Admission(queue_size=before.queue_size, queue_timeout=before.queue_timeout)
            for lease in leases:
                own.adopt(lease)
            for ticket in waiting:
                own.offer(ticket, now)
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_result({"op": "alone"})
        return [Record(**fact["record"]) for fact in self._facts if "record" in fact]

    # --- what is told ---------------------------------------------------------------------------------------------
    @property
    def connected(self) -> bool:
        """Whether somebody listens."""
        return self._writer is not None

    def send(self, **message: object) -> None:
        """One line, when somebody listens; what is lost with a connection, the next `hello` says."""
        if self._writer is not None and not self._writer.transport.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    def finished(self, record: Record) -> None:
        """A call ended."""
        self._fact(record=record._asdict())

    def _settled(self, hold: Hold, used: int | None) -> None:
        number, key = self._holds.pop(hold, (0, ""))
        if number:
            self._fact(settle=[number, key, used])

    def _fact(self, **fact: object) -> None:
        if len(self._facts) >= FACTS:
            self._facts.popleft()
            self.dropped += 1
        self._seq += 1
        message = {"op": "fact", "seq": self._seq, **fact}
        self._facts.append(message)
        self.send(**message)

    def pulse(self) -> None:
        """A sign of life, and what the supervisor must know of the calls here."""
        self.send(op="pulse", **self._view())

    async def take(self, key: str, wanted: Demand) -> Hold | None:
        """Allowance for a call. Raises ApiError; None when this process is on its own again."""
        number = next(self._numbers)
        message = {"op": "take", "n": number, "key": key, "demand": list(wanted)}
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = message, answer
        self.send(**message)
        try:
            await asyncio.wait({answer}, timeout=ANSWER)
        except asyncio.CancelledError:
            if answer.done() and answer.result()["op"] == "taken":  # in this very moment: it is held for nobody
                self._fact(settle=[number, key, None])
            raise
        finally:
            del self._asked[number]
        if not answer.done():
            raise ApiError("gateway_draining", "the gateway changes over; try again", retry_after=2)
        reply = answer.result()
        if reply["op"] == "alone":
            return None
        if reply["op"] == "denied":
            raise ApiError(
                reply["code"], reply["message"], param=reply["param"], retry_after=reply["retry_after"],
                final=reply["final"],
            )  # fmt: skip
        hold = self._allowances.adopt(key, reply["tokens"], clock.monotonic())
        self._holds[hold] = number, key
        return hold

    # --- the connection -------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Be connected to whoever listens, until cancelled."""
        while True:
            try:
                connect = asyncio.open_unix_connection(self._path, limit=LINE_LIMIT)
                reader, writer = await asyncio.wait_for(connect, ANSWER)
            except (OSError, asyncio.TimeoutError, TimeoutError):
                await asyncio.sleep(AGAIN)
                continue
            self._writer = writer
            try:
                self._say_all()
                async for line in reader:
                    self._read(json.loads(line))
            except (OSError, ValueError, KeyError, TypeError):
                pass  # it is gone, or speaks in tongues: the next try begins anew
            finally:
                self._writer = None
                writer.close()
            await asyncio.sleep(AGAIN)

    def _say_all(self) -> None:
        calls: list[dict[str, object]] = []
        for group in self._engines.groups.values():
            if isinstance(group.admission, ReportedAdmission):
                calls += group.admission.told()
        holds = [[number, key, hold.tokens, hold.since] for hold, (number, key) in self._holds.items()]
        self.send(op="hello", pid=os.getpid(), holds=holds, calls=calls, events=self._view().get("events"))
        for message in [*self._facts, *(message for message, _ in self._asked.values())]:
            self.send(**message)
        self.pulse()

    def _read(self, message: Mapping[str, Any]) -> None:
        word = message["op"]
        if word == "ack":
            while self._facts and self._facts[0]["seq"] <= message["seq"]:
                self._facts.popleft()
        elif word in ("taken", "denied"):
            asked = self._asked.get(message["n"])
            if asked is not None and not asked[1].done():
                asked[1].set_result(dict(message))
            elif word == "taken":  # its client left meanwhile
                self._fact(settle=[message["n"], "", None])
        elif word == "admit":
            group = self._engines.groups.get(message["engine"])
            if group is not None and isinstance(group.admission, ReportedAdmission):
                now = clock.monotonic()
                group.admission.granted(message["n"], message["replica"], now)
                group.admit_waiting(now)
        elif word == "refuse":
            self._refused(message)
        elif word == "stop":
            self._stop()

    def _refused(self, message: Mapping[str, Any]) -> None:
        for group in self._engines.groups.values():
            waiter = group.waiters.pop(message["n"], None)
            if waiter is not None:
                waiter.refused(ApiError(message["code"], message["reason"], retry_after=message["retry_after"]))

    # --- the end --------------------------------------------------------------------------------------------------
    def all_told(self) -> bool:
        """Whether nothing waits to be acknowledged."""
        return not self._facts

    def leave_behind(self, directory: str) -> int:
        """Put what was not acknowledged into a file for the next process; how many facts. Raises OSError."""
        if self._facts:
            lines = b"".join(json.dumps(fact).encode() + b"\n" for fact in self._facts)
            replace(f"{directory}/{SPOOL}{os.getpid()}", lines, 0o600)
        return len(self._facts)


def left_behind(directory: str) -> list[dict[str, Any]]:
    """The facts that earlier processes could not tell anybody; their files are gone then. Blocks for the disk."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory)):
            if name.startswith(SPOOL):
                with open(f"{directory}/{name}", "rb") as file:
                    for line in file:
                        with contextlib.suppress(ValueError):
                            found.append(json.loads(line))
                os.unlink(f"{directory}/{name}")
    return found
