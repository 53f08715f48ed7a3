"""The gateway as a whole: builds its parts, reloads them, keeps time for them, and takes them down.

One process, one loop. What depends on time happens in `_tick`; what another process tells is read in `_poll`.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl

from appliance import clock, names
from appliance.config import source
from appliance.config.model import Config, Gateway
from appliance.errors import ApiError, Failed
from appliance.host import journal, notify
from appliance.host.places import Places
from appliance.policy.allowance import Hold
from appliance.wire.openai import Call, Route

from .admin import Admin
from .allowances import Allowances, demand
from .auth import Gatekeeper, Principal
from .engines import Engines
from .exchange import Exchange
from .faults import loop_handler, place
from .fetch import probe
from .handler import Handler
from .handover import Heir, hand_over
from .learning import learn
from .ledger import Ledger
from .metrics import Metrics
from .predecessors import Predecessors
from .quarantine import Quarantines
from .record import Record
from .selfprobe import SelfProbe
from .server import ClientServer
from .sockets import PUBLIC, Servers, Sockets
from .status import line, silences, tokens_given
from .successor import Successor, left_behind
from .tasks import Tasks, until
from .throughput import TokenCounts, last_heard, running_events

POLL = 0.5  # seconds between two looks at keys, state files and waiting calls
PROBE = 2.0  # seconds between two looks at a remote engine
LINGER = 1.0  # seconds that idle connections may still bring a call while draining
SETTLE = 0.1  # and in which connections that were just accepted appear
REPORT = 3.0  # seconds between two STATUS= lines
TAKE_ON = 2.0  # seconds for older processes to say what they hold before new calls are accepted
TELL = 5.0  # seconds at its end in which a process tells its successor the rest


class App:
    """The process. Public attributes are what the parts read of one another; `App` alone writes them."""

    def __init__(self, config_path: str, places: Places, log: journal.Journal) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(loop_handler(self.warn))
        self.config_path, self.run_directory = config_path, places.run
        self.log = log
        self.pid, self.started = os.getpid(), clock.wall()
        self.tasks = Tasks(lambda name, error: self.warn(f"the task {name} failed: {place(error)}"))
        self._core = Tasks(self._core_failed)
        self.stop = asyncio.Event()  # set by a signal, or because the process cannot go on
        self.fault = ""
        self.engines = Engines(places.run, loop)
        self.gatekeeper = Gatekeeper(self.warn)
        self._state = places.under_state(names.GATEWAY_STATE)
        self.allowances = Allowances(places.under_state(names.KEY_USE), self.warn)
        self.metrics = Metrics()
        self.ledger = Ledger(journal.Journal("llm-gateway"))
        self.exchanges: set[Exchange] = set()
        self.quarantines = Quarantines(log)
        self.predecessors = Predecessors(self.engines, self.allowances, self.gatekeeper, self.finished, log)
        self.successor: Successor | None = None
        self.effective = source.Effective(config=None)
        self.config: Config | None = None
        self.audit_directory: str | None = None
        self.draining = False  # new answers announce the end of their connection
        self.retired = False  # because another process has taken over
        self.closing = False  # new calls are refused
        self.loop_lag = 0.0
        self._reported_at = clock.monotonic()
        self.throughput = TokenCounts(self._reported_at)
        self._tls: ssl.SSLContext | None = None
        handler = Handler(self)
        self.server = ClientServer(handler.serve, most=lambda: self.settings.max_connections)
        self._admin = Admin(self, handler, control=False)
        self._control = Admin(self, handler, control=True)
        self.sockets = Sockets(places.run, self.tasks, self.warn)
        self._writes = False  # the usage ledger and what keys have used have one writer: the process that accepts
        self._hurried = False
        self._handing_over: asyncio.Task[bool] | None = None
        self._line: asyncio.Task[None] | None = None
        self.reload()

    def warn(self, text: str) -> None:
        """One line for the operator."""
        self.log.log(journal.WARNING, text, LLM_EVENT="gateway")

    def _core_failed(self, name: str, error: BaseException) -> None:
        """Without its clock or its eyes the gateway would let calls hang: it stops, and is started again."""
        self.fault = f"the task {name} failed: {place(error)}"
        self.log.log(journal.CRIT, self.fault, LLM_EVENT="gateway-fault")
        self.stop.set()

    # --- configuration ----------------------------------------------------------------------------------------------
    def reload(self) -> None:
        """Read configuration, keys and certificate again; what cannot be read stays as it was. Never raises."""
        before = self.effective
        self.effective = effective = source.effective(self.config_path)
        if effective.config is not None:
            self.config = effective.config
        for problem in effective.errors if effective.problems != before.problems else ():
            self.log.log(journal.ERR, f"configuration: {problem}", LLM_EVENT="config-invalid")
        config = self.config
        self.gatekeeper.configure((config or Config()).auth)
        self.engines.configure(config)
        audit = (config or Config()).audit
        self.audit_directory = audit.directory if config and audit.enabled else None
        self._configure_ledger()
        self._load_certificate()

    def _configure_ledger(self) -> None:
        retention = (self.config or Config()).audit.retention
        self.ledger.configure(self.audit_directory if self._writes else None, retention)

    def _load_certificate(self) -> None:
        gateway = self.settings
        if not gateway.tls_certificate:
            return
        context = self._tls or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(gateway.tls_certificate, gateway.tls_key)
            self._tls = context
        except (OSError, ssl.SSLError) as error:
            self.warn(f"the certificate stays as it was: {gateway.tls_certificate}: {error}")

    @property
    def settings(self) -> Gateway:
        """`[gateway]` in force."""
        return (self.config or Config()).gateway

    # --- life -------------------------------------------------------------------------------------------------------
    async def start(self, heir: Heir | None = None) -> None:
        """Listen, with an heir's sockets and counters where there is one. Raises Failed when that cannot be."""
        check = names.check_command(self.config_path)
        if self.settings.tls_certificate and self._tls is None:
            raise Failed(f"the certificate {self.settings.tls_certificate} cannot be used", hint=check)
        if heir is not None and self.effective.errors:
            raise Failed(f"the configuration is invalid: {self.effective.errors[0]}", hint=check)
        await self._look_at_remotes()
        passed, expected = notify.listen_fds(), list[int]()
        self.sockets.kept = bool(passed.get(PUBLIC))
        if heir is not None:
            estate = await heir.inherit()
            passed, expected, self.sockets.kept = heir.sockets, estate["expected"], estate["kept"]
            self.allowances.restore(estate["accounts"])
        self.sockets.open(
            self.settings,
            passed,
            Servers(self.server, self._admin.server, self._control.server),
            self._tls,
            lambda: self.settings.timeouts.head,
        )
        await self._begin(expected)
        self._core.start(self._tick(), "tick")
        self._core.start(self._poll(), "poll")
        self._core.start(self._probe(), "probe")
        self._core.start(learn(self.engines), "learn")
        self._core.start(self.allowances.keep(), "allowances")
        self.sockets.start()

    def watch(self) -> None:
        """Feed the watchdog from now on: it listens to the main process alone."""
        self._core.start(self._watchdog(), "watchdog")

    async def _begin(self, expected: list[int]) -> None:
        """Become the one that writes and counts, what older processes hold and could not tell included."""
        self._writes = True
        self._configure_ledger()
        listener = self.sockets.handover()
        if listener is not None:
            await self.predecessors.open(listener)
        await until(lambda: set(expected) <= set(self.predecessors.pids), TAKE_ON)
        self.throughput = TokenCounts(clock.monotonic(), tokens_given(self))  # what they gave before is no rate of ours
        loop = asyncio.get_running_loop()
        for fact in await loop.run_in_executor(None, left_behind, self._state):
            self.predecessors.late(fact)

    @property
    def addresses(self) -> list[str]:
        """Where clients connect."""
        return [listener.address for listener in self.sockets.public]

    @property
    def admin_address(self) -> str:
        """Where the admin listener is."""
        return self.sockets.admin[0].address

    @property
    def is_followed(self) -> bool:
        """Whether another process decides what keys may use."""
        return self.successor is not None

    async def hold_elsewhere(self, principal: Principal, call: Call, route: Route) -> Hold | None:
        """What that process lets a call use; None where this one decides again. Raises ApiError."""
        wanted = demand(call, route, principal.limits)
        return await self.successor.take(principal.key_id, wanted) if self.successor is not None else None

    def finished(self, record: Record) -> None:
        """A call ended."""
        if self.successor is not None:
            self.successor.finished(record)
            return
        self.metrics.finish(record)
        self.ledger.finish(record)

    def engines_in_flight(self) -> int:
        """Calls admitted and not released."""
        return sum(group.admission.in_flight() for group in self.engines.groups.values())

    # --- the end ----------------------------------------------------------------------------------------------------
    async def drain(self) -> None:
        """Finish what runs, lose nothing that waits; after `drain` seconds end the rest with an error event.

        A connection that is kept alive may bring a call in the moment in which it would be closed, so idle ones stay
        open for a second and are answered with `Connection: close` before they are ended.
        """
        if self._handing_over is not None:
            self._handing_over.cancel()
            await asyncio.gather(self._handing_over, return_exceptions=True)
        self.draining = True
        begun = told = clock.monotonic()
        for listener in self.sockets.public if not self.retired else ():
            listener.retire(keep=self.sockets.kept)  # what connects to a socket of systemd's waits for our successor
        self.predecessors.stop()
        limit = self.settings.timeouts.drain
        while clock.monotonic() - begun < limit and not self._hurried:
            now = clock.monotonic()
            settled = now - begun >= LINGER or (now - begun >= SETTLE and not self.server.connections)
            busy = self.exchanges or self.server.bodies or self.predecessors.connected
            if settled and not busy and self.server.is_read():
                break
            if now >= told and not self.retired:
                told = now + 1.0
                notify.notify(EXTEND_TIMEOUT_USEC=10_000_000, STATUS=f"draining, {len(self.exchanges)} running")
            await asyncio.sleep(0.02)
        self.closing = True
        stopped = ApiError("gateway_draining", "the gateway is being stopped", retry_after=2)
        self.server.fail_bodies(stopped)
        for exchange in list(self.exchanges):
            exchange.stop(stopped)
        await until(lambda: not self.exchanges, 2.0)
        await until(lambda: not self.predecessors.connected, TELL)  # their last words are written here

    def hurry(self) -> None:
        """End the drain now. A retired process does not: systemd's second SIGTERM reaches it when the main one ends."""
        self._hurried = not self.retired

    async def close(self) -> None:
        """Take everything down; bounded."""
        self.sockets.close()
        await until(lambda: not self.server.close_idle(), 1.0)
        self.server.close()
        await until(lambda: not self.server.connections, 1.0)
        self.server.abort()
        await asyncio.gather(self._admin.close(), self._control.close())
        self.predecessors.close()
        if self.successor is not None:
            await self._leave(self.successor)
        await self.tasks.close()
        await self._core.close()
        self.engines.close()
        loop = asyncio.get_running_loop()
        if self._writes:
            await loop.run_in_executor(None, self.allowances.write, *self.allowances.snapshot())
        await loop.run_in_executor(None, self.ledger.close)

    async def _leave(self, successor: Successor) -> None:
        """What nobody has heard of goes into a file for the next process."""
        await until(successor.all_told, TELL)
        try:
            left = successor.leave_behind(self._state)
            if left:
                self.warn(f"{left} facts of finished calls are left for the next process: nobody takes them now")
        except OSError as error:
            self.log.log(journal.ERR, f"lines of the usage ledger are lost: {error}", LLM_EVENT="ledger-lost")

    # --- handing over -----------------------------------------------------------------------------------------------
    def begin_hand_over(self) -> None:
        """Start a new process and let it take over; nothing happens where one is on its way, or this one ends."""
        if self.draining or self.stop.is_set() or (self._handing_over is not None and not self._handing_over.done()):
            return
        self._handing_over = self.tasks.start(hand_over(self), "hand-over")

    async def lay_down(self) -> tuple[dict[str, object], list[tuple[str, int]]]:
        """Stop accepting and writing. The counters for the process that takes over, and its sockets."""
        self.draining = self.retired = True
        self.sockets.stop()
        expected = [self.pid, *self.predecessors.pids]
        self.predecessors.close()
        estate: dict[str, object] = {
            "accounts": self.allowances.state(), "expected": expected, "kept": self.sockets.kept,
        }  # fmt: skip
        self.successor = successor = Successor(
            self.sockets.handover_path, self.engines, self.allowances, view=self._view, stop=self.stop.set
        )
        self._writes = False
        loop = asyncio.get_running_loop()
        for record in await loop.run_in_executor(None, self.ledger.lay_down):
            successor.finished(record)
        await loop.run_in_executor(None, self.allowances.lay_down)
        self._line = self._core.start(successor.run(), "successor")
        return estate, self.sockets.descriptors()

    def take_up(self) -> None:
        """Nobody took over: go on as before."""
        successor, self.successor = self.successor, None
        self.draining = self.retired = False
        self.ledger = Ledger(journal.Journal("llm-gateway"))
        self._writes = True
        self._configure_ledger()
        self.allowances.take_up()
        if successor is not None:
            if self._line is not None:
                self._line.cancel()
            for record in successor.give_up():
                self.finished(record)
        self.engines.refresh(clock.monotonic(), clock.wall())
        listener = self.sockets.handover()
        if listener is not None:
            self.tasks.start(self.predecessors.open(listener), "predecessors")
        self.sockets.start()

    def retire(self) -> None:
        """Finish what runs, however long that takes, and end."""
        self.sockets.leave()
        self._core.start(self._finish(), "finish")

    def _view(self) -> dict[str, object]:
        return {"replicas": silences(self), "events": running_events(self.exchanges)}

    async def _finish(self) -> None:
        await until(lambda: not self.exchanges and not self.server.connections, math.inf)
        self.stop.set()

    # --- time -------------------------------------------------------------------------------------------------------
    async def _tick(self) -> None:
        """Deadlines and comments of every call."""
        while True:
            settings = self.settings
            shortest = min(settings.stream.keepalive, settings.timeouts.stall, settings.timeouts.first_token)
            interval = min(max(shortest / 5, 0.02), 0.25)
            due = clock.monotonic() + interval
            await asyncio.sleep(interval)
            now = clock.monotonic()
            self.loop_lag = max(now - due, 0.0)
            for exchange in list(self.exchanges):
                exchange.tick(now)
            for group in self.engines.groups.values():
                if group.waiters:
                    group.expire(now)

    async def _poll(self) -> None:
        """Keys, states, and the line that `systemctl status` shows."""
        while True:
            await asyncio.sleep(POLL)
            now = clock.monotonic()
            self.server.end_late(now, self.settings.timeouts.head, self.settings.timeouts.body)
            self.gatekeeper.refresh()
            self.engines.refresh(now, clock.wall())
            self.quarantines.look(self.engines)
            self.predecessors.tick(now)
            if self.successor is not None:
                self.successor.pulse()
            if now - self._reported_at >= REPORT:
                self._reported_at = now
                self.throughput.take(tokens_given(self), now)
                self.server.end_unread(now, self.settings.timeouts.stall)
                if not self.draining:
                    notify.status(line(self))

    async def _look_at_remotes(self) -> None:
        await probe(self.engines.replicas(), self.settings.timeouts.connect, lambda: last_heard(self.exchanges))

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE)
            await self._look_at_remotes()

    async def _watchdog(self) -> None:
        """Feed systemd's watchdog, as long as the process serves: a loop that is stuck feeds nothing."""
        interval = notify.watchdog_interval()
        looks = SelfProbe(self.sockets, lambda: bool(self.exchanges), self.log)
        while interval is not None:
            if not self.retired and await looks.serves(interval):
                notify.watchdog()
            await asyncio.sleep(interval)
