"""A simulated vLLM under an offered load: continuous batching with chunked prefill, a KV cache that can be too small.

Time is simulated; a run of minutes takes a fraction of a second. A step's duration grows with the batch, with the
prefill tokens in it and with the KV tokens that attention reads; decoding goes before prefill in a step's budget; a
cache that is full preempts the newest request, whose tokens are computed again. Calls go through the gateway's own
`Admission`; what the limit learns is what the gateway would tell it: first-token times at the tick that sees them, and
a reading of the engine's metrics every second.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from appliance.policy.admission import Admission, Lease, Outcome, Refuse, Ticket
from appliance.policy.concurrency import ConcurrencyLimit, Reading
from appliance.policy.firsttokens import first_token_target

BYTES_PER_TOKEN = 4
READ_EVERY = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What an engine can do. Seconds, tokens."""

    base: float = 0.010  # reading the weights once a step
    per_sequence: float = 0.00005
    per_prefill: float = 0.000045  # 22,000 prompt tokens a second at most
    per_kv: float = 4e-8
    kv_tokens: int = 150_000
    budget: int = 2048  # max_num_batched_tokens
    max_num_seqs: int = 256
    prompt: tuple[float, float, int] = (600, 0.9, 6000)  # median, sigma and largest of a lognormal
    answer: tuple[float, float, int] = (200, 0.6, 1000)
    long: tuple[float, int] = (0.0, 0)  # share of calls whose prompt has so many tokens instead


@dataclass(slots=True)
class Request:
    """One call in the engine."""

    number: int
    prompt: int
    answer: int
    lease: Lease | None = None
    sent: float = 0.0
    first: float | None = None
    told: bool = False
    generated: int = 0  # as of the last time it left the batch
    since: int = 0  # number of the step in which it began to decode
    computed: int = 0  # tokens of prompt and lost answer that are in the cache
    stay: int = 0  # which of its stays in the batch this is

    @property
    def size(self) -> int:
        return self.prompt * BYTES_PER_TOKEN


@dataclass(slots=True)
class Engine:
    """The batch, the queue inside the engine, and the cache."""

    model: Model
    speed: float = 1.0  # of the step
    kv_share: float = 1.0  # of the cache that there is
    waiting: deque[Request] = field(default_factory=deque)
    prefilling: list[Request] = field(default_factory=list)
    decoding: dict[int, Request] = field(default_factory=dict)
    ends: list[tuple[int, int, int]] = field(default_factory=list)
    steps: int = 0
    kv: int = 0
    preemptions: int = 0

    @property
    def capacity(self) -> int:
        return int(self.model.kv_tokens * self.kv_share)

    def reading(self) -> Reading:
        return Reading(
            waiting=float(len(self.waiting)),
            kv_usage=min(self.kv / self.capacity, 1.0),
            preemptions=float(self.preemptions),
        )

    def busy(self) -> bool:
        return bool(self.waiting or self.prefilling or self.decoding)

    def step(self) -> tuple[float, list[Request], list[Request]]:
        """Seconds of one step, who got a first token in it, and who is done."""
        model = self.model
        self.steps += 1
        while self.decoding and self.kv + len(self.decoding) > self.capacity:
            self._preempt()
        batch = len(self.decoding)
        tokens = 0
        begun: list[Request] = []
        for request in [*self.prefilling]:
            tokens += self._prefill(request, model.budget - batch - tokens, begun)
        while self.waiting and tokens + batch < model.budget:
            if len(self.prefilling) + len(self.decoding) + len(begun) >= model.max_num_seqs:
                break
            request = self.waiting[0]
            if self.kv + batch + request.prompt + request.generated > self.capacity * 0.99:
                break
            self.waiting.popleft()
            self.prefilling.append(request)
            tokens += self._prefill(request, model.budget - batch - tokens, begun)
        duration = model.base + model.per_sequence * batch + model.per_prefill * tokens + model.per_kv * self.kv
        self.kv += batch
        done = self._finish()
        fresh = []
        for request in begun:
            if not request.generated:
                fresh.append(request)
            request.since = self.steps - 1
            self.decoding[request.number] = request
            left = request.answer - request.generated
            heapq.heappush(self.ends, (request.since + left, request.number, request.stay))
        return duration / self.speed, fresh, done

    def _prefill(self, request: Request, room: int, begun: list[Request]) -> int:
        chunk = min(max(room, 0), request.prompt + request.generated - request.computed)
        request.computed += chunk
        self.kv += chunk
        if chunk and request.computed == request.prompt + request.generated:
            self.prefilling.remove(request)
            begun.append(request)
        return chunk

    def _finish(self) -> list[Request]:
        done = []
        while self.ends and self.ends[0][0] <= self.steps:
            _, number, stay = heapq.heappop(self.ends)
            request = self.decoding.get(number)
            if request is None or request.stay != stay:
                continue
            del self.decoding[number]
            self.kv -= request.computed + self.steps - request.since
            done.append(request)
        return done

    def _preempt(self) -> None:
        number = next(reversed(self.decoding))
        request = self.decoding.pop(number)
        made = self.steps - 1 - request.since
        self.kv -= request.computed + made
        request.generated += made
        request.computed = 0
        request.stay += 1
        self.preemptions += 1
        self.waiting.appendleft(request)


