"""The engines as the gateway sees them: who serves what, whether it serves now, and who waits for it.

One `Group` for each `[[engine]]`: its replicas with their connection pools, its admission and its waiting calls. The
state files of launcher, supervisor and runtime are read when their stamp has changed; a reading is never awaited.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from appliance import clock, names
from appliance.config.fleet import served_names
from appliance.config.model import Auto, Config, Engine
from appliance.errors import ApiError
from appliance.host.files import read_json
from appliance.host.places import Places
from appliance.policy.admission import Admission, Lease, Outcome, Refuse, Ticket, limit_of
from appliance.policy.availability import RuntimeSeen, Seen, serves, unavailable
from appliance.policy.concurrency import ConcurrencyLimit
from appliance.policy.flagnumbers import batch_limit
from appliance.wire.openai import ROUTES
from appliance.wire.vllmmetrics import EngineMetrics

from .upstream import Pool, Target, remote_target

FALL = 2  # looks in a row for which a remote engine was late before it gets no more calls: busy is not away
FAILED_FOR = 1.0  # seconds for which an engine that refused a connect gets no calls
SUSPECT_FOR = 30.0  # seconds for which a suspicion holds that the supervisor, who writes each 10 s, does not repeat


class StateFile:
    """A JSON file that another process replaces; read again only when it changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self.value: Mapping[str, object] = {}

    def refresh(self) -> bool:
        """Look at the file's stamp; whether the value changed. A missing or torn file is empty: UNKNOWN."""
        try:
            status = os.stat(self.path)
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        except OSError:
            stamp = None
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self.value = (read_json(self.path) or {}) if stamp is not None else {}
        return True

    def text(self, name: str) -> str:
        """A string of the file, empty where there is none."""
        return text_of(self.value, name)

    def number(self, name: str) -> float | None:
        """A number of the file, None where there is none."""
        return number_of(self.value, name)


def text_of(value: Mapping[str, object], name: str) -> str:
    """A string in a mapping, empty where there is none."""
    found = value.get(name)
    return found if isinstance(found, str) else ""


def number_of(value: Mapping[str, object], name: str) -> float | None:
    """A number in a mapping, None where there is none."""
    found = value.get(name)
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


