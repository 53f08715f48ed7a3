from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given, settings
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
from appliance.policy.flagnumbers import batch_limit
from appliance.quantity import UNKNOWN


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


def test_a_replica_that_comes_back_counts_what_is_out_on_it() -> None:
    admission = made()
    lease = admission.offer(ticket(1), 0)
    assert isinstance(lease, Lease)
    admission.drop_replica("r0")
    admission.set_replica("r0", limit=1, serving=True)
    assert admission.offer(ticket(2), 0) == Wait(1)
    admission.check()
    admission.release(lease, Outcome.OK, 1)
    admission.check()
    assert [lease.ticket.number for lease in admission.admit_waiting(1)] == [2]


def test_another_process_s_calls_are_taken_over_above_the_limit() -> None:
    before = made(2)
    leases = [before.offer(ticket(number), 0) for number in (1, 2, 3)][:2]
    taken, waiting = before.calls()
    assert taken == leases and waiting == [ticket(3)]
    after = made(1)
    for lease in taken:
        after.adopt(lease)
    assert after.offer(waiting[0], 0) == Wait(1)
    after.release(taken[0], Outcome.OK, 1)
    assert after.admit_waiting(1) == [], "one is out where one may be"
    after.release(taken[1], Outcome.OK, 1)
    assert [lease.ticket.number for lease in after.admit_waiting(1)] == [3]
    after.check()


def test_the_wait_follows_the_rate_of_releases() -> None:
    admission = made(1, queue=1000)
    assert admission.expected_wait(7, 0) is UNKNOWN
    out = admission.offer(ticket(0), 0)
    for number in range(1, 20):
        assert isinstance(out, Lease) and admission.offer(ticket(number), number * 3.0 - 1) == Wait(1)
        admission.release(out, Outcome.IGNORED if number % 2 else Outcome.OK, number * 3.0)
        (out,) = admission.admit_waiting(number * 3.0)
    assert admission.expected_wait(2, 57.0) == pytest.approx(6.0)
    for number in range(20, 1020):
        admission.offer(ticket(number), 57.0)
    refused = admission.offer(ticket(1020), 57.0)
    assert isinstance(refused, Refuse) and refused.retry_after == 120
    assert refused.reason.endswith("it would be number 1001, for about 3003 s")


def test_a_refusal_follows_the_order_and_not_the_arrival() -> None:
    admission = made(1, queue=8, timeout=5)
    out = admission.offer(ticket(0), 0)
    for number in range(1, 5):
        assert isinstance(out, Lease)
        admission.offer(ticket(number), number * 2.0 - 2)
        admission.release(out, Outcome.OK, number * 2.0)
        (out,) = admission.admit_waiting(number * 2.0)
    for number in range(5, 13):
        admission.offer(Ticket(number, "a", 8.0, 100), 8)
    found = admission.offer(Ticket(13, "b", 8.0, 100), 8)
    assert isinstance(found, Wait) and found.position == 2 and found.displaced is not None
    assert found.displaced[1].reason.endswith("it would be number 9, for about 18 s")
    assert found.displaced[1].retry_after == 18
    late = {call.number: refusal for call, refusal in admission.overdue(14)}
    assert set(late) == {*range(5, 12), 13}
    assert all(refusal.retry_after <= 4 and "number 1," in refusal.reason for refusal in late.values())


def test_calls_that_an_engine_failed_say_nothing_of_its_pace() -> None:
    admission = made(1, queue=1)
    for number in range(50):
        lease = admission.offer(ticket(number), number * 0.01)
        assert isinstance(lease, Lease)
        admission.release(lease, Outcome.DROPPED, number * 0.01 + 0.005)
    assert admission.expected_wait(1, 1.0) is UNKNOWN


@settings(max_examples=30)
@given(st.integers(1, 2**32), st.integers(1, 24))
def test_what_a_call_was_told_comes_true(seed: int, limit: int) -> None:
    """Two keys, calls of half to one and a half seconds; nobody comes or leaves meanwhile."""
    chance = random.Random(seed)
    admission = made(limit, queue=1000, timeout=1e9)
    ends: list[tuple[float, int, Lease]] = []
    let_in: dict[int, float] = {}

    def begin(lease: Lease, now: float) -> None:
        let_in[lease.ticket.number] = now
        heapq.heappush(ends, (now + chance.uniform(0.5, 1.5), lease.ticket.number, lease))

    def end() -> float:
        now, _, lease = heapq.heappop(ends)
        admission.release(lease, Outcome.OK, now)
        for admitted in admission.admit_waiting(now):
            begin(admitted, now)
        return now

    now, numbers = 0.0, iter(range(10_000))
    for count in (10 * limit, 200):
        calls = [Ticket(next(numbers), chance.choice("ab"), now, chance.randrange(50, 500)) for _ in range(count)]
        for call in calls:
            decision = admission.offer(call, now)
            if isinstance(decision, Lease):
                begin(decision, now)
        while admission.waiting > (limit if count != 200 else 200):
            now = end()
    waiting = [call for call in calls if call.number not in let_in]
    told = {call.number: admission.expected_wait(admission.position(call), now) for call in waiting}
    asked_at = now
    while ends:
        end()
    for call in waiting:
        wait, expected = let_in[call.number] - asked_at, told[call.number]
        assert expected is not UNKNOWN and abs(wait - expected) <= 0.3 * wait + 1.5, (wait, expected)


@pytest.mark.parametrize(
    ("configured", "batch", "limit"),
    [(7, 64, 7), ("auto", 64, 64), ("auto", None, AUTO_LIMIT), ("auto", "64", 64), ("auto", "0.1K", 102),
     ("auto", "many", AUTO_LIMIT), ("auto", True, AUTO_LIMIT), ("auto", 0, AUTO_LIMIT), ("auto", 64.0, AUTO_LIMIT)],
)  # fmt: skip
def test_limits(configured: int | str, batch: object, limit: int) -> None:
    assert limit_of(configured, batch_limit({"max_num_seqs": batch})) == limit


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
