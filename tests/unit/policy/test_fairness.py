from __future__ import annotations

import heapq
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config.model import PRIORITIES, Priority
from appliance.policy.admission import Admission, Lease, Outcome, Refuse, Ticket, Wait
from appliance.policy.fairness import FLOORS, FairQueue


def ticket(number: int, key: str, weight: int = 1, priority: Priority = "standard") -> Ticket:
    return Ticket(number, key, 0.0, weight, priority)


def order(queue: FairQueue[Ticket], count: int | None = None) -> list[Ticket]:
    """The next calls, taken out as they are admitted."""
    found: list[Ticket] = []
    while len(queue) and (count is None or len(found) < count):
        call = queue.next()
        queue.admitted(call)
        queue.remove(call.number)
        found.append(call)
    return found


def keys_of(calls: list[Ticket]) -> str:
    return "".join(call.key for call in calls)


def test_within_a_key_the_first_comes_first() -> None:
    queue: FairQueue[Ticket] = FairQueue()
    for number in range(20):
        queue.push(ticket(number, "a", 1 + number % 3))
    assert [call.number for call in order(queue)] == list(range(20))


def test_keys_take_turns_by_tokens_and_not_by_calls() -> None:
    queue: FairQueue[Ticket] = FairQueue()
    for number in range(6):
        queue.push(ticket(number, "a", 300))
    for number in range(6, 18):
        queue.push(ticket(number, "b", 100))
    assert keys_of(order(queue)) == "abbbabbbabbbabbbaa"


def test_one_that_comes_back_neither_owes_nor_has_saved() -> None:
    queue: FairQueue[Ticket] = FairQueue()
    for number in range(50):  # alone, nobody waited for it
        queue.push(ticket(number, "a", 100))
        order(queue)
    for number in range(50, 54):
        queue.push(ticket(number, "a" if number % 2 else "b", 100))
    assert keys_of(order(queue)) == "baba"
    for number in range(54, 60):
        queue.push(ticket(number, "c" if number < 57 else "a", 100))
    assert "a" in keys_of(order(queue))[:3]  # and c had not saved up fifty turns


def test_a_call_that_used_less_than_it_reserved_brings_the_next_turn_sooner() -> None:
    queue: FairQueue[Ticket] = FairQueue()
    for number in range(4):
        queue.push(ticket(number, "a", 4000))
    for number in range(4, 8):
        queue.push(ticket(number, "b", 500))
    first = order(queue, 2)
    assert keys_of(first) == "ab"
    queue.correct(first[0], 200)
    assert keys_of(order(queue, 1)) == "a"


def test_the_higher_class_goes_first_and_the_lower_ones_have_floors() -> None:
    queue: FairQueue[Ticket] = FairQueue()
    number = 0
    for name in PRIORITIES:
        for _ in range(2000):
            queue.push(ticket(number, name, 100, name))
            number += 1
    assert queue.next().priority == "interactive"
    calls = order(queue, 2000)
    for name in ("standard", "batch"):
        share = sum(call.priority == name for call in calls) / len(calls)
        assert FLOORS[name] - 0.01 <= share <= FLOORS[name] + 0.01, (name, share)


def test_a_class_that_waits_alone_needs_no_floor() -> None:
    queue: FairQueue[Ticket] = FairQueue()
    for number in range(5):
        queue.push(ticket(number, "a", 10, "batch"))
    assert [call.number for call in order(queue)] == [0, 1, 2, 3, 4]
    queue.push(ticket(5, "a", 0, "batch"))
    queue.push(ticket(6, "a", 0, "interactive"))
    assert order(queue)[0].number == 6


def test_a_full_queue_makes_room_for_a_key_with_few_places() -> None:
    admission = Admission(queue_size=4, queue_timeout=60)
    admission.set_replica("r", limit=1, serving=True)
    assert isinstance(admission.offer(ticket(0, "a"), 0), Lease)
    for number in range(1, 5):
        admission.offer(ticket(number, "a"), 0)
    assert isinstance(admission.offer(ticket(5, "a"), 0), Refuse)
    for number, gone in ((6, 4), (7, 3)):
        found = admission.offer(ticket(number, "b"), 0)
        assert isinstance(found, Wait) and found.displaced is not None
        assert (found.displaced[0].number, found.displaced[1].code) == (gone, "queue_full")
    assert isinstance(admission.offer(ticket(8, "b"), 0), Refuse)  # two places each: nobody has to go
    assert admission.waiting == 4
    admission.check()


calls = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 900), st.sampled_from(PRIORITIES), st.sampled_from("pnnr")),
    max_size=80,
)


@given(calls)
def test_every_call_comes_out_once_and_none_is_forgotten(steps: list[tuple[str, int, Priority, str]]) -> None:
    queue: FairQueue[Ticket] = FairQueue()
    alive: set[int] = set()
    for number, (key, weight, priority, step) in enumerate(steps):
        queue.push(ticket(number, key, weight, priority))
        alive.add(number)
        if step == "n":
            found = order(queue, 1)[0]
            alive.remove(found.number)
            queue.correct(found, weight)
        elif step == "r":
            gone = queue.remove(min(alive))
            assert gone is not None and queue.remove(gone.number) is None
            alive.remove(gone.number)
        assert {call.number for call in queue} == alive and len(queue) == len(alive)
    assert {call.number for call in order(queue)} == alive and not len(queue)


