"""Requests under which engines crash: seen here, judged by `policy/quarantine`.

A `Watch` goes with each call: what it was sent to, and whether the engine failed it. That an engine crashed is told by
the supervisor (`death` in fleet.json, with the launcher's name of the run), often seconds after the calls were lost; so
calls that failed are kept with the run they failed in, until the supervisor has told what that run ended of, or they
are old. Where nobody tells (a remote engine, no supervisor), nothing is a crash.

A body is known by Python's own hash of its bytes: keyed by a secret of this process, so that nobody can look for a
prompt with it or make two bodies meet, and 0.1 us for 1 KiB, 30 us for 128 KiB (blake2b: 2 and 160). It is reckoned
when somebody asks, at the latest when the bytes are let go: most calls end before, and no first token waits for it. It
is written and told nowhere, and a new process begins with nothing: a restart of the gateway lifts every quarantine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from appliance import clock
from appliance.errors import ApiError
from appliance.host.journal import NOTICE, WARNING, Journal, message_id
from appliance.policy.quarantine import OF_A_REQUEST, Quarantine, Standing
from appliance.quantity import format_duration

from .engines import Engines, Replica, number_of, text_of
from .finish import End, Finish

LEAD_S = 60.0  # from an engine's first failed call to the end of its unit: its launcher waits for vLLM at most 40 s
MOST_FELL = 4096
AGAIN_S = 5.0  # until one that has to run alone is to ask again
EVENT = "request-quarantined"


@dataclass(frozen=True, slots=True)
class _Fall:
    """A call that an engine failed; `at` is wall-clock seconds, as the supervisor tells of deaths."""

    watch: Watch
    replica: str
    run: str
    at: float


@dataclass(slots=True)
class _Engine:
    """One `[[engine]]`."""

    policy: Quarantine = field(default_factory=Quarantine)
    open: set[Watch] = field(default_factory=set)
    fell: deque[_Fall] = field(default_factory=lambda: deque(maxlen=MOST_FELL))
    alone: Watch | None = None


class Watch:
    """One call, from its check to its end. Without an engine it watches nothing."""

    __slots__ = ("_asked", "_engine", "key_id", "replica", "request_id", "run", "suspect")

    def __init__(
        self,
        engine: _Engine | None = None,
        asked: tuple[str, bytes] = ("", b""),
        request_id: str = "",
        key_id: str = "",
    ) -> None:
        self._engine = engine
        self._asked: tuple[str, bytes] | int = asked  # path and body, or their number
        self.request_id, self.key_id = request_id, key_id
        self.replica = self.run = ""  # where it is in flight
        self.suspect = False
        if engine is not None:
            engine.open.add(self)

    @property
    def body(self) -> int:
        """The number of what it asks for."""
        return self._asked if isinstance(self._asked, int) else hash(self._asked)

    def let_go(self) -> None:
        """Keep the number alone: the bytes may be many."""
        self._asked = self.body

    def check(self) -> None:
        """Raise ApiError where it is refused since it was let in: it may have waited."""
        if self._engine is not None and self._engine.policy.cases:
            _refuse(self._engine.policy, self.body)

    def sent(self, replica: Replica) -> None:
        """It goes to an engine now."""
        self.replica, self.run = replica.name, replica.start

    def ended(self, finish: Finish, status: int) -> None:
        """Its attempt is over; `status` is that of the engine's answer, 0 where there was none."""
        engine = self._engine
        if engine is None:
            return
        if finish.end is End.COMPLETE and status < 500:
            if engine.policy.cases:
                engine.policy.served(self.body)
        elif self.run and _is_failed(finish, status):
            self.let_go()
            engine.fell.append(_Fall(self, self.replica, self.run, clock.wall()))
        self.replica = self.run = ""

    def close(self) -> None:
        """The call is over."""
        engine = self._engine
        if engine is not None:
            engine.open.discard(self)
            if engine.alone is self:
                engine.alone = None


def _is_failed(finish: Finish, status: int) -> bool:
    """Whether the engine may have died under a call, as far as its connection tells."""
    if finish.end is End.LOST or (finish.end is End.COMPLETE and status >= 500):
        return True
    return finish.error is not None and finish.error.code in ("engine_died", "engine_error")


