"""Admission of calls to the replicas of one engine: admit, wait or refuse.

A call offered is admitted to a replica with room, put into a bounded queue, or refused with a reason; an admitted call
holds a lease that is released exactly once, with an outcome. `fairness` says who is next. A full queue makes room for a
key with few places by turning away the last call of the key with most.

Laws, kept after every step: in flight of a replica = leases out on it; a ticket is queued, leased or gone, never two
of them; nobody waits while a serving replica has room.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from appliance.config.model import Priority
from appliance.quantity import UNKNOWN, Maybe

from .balance import least_outstanding
from .drain import DrainRate
from .fairness import FairQueue

AUTO_LIMIT = 256  # vLLM's own default of max_num_seqs: more calls would only queue inside the engine
RETRY_MIN, RETRY_MAX = 1.0, 120.0  # OpenAI's SDK does not retry at all when asked to wait longer
UNMEASURED = 1.0  # seconds a position, for the hint of a refusal while nothing was measured


class Outcome(enum.Enum):
    """What an admitted call says of its replica."""

    OK = "ok"
    IGNORED = "ignored"  # the caller left, or was at fault: says nothing of the replica
    DROPPED = "dropped"  # the replica failed it


class Ticket(NamedTuple):
    """One call before admission. `number` is unique; `weight` is its cost in tokens, reserved before they are used."""

    number: int
    key: str
    arrived: float
    weight: int = 0
    priority: Priority = "standard"


class Lease(NamedTuple):
    """The right of one call to run on one replica."""

    ticket: Ticket
    replica: str
    admitted: float


@dataclass(frozen=True, slots=True)
class Wait:
    """The call is queued, and `position` is its place in the order; `displaced` had to go for it, and is to be told."""

    position: int
    displaced: tuple[Ticket, Refuse] | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """The call is not let in; `code` is one of the API's codes."""

    code: str
    reason: str
    retry_after: float


@dataclass(slots=True)
class _Replica:
    name: str
    limit: int
    serving: bool
    in_flight: int = 0
    suspect: bool = False


def limit_of(configured: int | str, batch: int | None) -> int:
    """Calls that may be in flight at one replica: the configured number, or for "auto" what its batch can hold."""
    if isinstance(configured, int):
        return configured
    return AUTO_LIMIT if batch is None else batch