class Replica:
    """One engine process, here or elsewhere."""

    def __init__(self, name: str, target: Target, run: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.target = target
        self.field = f"X-Engine: {name}\r\n"  # of every answer of it
        self.openings = {path: target.opening(path) for path in ROUTES}  # of the requests to it
        self.remote = not target.path
        self.pool = Pool(target, loop)
        self.state = StateFile(names.engine_state(name, run))
        self.reachable: bool | None = None
        self.late = 0  # looks in a row for which a remote engine was late
        self.failed_at: float | None = None
        self.up = False  # whether it gets calls, as the last look found
        self.suspect = False  # whether the supervisor suspects that it hangs
        self.last_byte_at: float | None = None  # monotonic, of calls that have ended; comments are none
        self.adaptive = ConcurrencyLimit(limit_of("auto", None))
        self.start = ""  # the launcher's name of the engine's present run
        self.metrics, self.metrics_at = EngineMetrics(), 0.0  # what it last said of itself, and when (wall clock)
        self.idle_seen = False  # whether it was asked since its last call ended

    def failed(self, now: float, *, late: bool = False) -> None:
        """A connect or a probe did not work; `late`: it may still be there."""
        if self.remote:
            self.late = self.late + 1 if late else FALL
            if self.late < FALL:
                return
            self.reachable = False
        self.failed_at = now
        self.up = False

    def look(self) -> None:
        """Read the state file; another start of the engine is an engine of which nothing is known."""
        if self.state.refresh():
            self.failed_at = None
            if self.start != (start := self.state.text("start")):
                self.start = start
                self.adaptive.reset()
                self.metrics, self.idle_seen = EngineMetrics(), False

    def worked(self) -> None:
        """An engine that answered a connect is there."""
        self.failed_at = None
        if self.remote:
            self.late = 0
            self.reachable = self.up = True


class Waiter(Protocol):
    """A call in the queue; it hears of its end there once, and is in `Group.waiters` until then."""

    def admitted(self, lease: Lease) -> None:
        """It may run."""

    def refused(self, error: ApiError) -> None:
        """It may not."""


class Group:
    """The replicas of one `[[engine]]` and the calls that wait for them."""

    def __init__(self, engine: Engine, admission: Admission) -> None:
        self.engine = engine
        self.admission = admission
        self.replicas: dict[str, Replica] = {}
        self.waiters: dict[int, Waiter] = {}
        self.context: object = None  # what every replica can hold, as the last look found
        self._admitting = self._changed = False

    @property
    def is_up(self) -> bool:
        """Whether a replica gets calls."""
        for replica in self.replicas.values():  # noqa: SIM110  asked by each call, and half as much work as `any`
            if replica.up:
                return True
        return False

    def learn_context(self) -> None:
        """The longest context that every replica can hold; a start may have been given less than the configuration."""
        told = [each.state.value.get("flags") for each in self.replicas.values()]
        lengths = [flags.get("max_model_len") for flags in told if isinstance(flags, dict)]
        whole = [length for length in lengths if isinstance(length, int)]
        self.context = min(whole) if whole else self.engine.vllm.get("max_model_len")

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Give a lease back and let the next ones in."""
        now = clock.monotonic()
        self.admission.release(lease, outcome, now)
        if self.waiters:
            self.admit_waiting(now)

    def admit_waiting(self, now: float) -> None:
        """Let the calls in that have room now. One that ends at once makes room again: that is seen in the same go, so
        that a queue of such calls is no chain of calls of this."""
        self._changed = True
        if self._admitting:
            return
        self._admitting = True
        try:
            while self._changed:
                self._changed = False
                for lease in self.admission.admit_waiting(now):
                    self._let_in(lease, now)
        finally:
            self._admitting = False

    def _let_in(self, lease: Lease, now: float) -> None:
        waiter = self.waiters.pop(lease.ticket.number, None)
        if waiter is not None:
            waiter.admitted(lease)
            return
        self.admission.release(lease, Outcome.IGNORED, now)  # its client left in this very moment
        self.admission.correct(lease.ticket, 0)
        self._changed = True

    def refuse_waiting(self, error: ApiError) -> None:
        """Turn all waiting calls away."""
        for number in list(self.waiters):
            self.admission.leave(Ticket(number, "", 0.0))
            waiter = self.waiters.pop(number, None)
            if waiter is not None:
                waiter.refused(error)

    def expire(self, now: float) -> None:
        """Turn those away who waited too long."""
        for ticket, refusal in self.admission.overdue(now):
            self.turn_away(ticket, refusal)

    def turn_away(self, ticket: Ticket, refusal: Refuse) -> None:
        """Tell a call that waited, and was taken out of the queue, why."""
        waiter = self.waiters.pop(ticket.number, None)
        if waiter is not None:
            waiter.refused(ApiError(refusal.code, refusal.reason, retry_after=refusal.retry_after))


class Engines:
    """All groups, and the map from a served name to one of them."""

    def __init__(self, run: str, loop: asyncio.AbstractEventLoop) -> None:
        self._run = run
        self._loop = loop
        self.groups: dict[str, Group] = {}
        self.by_model: dict[str, Group] = {}
        self._limits: int | Auto = "auto"
        where = Places(run=run)
        self.fleet = StateFile(where.under_run(names.FLEET_STATE))
        self.gpus = StateFile(where.under_run(names.GPU_STATE))
        self.runtime = StateFile(where.under_run(names.RUNTIME_STATE))

    def configure(self, config: Config | None) -> None:
        """Take a configuration; replicas that stay the same keep their connections, leases and queue."""
        wanted = {engine.name: engine for engine in (config.engines if config else ())}
        for name in set(self.groups) - set(wanted):
            group = self.groups.pop(name)
            group.refuse_waiting(ApiError("model_not_found", f"the engine {name} was removed from the configuration"))
            for replica in group.replicas.values():
                replica.pool.close()
        for name, engine in wanted.items():
            assert config is not None
            admission = config.gateway.admission
            group = self.groups.setdefault(
                name, Group(engine, Admission(queue_size=admission.queue_size, queue_timeout=admission.queue_timeout))
            )
            group.engine = engine
            group.admission.queue_size, group.admission.queue_timeout = admission.queue_size, admission.queue_timeout
            self._configure_replicas(group)
        self.by_model = {name: group for group in self.groups.values() for name in served_names(group.engine)}
        self._limits = config.gateway.admission.max_in_flight if config else "auto"
        self.refresh(clock.monotonic(), clock.wall())

    def _configure_replicas(self, group: Group) -> None:
        engine = group.engine
        key = _read_key(engine.remote_api_key_file)
        targets = {
            name: remote_target(engine.remote[n], key)
            if engine.remote
            else Target(names.engine_socket(name, self._run))
            for n, name in enumerate(engine.instances)
        }
        for name in set(group.replicas) - set(targets):
            group.replicas.pop(name).pool.close()
            group.admission.drop_replica(name)
        for name, target in targets.items():
            known = group.replicas.get(name)
            if known is None or known.target != target:
                if known is not None:
                    known.pool.close()
                group.replicas[name] = Replica(name, target, self._run, self._loop)

    def refresh(self, now: float, epoch: float) -> None:
        """Read what changed and let in who may run; `now` is monotonic, `epoch` wall-clock seconds."""
        self.fleet.refresh()
        self.runtime.refresh()
        for group in self.groups.values():
            for replica in group.replicas.values():
                replica.look()
                replica.up = self.serving(replica, now)
                replica.adaptive.resize(limit_of("auto", batch_limit(group.engine.vllm)))
                replica.suspect = self._is_suspect(replica, epoch)
                self.tell_admission(group, replica)
                replica.pool.trim()
            group.learn_context()
            if group.waiters and not group.is_up:
                group.refuse_waiting(self.unavailable(group, group.engine.served[0], epoch))
            group.admit_waiting(now)

    def tell_admission(self, group: Group, replica: Replica) -> None:
        """What the last looks found of a replica. Follow with `admit_waiting`."""
        group.admission.set_replica(
            replica.name, limit=self.limit(replica), serving=replica.up, suspect=replica.suspect
        )  # fmt: skip

    def _is_suspect(self, replica: Replica, epoch: float) -> bool:
        at = self.fleet.number("at")
        fresh = at is not None and abs(epoch - at) < SUSPECT_FOR
        return fresh and self.told(replica.name).get("suspect") is True

    @property
    def adapts(self) -> bool:
        """Whether the limits are learned rather than configured."""
        return self._limits == "auto"

    def limit(self, replica: Replica) -> int:
        """Calls that may be in flight at a replica now."""
        return self._limits if isinstance(self._limits, int) else replica.adaptive.limit

    def serving(self, replica: Replica, now: float) -> bool:
        """Whether a replica gets calls."""
        rested = replica.failed_at is None or now - replica.failed_at > FAILED_FOR
        return serves(self.seen(replica)) and (rested or replica.remote)

    def told(self, replica: str) -> Mapping[str, object]:
        """What the supervisor says of a replica; empty where it says nothing."""
        engines = self.fleet.value.get("engines")
        found = engines.get(replica) if isinstance(engines, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def seen(self, replica: Replica) -> Seen:
        """All that is known of a replica."""
        fleet, state = self.told(replica.name), replica.state
        return Seen(
            replica=replica.name,
            remote=replica.remote,
            reachable=replica.reachable,
            phase=state.text("phase"),
            message=state.text("message"),
            since=state.number("since"),
            started=state.number("started"),
            state=text_of(fleet, "state"),
            reason=text_of(fleet, "reason"),
            load_s=number_of(fleet, "load_s"),
            not_before=number_of(fleet, "not_before"),
        )

    def runtime_seen(self) -> RuntimeSeen:
        """How far the runtime is."""
        return RuntimeSeen(self.runtime.text("phase"), self.runtime.text("message"), self.runtime.number("percent"))

    def unavailable(self, group: Group, model: str, epoch: float) -> ApiError:
        """The refusal while no replica of a group serves."""
        seens = [self.seen(replica) for replica in group.replicas.values()]
        why = unavailable(model, seens, self.runtime_seen(), epoch)
        return ApiError(why.code, why.message, retry_after=why.retry_after)

    def serving_count(self, now: float) -> int:
        """Groups with at least one serving replica."""
        return sum(any(self.serving(r, now) for r in group.replicas.values()) for group in self.groups.values())

    def replicas(self) -> Iterable[Replica]:
        """Every replica of every group."""
        return (replica for group in self.groups.values() for replica in group.replicas.values())

    def close(self) -> None:
        """End all idle connections."""
        for replica in self.replicas():
            replica.pool.close()


def _read_key(path: str) -> str:
    """A remote engine's key; empty where none is configured or it cannot be read (the engine then says so itself)."""
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
