"""The gateway as a whole: builds its parts, reloads them, keeps time for them, and takes them down.

One process, one loop. What depends on time happens in `_tick`; what another process tells is read in `_poll`.
"""

from __future__ import annotations

import asyncio
import grp
import os
import socket
import ssl
from collections.abc import Callable

from appliance import clock, names
from appliance.config import source
from appliance.config.model import Config, Gateway
from appliance.errors import ApiError, Failed
from appliance.host import journal, notify
from appliance.host.places import Places

from .admin import Admin
from .allowances import Allowances
from .auth import Gatekeeper
from .connection import ClientServer
from .engines import Engines, Replica
from .exchange import Exchange
from .faults import loop_handler, place
from .fetch import get
from .handler import Handler
from .learning import learn
from .ledger import Ledger, Record
from .listeners import Listener, adopt, bind
from .metrics import Metrics
from .tasks import Tasks
from .upstream import ConnectFailed, Late

POLL = 0.5  # seconds between two looks at keys, state files and waiting calls
PROBE = 2.0  # seconds between two looks at a remote engine
FALL = 2  # looks in a row that came to nothing before it gets no more calls: busy is not away
LINGER = 1.0  # seconds that idle connections may still bring a call while draining
SETTLE = 0.1  # and in which connections that were just accepted appear
REPORT = 3.0  # seconds between two STATUS= lines
PUBLIC, ADMIN = "public", "admin"  # FileDescriptorName= of the socket units


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
        self.allowances = Allowances(places.under_state(names.KEY_USE), self.warn)
        self.metrics = Metrics()
        self.ledger = Ledger(journal.Journal("llm-gateway"))
        self.exchanges: set[Exchange] = set()
        self.effective = source.Effective(config=None)
        self.config: Config | None = None
        self.audit_directory: str | None = None
        self.draining = False  # new answers announce the end of their connection
        self.closing = False  # new calls are refused
        self.tokens_per_second = self.loop_lag = 0.0
        self._events_before = 0
        self._reported_at = clock.monotonic()
        self._tls: ssl.SSLContext | None = None
        handler = Handler(self)
        self.server = ClientServer(
            handler.serve, self.warn, handler_cancellation=True, most=lambda: self.settings.max_connections
        )
        self._admin = ClientServer(Admin(self, handler, control=False).serve, self.warn)
        self._control = ClientServer(Admin(self, handler, control=True).serve, self.warn)
        self.listeners: list[Listener] = []
        self._admin_listeners: list[Listener] = []
        self._inherited = False
        self._control_path: str | None = None
        self._hurried = False
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
        self.ledger.configure(self.audit_directory, audit.retention)
        self._load_certificate()

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
    async def start(self) -> None:
        """Listen. Raises Failed when a socket cannot be had."""
        passed = notify.listen_fds()
        gateway = self.settings
        if gateway.tls_certificate and self._tls is None:
            raise Failed(f"the certificate {gateway.tls_certificate} cannot be used", hint="llm-appliance check")
        self._inherited = bool(passed.get(PUBLIC))
        public = adopt(passed.get(PUBLIC, [])) or [bind(address) for address in gateway.listen]
        admin = adopt(passed.get(ADMIN, [])) or [bind(gateway.admin_listen)]
        handshake = (lambda: self.settings.timeouts.head) if self._tls else None
        self.listeners = [Listener(s, self.server, self.tasks, self.warn, self._tls, handshake) for s in public]
        self._admin_listeners = [Listener(s, self._admin, self.tasks, self.warn) for s in admin]
        await self._open_control()
        await self._probe_remote()
        self._core.start(self._tick(), "tick")
        self._core.start(self._poll(), "poll")
        self._core.start(self._probe(), "probe")
        self._core.start(learn(self.engines), "learn")
        self._core.start(self._watchdog(), "watchdog")
        self._core.start(self.allowances.keep(), "allowances")
        for listener in [*self.listeners, *self._admin_listeners]:
            listener.start()

    async def _open_control(self) -> None:
        """The socket for supervisor and command line, where its directory exists."""
        path = Places(run=self.run_directory).under_run(names.GATEWAY_SOCKET)
        if not os.path.isdir(os.path.dirname(path)):
            return
        try:
            if os.path.exists(path):
                os.unlink(path)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            before = os.umask(0o117)
            try:
                listener.bind(path)
            finally:
                os.umask(before)
            listener.listen(128)
        except OSError as error:
            self.warn(f"the control socket is missing: {path}: {error.strerror}")
            return
        try:
            os.chown(path, -1, grp.getgrnam(names.GROUP).gr_gid)
        except (KeyError, OSError):
            pass  # no such group here, or not ours to give: root and our own user can still open it
        self._control_path = path
        self._admin_listeners.append(Listener(listener, self._control, self.tasks, self.warn))

    @property
    def addresses(self) -> list[str]:
        """Where clients connect."""
        return [listener.address for listener in self.listeners]

    @property
    def admin_address(self) -> str:
        """Where the admin listener is."""
        return self._admin_listeners[0].address

    def finished(self, record: Record) -> None:
        """A call ended."""
        self.metrics.finish(record)
        self.ledger.finish(record)

    def engines_in_flight(self) -> int:
        """Calls admitted and not released."""
        return sum(group.admission.in_flight() for group in self.engines.groups.values())

    async def drain(self) -> None:
        """Finish what runs, lose nothing that waits; after `drain` seconds end the rest with an error event.

        A connection that is kept alive may bring a call in the moment in which it would be closed, so idle ones stay
        open for a second and are answered with `Connection: close` before they are ended.
        """
        self.draining = True
        begun = told = clock.monotonic()
        for listener in self.listeners:
            listener.retire(keep=self._inherited)  # what connects to a socket of systemd's waits for our successor
        while clock.monotonic() - begun < self.settings.timeouts.drain and not self._hurried:
            now = clock.monotonic()
            if not self.exchanges and (
                now - begun >= LINGER or (now - begun >= SETTLE and not self.server.connections)
            ):
                break
            if now >= told:
                told = now + 1.0
                notify.notify(EXTEND_TIMEOUT_USEC=5_000_000, STATUS=f"draining, {len(self.exchanges)} running")
            await asyncio.sleep(0.02)
        self.closing = True
        for exchange in list(self.exchanges):
            exchange.stop(ApiError("gateway_draining", "the gateway is being stopped", retry_after=2))
        await _until(lambda: not self.exchanges, 2.0)

    def hurry(self) -> None:
        """End the drain now."""
        self._hurried = True

    async def close(self) -> None:
        """Take everything down; bounded."""
        for listener in [*self.listeners, *self._admin_listeners]:
            listener.close()
        if self._control_path is not None and os.path.exists(self._control_path):
            os.unlink(self._control_path)
        await _until(lambda: not self.server.close_idle(), 1.0)
        for server in (self.server, self._admin, self._control):
            await server.shutdown(1.0)
        await self.tasks.close()
        await self._core.close()
        self.engines.close()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.allowances.write, *self.allowances.snapshot())
        await loop.run_in_executor(None, self.ledger.close)

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
            for server in (self.server, self._admin, self._control):
                server.end_late_heads(now, self.settings.timeouts.head)
            self.gatekeeper.refresh()
            self.engines.refresh(now, clock.wall())
            if now - self._reported_at >= REPORT:
                self._measure(now)
                self.server.end_unread(now, self.settings.timeouts.stall)
                if not self.draining:
                    notify.status(self.status_line())

    def _measure(self, now: float) -> None:
        events = sum(self.metrics.events.values()) + sum(e.relay.events for e in self.exchanges if e.relay is not None)
        self.tokens_per_second = max(events - self._events_before, 0) / max(now - self._reported_at, 0.001)
        self._events_before, self._reported_at = events, now

    def status_line(self) -> str:
        """`serving 1 model, 3 running, 0 queued, 41 tok/s`, or what stands in the way."""
        engines = self.engines
        serving = engines.serving_count(clock.monotonic())
        total = len(engines.groups)
        if self.config is None:
            return "the configuration is invalid: llm-appliance check"
        if not serving:
            group = next(iter(engines.groups.values()), None)
            text = engines.unavailable(group, group.engine.served[0], clock.wall()).message if group else "no engine"
        else:
            waiting = sum(group.admission.waiting for group in engines.groups.values())
            of = f" of {total}" if serving < total else ""
            models = "model" if total == 1 else "models"
            text = (
                f"serving {serving}{of} {models}, {self.engines_in_flight()} running, {waiting} queued, "
                f"{self.tokens_per_second:.0f} tok/s"
            )
        invalid = "; the file on disk is invalid" if self.effective.errors else ""
        keyless = "; no key yet: llm-appliance keys create NAME" if self._needs_key() else ""
        return text + invalid + keyless

    def _needs_key(self) -> bool:
        return (self.config or Config()).auth.required and not self.gatekeeper.has_keys

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE)
            await self._probe_remote()

    async def _probe_remote(self) -> None:
        """Ask every remote engine for its health; a local one tells by its state file."""
        await asyncio.gather(*(self._probe_one(replica) for replica in self.engines.replicas() if replica.remote))

    async def _probe_one(self, replica: Replica) -> None:
        try:
            code, _ = await get(replica, "/health", min(self.settings.timeouts.connect, 2.0))
            replica.reachable = replica.up = code < 500
            replica.late = 0
        except ConnectFailed as error:
            replica.late = replica.late + 1 if isinstance(error, Late) else FALL
            if replica.late >= FALL:
                replica.reachable = replica.up = False

    async def _watchdog(self) -> None:
        """Feed systemd's watchdog from the loop that serves: a loop that is stuck feeds nothing."""
        interval = notify.watchdog_interval()
        while interval is not None:
            notify.watchdog()
            await asyncio.sleep(interval)


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition, at most so long."""
    end = clock.monotonic() + seconds
    while True:
        if condition() or clock.monotonic() >= end:
            return
        await asyncio.sleep(0.02)