class Admission:
    """The queue and the leases of one engine. One caller, one thread; `now` is monotonic seconds."""

    def __init__(self, *, queue_size: int, queue_timeout: float) -> None:
        self.queue_size = queue_size
        self.queue_timeout = queue_timeout
        self._replicas: dict[str, _Replica] = {}
        self._queue: FairQueue[Ticket] = FairQueue()
        self._leases: dict[int, Lease] = {}
        self._drain = DrainRate()
        self._turn = 0

    # --- replicas ------------------------------------------------------------------------------------------------
    def set_replica(self, name: str, *, limit: int, serving: bool, suspect: bool = False) -> None:
        """Add a replica or change it; leases on it stay. Follow with `admit_waiting`."""
        known = self._replicas.get(name)
        if known is None:
            held = sum(lease.replica == name for lease in self._leases.values())
            self._replicas[name] = _Replica(name, limit, serving, held, suspect)
        else:
            known.limit, known.serving, known.suspect = limit, serving, suspect

    def drop_replica(self, name: str) -> None:
        """Forget a replica of the configuration; leases on it may still be released."""
        self._replicas.pop(name, None)

    # --- calls ---------------------------------------------------------------------------------------------------
    def offer(self, ticket: Ticket, now: float) -> Lease | Wait | Refuse:
        """Admit a call, queue it, or refuse it."""
        queue, drain = self._queue, self._drain
        if not queue.calls:
            replica = self._pick()
            lease = self._admit(ticket, replica, now) if replica is not None else None
            if replica is None or replica.in_flight >= replica.limit or drain.full:
                drain.mark(self._is_full(), now)
            if lease is not None:
                return lease
        if len(queue) < self.queue_size:
            queue.push(ticket)
            return Wait(queue.position(ticket.number))
        displaced = queue.greediest(ticket.key)
        if displaced is None:
            return self._full(ticket, now)
        queue.remove(displaced.number)
        queue.push(ticket)
        return Wait(queue.position(ticket.number), (displaced, self._full(displaced, now)))

    def _full(self, ticket: Ticket, now: float) -> Refuse:
        text = f"{self.queue_size} requests are already waiting for this model"
        if not self.queue_size:
            text = "this model has no room, and no request may wait for it"
        return Refuse("queue_full", *self._come_back(ticket, text, now))

    def _come_back(self, ticket: Ticket, text: str, now: float) -> tuple[str, float]:
        """The sentence and the hint of a refusal: where the call would stand if it came now, and for how long."""
        position = self._queue.position_of_new(ticket)
        wait = self.expected_wait(position, now)
        if wait is UNKNOWN:
            return f"{text}; it would be number {position}", _hint(position * UNMEASURED)
        return f"{text}; it would be number {position}, for about {ceil(wait)} s", _hint(wait)

    def admit_waiting(self, now: float) -> list[Lease]:
        """Leases for those who wait and now have room, in order; call it after every change."""
        admitted = []
        queue = self._queue
        while queue.calls:
            replica = self._pick()
            if replica is None:
                break
            lease = self._admit(queue.next(), replica, now)
            queue.remove(lease.ticket.number)
            admitted.append(lease)
        self._drain.mark(self._is_full(), now)
        return admitted

    def leave(self, ticket: Ticket) -> bool:
        """A waiting call goes away; False when it was not waiting."""
        return self._queue.remove(ticket.number) is not None

    def overdue(self, now: float) -> list[tuple[Ticket, Refuse]]:
        """Calls that waited too long, taken out of the queue."""
        late = [ticket for ticket in self._queue if now - ticket.arrived >= self.queue_timeout]
        for ticket in late:
            self._queue.remove(ticket.number)
        text = f"no room within {self.queue_timeout:g} s for this model"
        return [(ticket, Refuse("queue_timeout", *self._come_back(ticket, text, now))) for ticket in late]

    def release(self, lease: Lease, outcome: Outcome, now: float) -> None:
        """Give a lease back; a second time is a fault of the caller. Follow with `admit_waiting`."""
        if self._leases.get(lease.ticket.number) is not lease:
            raise ValueError(f"lease {lease.ticket.number} is not out")
        del self._leases[lease.ticket.number]
        replica = self._replicas.get(lease.replica)
        if replica is not None:
            replica.in_flight -= 1
        if self._drain.full:
            if outcome is not Outcome.DROPPED:
                self._drain.released(now)
            self._drain.mark(self._is_full(), now)

    def correct(self, ticket: Ticket, used: int) -> None:
        """An admitted call used another number of tokens than its weight: its key's turn comes sooner or later."""
        self._queue.correct(ticket, used)

    def adopt(self, lease: Lease) -> Lease:
        """Count a lease that was given elsewhere, whatever the limit says."""
        self._leases[lease.ticket.number] = lease
        known = self._replicas.get(lease.replica)
        if known is not None:
            known.in_flight += 1
        return lease

    def calls(self) -> tuple[list[Lease], list[Ticket]]:
        """The leases that are out, and the calls that wait, by arrival: what another process needs to go on."""
        return list(self._leases.values()), list(self._queue)

    def move(self, lease: Lease, now: float, avoid: str) -> Lease | None:
        """Another lease for the same call, on a replica other than `avoid`; None and unchanged when none has room."""
        other = self._pick(avoid)
        if other is None or self._leases.get(lease.ticket.number) is not lease:
            return None
        old = self._replicas.get(lease.replica)
        if old is not None:
            old.in_flight -= 1
        other.in_flight += 1
        moved = Lease(lease.ticket, other.name, now)
        self._leases[lease.ticket.number] = moved
        return moved

    # --- readings ------------------------------------------------------------------------------------------------
    @property
    def waiting(self) -> int:
        """Calls in the queue."""
        return len(self._queue)

    def in_flight(self, replica: str | None = None) -> int:
        """Leases out on one replica, or on all."""
        if replica is not None:
            known = self._replicas.get(replica)
            return known.in_flight if known else 0
        return len(self._leases)

    def limit(self, replica: str) -> int:
        """The present limit of a replica; 0 for one that is not known."""
        known = self._replicas.get(replica)
        return known.limit if known else 0

    def position(self, ticket: Ticket) -> int:
        """Where a waiting call stands in the order of admissions, from 1."""
        return self._queue.position(ticket.number)

    def expected_wait(self, position: int, now: float) -> Maybe[float]:
        """Seconds until a call at this position is admitted, from the measured rate; UNKNOWN before there is one."""
        interval = self._drain.interval(now)
        return UNKNOWN if interval is UNKNOWN else position * interval

    def check(self) -> None:
        """The laws, executed; raises AssertionError."""
        counted: dict[str, int] = {}
        for lease in self._leases.values():
            counted[lease.replica] = counted.get(lease.replica, 0) + 1
        for name, replica in self._replicas.items():
            assert replica.in_flight == counted.get(name, 0), f"{name}: {replica.in_flight} in flight"
        assert not any(number in self._queue for number in self._leases), "a ticket is queued and leased"
        assert len(self._queue) <= self.queue_size

    # --- inside --------------------------------------------------------------------------------------------------
    def _admit(self, ticket: Ticket, replica: _Replica, now: float) -> Lease:
        """A lease for a call on a replica with room."""
        self._queue.admitted(ticket)
        replica.in_flight += 1
        lease = self._leases[ticket.number] = Lease(ticket, replica.name, now)
        return lease

    def _pick(self, avoid: str | None = None) -> _Replica | None:
        """The replica that takes the next call; None without room."""
        self._turn += 1
        if len(self._replicas) == 1:  # as on most machines
            (only,) = self._replicas.values()
            return only if only.serving and only.in_flight < only.limit and only.name != avoid else None
        loads = [replica for replica in self._replicas.values() if replica.serving and replica.name != avoid]
        return least_outstanding(loads, self._turn)

    def _is_full(self) -> bool:
        """Whether replicas serve, and none has room."""
        serving = False
        for replica in self._replicas.values():
            if replica.serving:
                if replica.in_flight < replica.limit:
                    return False
                serving = True
        return serving


def _hint(seconds: float) -> float:
    return float(ceil(min(max(seconds, RETRY_MIN), RETRY_MAX)))