@dataclass(slots=True)
class Run:
    """What a run showed; `firsts` are (sent, seconds over target), `goods` are (ended, tokens of an answer in time)."""

    firsts: list[tuple[float, float]] = field(default_factory=list)
    goods: list[tuple[float, int]] = field(default_factory=list)
    finished: list[float] = field(default_factory=list)
    limits: list[tuple[float, int, str]] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    def goodput(self, begin: float, end: float) -> float:
        """Tokens a second of answers whose first token was in time, of those that ended in the interval."""
        return sum(tokens for at, tokens in self.goods if begin <= at < end) / (end - begin)

    def p95(self, begin: float, end: float) -> float:
        """95th percentile of first-token time over its target, of the calls sent in the interval."""
        found = sorted(ratio for at, ratio in self.firsts if begin <= at < end)
        return found[min(int(len(found) * 0.95), len(found) - 1)]


Event = tuple[float, Callable[[Engine], None]]


def simulate(
    model: Model,
    *,
    rate: float,
    seconds: float,
    seed: int,
    limit: ConcurrencyLimit | int,
    events: Sequence[Event] = (),
    queue_size: int = 16,
) -> Run:
    """Offer `rate` calls a second for so long; `limit` is a fixed number or learns as it goes."""
    chance = random.Random(seed)
    engine, run = Engine(model), Run()
    admission = Admission(queue_size=queue_size, queue_timeout=30.0)
    fixed = limit if isinstance(limit, int) else 0
    learning = None if isinstance(limit, int) else limit
    admission.set_replica("sim", limit=fixed or (learning.limit if learning else 0), serving=True)
    requests: dict[int, Request] = {}
    untold: list[Request] = []
    changes = deque(sorted(events, key=lambda event: event[0]))
    now, arrives, reads, ticks, number = 0.0, chance.expovariate(rate), READ_EVERY, 0.25, 0

    def send(lease: Lease, at: float) -> None:
        request = requests[lease.ticket.number]
        request.lease, request.sent = lease, at
        engine.waiting.append(request)
        untold.append(request)

    while now < seconds:
        while changes and changes[0][0] <= now:
            changes.popleft()[1](engine)
        while arrives <= now:
            number += 1
            prompt, answer = _length(chance, model.prompt), _length(chance, model.answer)
            if model.long[0] and chance.random() < model.long[0]:
                prompt = model.long[1]
            request = requests[number] = Request(number, prompt, answer)
            decision = admission.offer(Ticket(number, "k", arrives, request.size), arrives)
            if isinstance(decision, Lease):
                send(decision, arrives)
            elif isinstance(decision, Refuse):
                del requests[number]
            arrives += chance.expovariate(rate)
        if now >= ticks:
            ticks += 0.25
            for ticket, _ in admission.overdue(now):
                del requests[ticket.number]
            if learning is not None:
                untold = [request for request in untold if not _tell(learning, request, now)]
        if now >= reads:
            reads += READ_EVERY
            reading = engine.reading()
            run.readings.append(reading)
            if learning is not None:
                learning.step(reading, admission.in_flight(), now)
                run.limits.append((now, learning.limit, learning.reason))
                admission.set_replica("sim", limit=learning.limit, serving=True)
            for lease in admission.admit_waiting(now):
                send(lease, now)
        if not engine.busy():
            now = min(arrives, reads, ticks)
            continue
        took, fresh, done = engine.step()
        now += took
        for request in fresh:
            request.first = now
            run.firsts.append((request.sent, (now - request.sent) / first_token_target(request.size)))
        for request in done:
            assert request.lease is not None and request.first is not None
            admission.release(request.lease, Outcome.OK, now)
            if learning is not None:
                _tell(learning, request, now)
            run.finished.append(now)
            if request.first - request.sent <= first_token_target(request.size):
                run.goods.append((now, request.answer))
            del requests[request.number]
        for lease in admission.admit_waiting(now):
            send(lease, now)
    admission.check()
    return run


def _tell(learning: ConcurrencyLimit, request: Request, now: float) -> bool:
    if not request.told:
        request.told = learning.first_token(request.size, request.sent, request.first, now)
    return request.told


def _length(chance: random.Random, shape: tuple[float, float, int]) -> int:
    median, sigma, most = shape
    return max(1, min(int(median * 2.718281828 ** (sigma * chance.gauss(0, 1))), most))


def best_fixed(
    model: Model, limits: Sequence[int], *, rate: float, seconds: float, seeds: Sequence[int], begin: float,
    events: Sequence[Event] = (),
) -> tuple[int, float]:  # fmt: skip
    """The fixed limit with the highest goodput from `begin` on, over all seeds, by trying all of them; and its sum."""
    tried = []
    for limit in limits:
        runs = (simulate(model, rate=rate, seconds=seconds, seed=seed, limit=limit, events=events) for seed in seeds)
        tried.append((sum(run.goodput(begin, seconds) for run in runs), limit))
    goodput, limit = max(tried)
    return limit, goodput