class Quarantines:
    """All engines."""

    def __init__(self, log: Journal) -> None:
        self._log = log
        self._engines: dict[str, _Engine] = {}
        self._heard: dict[str, tuple[str, float]] = {}  # the last death of each replica
        self.total = 0  # bodies that were refused since the process began

    def check(self, engine: str, path: str, body: bytes, request_id: str, key_id: str) -> Watch:
        """Let a call in, and watch it. Raises ApiError: it is refused, or has to wait for others of its kind."""
        known = self._engines.get(engine)
        if known is None:
            known = self._engines[engine] = _Engine()
        asked = path, body
        standing = _refuse(known.policy, hash(asked)) if known.policy.cases else Standing.FREE
        alone = standing is Standing.ALONE
        if alone and known.alone is not None:
            text = "this request was in flight at two crashes of the engine; such requests run one at a time"
            raise ApiError("concurrency_limit", text, retry_after=AGAIN_S)
        watch = Watch(known, asked, request_id, key_id)
        watch.suspect = standing is not Standing.FREE
        if alone:
            known.alone = watch
        return watch

    def look(self, engines: Engines) -> None:
        """Hear of deaths."""
        for name, group in engines.groups.items():
            for replica in group.replicas:
                death = engines.told(replica).get("death")
                if isinstance(death, Mapping):
                    self._hear(name, replica, death)
        for gone in set(self._engines) - set(engines.groups):
            if not self._engines[gone].open:
                del self._engines[gone]

    def suspects(self, engine: str, replica: Replica) -> int:
        """Of what is in flight at a replica, or just failed: how many might be what it dies of."""
        known = self._engines.get(engine)
        if known is None or not known.policy.cases:
            return 0
        watches = _of_run(known, replica.name, replica.start, clock.wall())
        return known.policy.suspects({watch.body for watch in watches}, clock.monotonic())

    def counts(self) -> dict[str, int]:
        """Bodies that are suspected and refused now, all engines together."""
        each = [engine.policy.counts(clock.monotonic()) for engine in self._engines.values()]
        return {"suspected": sum(one for one, _ in each), "refused": sum(one for _, one in each)}

    def _hear(self, name: str, replica: str, death: Mapping[str, object]) -> None:
        run, cause, at = text_of(death, "start"), text_of(death, "cause"), number_of(death, "at")
        if at is None or self._heard.get(replica) == (run, at):
            return
        self._heard[replica] = (run, at)
        engine = self._engines.get(name)
        if engine is None:
            return
        watches = list(_of_run(engine, replica, run, at))
        kept = [fall for fall in engine.fell if (fall.replica, fall.run) != (replica, run)]
        engine.fell.clear()
        engine.fell.extend(kept)
        if cause in OF_A_REQUEST and death.get("killed") is not True and watches:
            self._crashed(name, engine, replica, cause, {watch.body: watch for watch in watches})

    def _crashed(self, name: str, engine: _Engine, replica: str, cause: str, watches: Mapping[int, Watch]) -> None:
        now = clock.monotonic()
        guilty = engine.policy.crashed(watches.keys(), now)
        if guilty is not None:
            self.total += 1
            left = format_duration(engine.policy.left_s(guilty, now))
            text = (
                f"{name}: a request was in flight at more than one crash ({cause} of {replica} the last) and is refused"
                f" for {left}; its id tells who sent it, and a restart of the gateway lifts it"
            )
            watch = watches[guilty]
            self._tell(WARNING, text, replica, LLM_REQUEST_ID=watch.request_id, LLM_KEY_ID=watch.key_id or None)
            return
        several = sum(engine.policy.standing(body, now) is Standing.ALONE for body in watches)
        if several:
            text = f"{name}: {several} requests were in flight at two crashes and run one at a time from now on"
            self._tell(NOTICE, text, replica)

    def _tell(self, priority: int, text: str, replica: str, **fields: str | None) -> None:
        self._log.log(
            priority, text, MESSAGE_ID=message_id(EVENT), LLM_EVENT=EVENT, LLM_ENGINE=replica, **fields
        )  # fmt: skip


def _refuse(policy: Quarantine, body: int) -> Standing:
    """What is thought of a body. Raises ApiError where that is the worst."""
    now = clock.monotonic()
    standing = policy.standing(body, now)
    if standing is Standing.REFUSED:
        left = format_duration(policy.left_s(body, now))
        text = f"this request was in flight at two crashes of the engine, and is refused for another {left}; change it"
        raise ApiError("request_quarantined", text, final=True)
    return standing


def _of_run(engine: _Engine, replica: str, run: str, at: float) -> Iterable[Watch]:
    """What was in flight in a run of a replica at its end at `at`."""
    yield from (watch for watch in engine.open if run and (watch.replica, watch.run) == (replica, run))
    for fall in engine.fell:
        if (fall.replica, fall.run) == (replica, run) and fall.at >= at - LEAD_S:
            yield fall.watch