@given(calls)
def test_a_position_is_the_place_in_the_order_of_admissions(steps: list[tuple[str, int, Priority, str]]) -> None:
    queue: FairQueue[Ticket] = FairQueue()
    for number, (key, weight, priority, step) in enumerate(steps):
        new = ticket(number, key, weight, priority)
        expected = queue.position_of_new(new)
        assert number not in queue
        queue.push(new)
        assert queue.position(number) == expected
        if step == "n":
            queue.correct(order(queue, 1)[0], weight // 2)
        elif step == "r":
            queue.remove(next(iter(queue)).number)
    told = {call.number: queue.position(call.number) for call in queue}
    assert told == {call.number: place for place, call in enumerate(order(queue), 1)}


@given(
    st.lists(st.integers(1, 1000), min_size=40, max_size=40), st.lists(st.integers(1, 1000), min_size=40, max_size=40)
)
def test_two_keys_that_wait_never_part_by_more_than_a_call(first: list[int], second: list[int]) -> None:
    """The law of start-time fair queueing: over any stretch in which both wait, within the sum of two largest calls."""
    queue: FairQueue[Ticket] = FairQueue()
    for number, weight in enumerate(first):
        queue.push(ticket(number, "a", weight))
    for number, weight in enumerate(second, len(first)):
        queue.push(ticket(number, "b", weight))
    served = {"a": 0, "b": 0}
    left = {"a": len(first), "b": len(second)}
    while left["a"] and left["b"]:
        (call,) = order(queue, 1)
        served[call.key] += call.weight
        left[call.key] -= 1
        assert abs(served["a"] - served["b"]) <= max(first) + max(second)


# --- the law, simulated -----------------------------------------------------------------------------------------------
SLOTS, SPEED = 8, 1000.0  # places of the engine, tokens a second of each


class Simulation:
    """An engine behind an admission; `keyed` False gives all calls one key, so that they are served as they come."""

    def __init__(self, chance: random.Random, *, keyed: bool = True) -> None:
        self.chance, self.keyed = chance, keyed
        self.chance_of_b = random.Random(chance.randrange(2**32))  # B's calls are the same, whatever A's are
        self.admission = Admission(queue_size=2000, queue_timeout=1e9)
        self.admission.set_replica("r", limit=SLOTS, serving=True)
        self.ends: list[tuple[float, int, Lease]] = []
        self.waits: dict[str, list[float]] = {"a": [], "b": []}
        self.owners: dict[int, str] = {}
        self.refill_until = 0.0  # until then a call of A's that ends is followed by another one

    def offer(self, key: str, weight: int, now: float) -> None:
        number = len(self.owners)
        self.owners[number] = key
        decision = self.admission.offer(Ticket(number, key if self.keyed else "all", now, weight), now)
        if isinstance(decision, Lease):
            self.begin(decision, now)

    def begin(self, lease: Lease, now: float) -> None:
        call = lease.ticket
        self.waits[self.owners[call.number]].append(now - call.arrived)
        heapq.heappush(self.ends, (now + call.weight / SPEED, call.number, lease))

    def long(self, now: float) -> None:
        self.offer("a", self.chance.randrange(6000, 10_000), now)

    def advance(self, until: float) -> None:
        while self.ends and self.ends[0][0] <= until:
            now, number, lease = heapq.heappop(self.ends)
            self.admission.release(lease, Outcome.OK, now)
            for admitted in self.admission.admit_waiting(now):
                self.begin(admitted, now)
            if self.owners[number] == "a" and now < self.refill_until:
                self.long(now)

    def median_of_b(self, long: int) -> float:
        """B's median queue time for sixty short calls, beside `long` calls of A's that are there first."""
        for _ in range(long):
            self.long(0.0)
        now = 5.0
        for _ in range(60):
            now += self.chance_of_b.expovariate(0.5)
            self.advance(now)
            self.offer("b", self.chance_of_b.randrange(200, 400), now)
        self.refill_until = 0.0
        self.advance(1e12)
        self.admission.check()
        assert self.admission.in_flight() == self.admission.waiting == 0 and len(self.waits["b"]) == 60
        return median(self.waits["b"])


@pytest.mark.parametrize("seed", range(1, 7))
def test_five_hundred_long_prompts_do_not_delay_another_keys_short_ones(seed: int) -> None:
    mine = Simulation(random.Random(seed)).median_of_b(500)
    # The fair share: A keeps the engine just as busy, but never has more than one call waiting, as B has.
    modest = Simulation(random.Random(seed))
    modest.refill_until = 1e9
    fair = modest.median_of_b(SLOTS + 1)
    fifo = Simulation(random.Random(seed), keyed=False).median_of_b(500)
    assert 0 < mine <= 2 * fair, (mine, fair)
    assert fifo > 10 * mine  # what the order is for
