from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.policy.admission import (
    AUTO_LIMIT,
    Admission,
    Lease,
    Outcome,
    Refuse,
    Ticket,
    Wait,
    limit_of,
)


def ticket(number: int, arrived: float = 0.0) -> Ticket:
    return Ticket(number, "key", arrived)


def made(limit: int = 1, *, queue: int = 2, timeout: float = 10.0, replicas: int = 1) -> Admission:
    admission = Admission(queue_size=queue, queue_timeout=timeout)
    for number in range(replicas):
        admission.set_replica(f"r{number}", limit=limit, serving=True)
    return admission


def test_admit_wait_refuse() -> None:
    admission = made()
    lease = admission.offer(ticket(1), 0)
    assert isinstance(lease, Lease) and lease.replica == "r0"
    assert admission.offer(ticket(2), 0) == Wait(1)
    assert admission.offer(ticket(3), 0) == Wait(2)
    refused = admission.offer(ticket(4), 0)
    assert isinstance(refused, Refuse) and refused.code == "queue_full" and 1 <= refused.retry_after <= 120
    admission.release(lease, Outcome.OK, 1)
    assert [lease.ticket.number for lease in admission.admit_waiting(1)] == [2]
    assert (admission.waiting, admission.in_flight()) == (1, 1)


def test_nobody_overtakes_one_who_waits() -> None:
    admission = made(2)
    admission.set_replica("r0", limit=0, serving=True)
    assert admission.offer(ticket(1), 0) == Wait(1)
    admission.set_replica("r0", limit=2, serving=True)
    assert admission.offer(ticket(2), 0) == Wait(2)
    assert [lease.ticket.number for lease in admission.admit_waiting(0)] == [1, 2]


def test_a_long_wait_ends() -> None:
    admission = made(timeout=5)
    admission.offer(ticket(1), 0)
    admission.offer(ticket(2, 1.0), 1)
    admission.offer(ticket(3, 3.0), 3)
    assert admission.overdue(5.9) == []
    late = admission.overdue(6)
    assert [(t.number, r.code) for t, r in late] == [(2, "queue_timeout")]
    assert admission.waiting == 1


def test_a_lease_comes_back_once() -> None:
    admission = made()
    lease = admission.offer(ticket(1), 0)
    assert isinstance(lease, Lease)
    admission.release(lease, Outcome.IGNORED, 0)
    with pytest.raises(ValueError, match="not out"):
        admission.release(lease, Outcome.OK, 0)


def test_a_lease_of_a_replica_that_was_removed_comes_back() -> None:
    admission = made()
    lease = admission.offer(ticket(1), 0)
    assert isinstance(lease, Lease)
    admission.drop_replica("r0")
    admission.release(lease, Outcome.OK, 0)
    assert admission.in_flight() == 0 and admission.limit("r0") == 0


def test_a_call_moves_to_another_replica() -> None:
    admission = made(replicas=2)
    lease = admission.offer(ticket(1), 0)
    assert isinstance(lease, Lease)
    moved = admission.move(lease, 1, lease.replica)
    assert moved and moved.replica != lease.replica
    assert admission.in_flight(lease.replica) == 0 and admission.in_flight(moved.replica) == 1
    with pytest.raises(ValueError):
        admission.release(lease, Outcome.OK, 2)
    admission.release(moved, Outcome.OK, 2)
    full = made(replicas=2)
    leases = [full.offer(ticket(n), 0) for n in range(2)]
    assert isinstance(leases[0], Lease) and full.move(leases[0], 0, leases[0].replica) is None
    full.check()


def test_the_wait_follows_the_rate_of_releases() -> None:
    admission = made(100, queue=5)
    leases = [admission.offer(ticket(n), 0) for n in range(20)]
    for number, lease in enumerate(leases):
        assert isinstance(lease, Lease)
        admission.release(lease, Outcome.OK, number * 3.0)
    assert admission.expected_wait(2) == 6
    assert admission.expected_wait(1000) == 120
    assert Admission(queue_size=1, queue_timeout=1).expected_wait(0) == 1


@pytest.mark.parametrize(
    ("configured", "batch", "limit"),
    [(7, 64, 7), ("auto", 64, 64), ("auto", None, AUTO_LIMIT), ("auto", "64", AUTO_LIMIT), ("auto", True, AUTO_LIMIT),
     ("auto", 0, AUTO_LIMIT)],
)  # fmt: skip
def test_limits(configured: int | str, batch: object, limit: int) -> None:
    assert limit_of(configured, batch) == limit


class Walk(RuleBasedStateMachine):
    """Any order of events keeps the laws, and ends with nothing out."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = made(2, queue=3, replicas=2)
        self.now, self.number = 0.0, 0
        self.out: dict[int, Lease] = {}
        self.queued: dict[int, Ticket] = {}

    def admitted(self) -> None:
        for lease in self.admission.admit_waiting(self.now):
            del self.queued[lease.ticket.number]
            self.out[lease.ticket.number] = lease

    @rule()
    def arrive(self) -> None:
        self.number += 1
        new = ticket(self.number, self.now)
        decision = self.admission.offer(new, self.now)
        if isinstance(decision, Lease):
            self.out[self.number] = decision
        elif isinstance(decision, Wait):
            self.queued[self.number] = new

    @precondition(lambda self: self.out)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def finish(self, data: st.DataObject, outcome: Outcome) -> None:
        number = data.draw(st.sampled_from(sorted(self.out)))
        self.admission.release(self.out.pop(number), outcome, self.now)
        self.admitted()

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        lease = self.out[data.draw(st.sampled_from(sorted(self.out)))]
        moved = self.admission.move(lease, self.now, lease.replica)
        if moved is not None:
            self.out[lease.ticket.number] = moved
            self.admitted()

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.queued)))
        assert self.admission.leave(self.queued.pop(number))
        assert not self.admission.leave(ticket(number))

    @rule(seconds=st.floats(0, 8))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for late, _ in self.admission.overdue(self.now):
            del self.queued[late.number]

    @rule(name=st.sampled_from(["r0", "r1"]), limit=st.integers(0, 3), serving=st.booleans())
    def change(self, name: str, limit: int, serving: bool) -> None:
        if name == "r1" and not serving:
            for number in [n for n, lease in self.out.items() if lease.replica == "r1"]:
                self.admission.release(self.out.pop(number), Outcome.DROPPED, self.now)
            self.admission.drop_replica("r1")
        else:
            self.admission.set_replica(name, limit=limit, serving=serving)
        self.admitted()

    @invariant()
    def laws(self) -> None:
        self.admission.check()
        assert self.admission.in_flight() == len(self.out)
        assert self.admission.waiting == len(self.queued)

    def teardown(self) -> None:
        for lease in self.out.values():
            self.admission.release(lease, Outcome.OK, self.now)
        for left in self.queued.values():
            self.admission.leave(left)
        assert (self.admission.in_flight(), self.admission.waiting) == (0, 0)
        self.admission.check()


TestWalk = Walk.TestCase


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 30))
def test_nobody_waits_while_there_is_room(limits: list[int], calls: int) -> None:
    admission = Admission(queue_size=100, queue_timeout=1)
    for number, limit in enumerate(limits):
        admission.set_replica(f"r{number}", limit=limit, serving=True)
    for number in range(calls):
        admission.offer(ticket(number), 0)
    assert admission.in_flight() == min(calls, sum(limits))
    for number, limit in enumerate(limits):
        assert admission.in_flight(f"r{number}") <= limit
