"""The control socket: orders of the operator, one JSON line a connection; event lines back, then `done`.

    {"op": "status"}                                       the fleet, for whoever may open the socket
    {"op": "hold", "engine": "chat", "reason": "..."}      until its units are down
    {"op": "drain", "engine": "chat", "reason": "..."}     no new calls, also after a restart; undrain ends that
    {"op": "resume", "engine": "chat", "wait": true}       wait: until it serves, failed, or the deadline
    {"op": "restart", "engine": "chat", "wait": true}
    {"op": "restart", "engine": "chat", "evidence": true}  of one replica, which tells its stacks first
    {"op": "apply", "deadline": 3600}                      the file on disk comes into force; until all is settled, or
                                                           `done` names the engines that were `lost` with it

An engine's name stands for all its replicas, an instance's for itself. Changes need root or the supervisor's own user;
the kernel says who asks. What was ordered is on record before the first event goes out: a caller that leaves changes
nothing. It is in fleet.json before `done`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from appliance import clock
from appliance.config import source
from appliance.errors import EXIT_FOUND, ApplianceError, ConfigInvalid, Failed, UsageError
from appliance.host import peer, proc
from appliance.host.journal import NOTICE
from appliance.policy import orders
from appliance.policy.reconcile import RUNNING, Desired, Seen, UnitState, View
from appliance.policy.restart import Record
from appliance.units.render import STOP_MARGIN_S
from appliance.wire.vllmargs import SHUTDOWN_S, shutdown_s

from . import story
from .daemon import Daemon
from .observe import Observation, desired_of

READ_DEADLINE_S = SEND_DEADLINE_S = 5.0
FIRST_LOOK_S = 15.0
HOLD_MARGIN_S = 45.0  # on top of an engine's TimeoutStopSec=
FOLLOW_DEADLINE_S = 3600.0
SHOWN_S = 10.0  # for the look after an order; what is on record is done all the same
LINE_LIMIT = 16384


class Lost(Failed):
    """Engines that an order was followed for and that do not serve without more ado."""

    def __init__(self, engines: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{instance}: {reason}" for instance, reason in engines.items()))
        self.engines = tuple(engines)


class Control:
    """Serves the socket for one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._open: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self, path: str) -> AsyncIterator[None]:
        """The socket is there inside; on leaving, open connections are ended and it is removed. Raises OSError."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, path, limit=LINE_LIMIT)
        os.chmod(path, 0o660)
        try:
            yield
        finally:
            server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            Path(path).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the caller left, or we stop; the order is on record
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status = EXIT_FOUND
        lost: tuple[str, ...] = ()
        try:
            request = await _read(reader)
            ok, message = await self._do(request, peer.uid_of(writer.get_extra_info("socket")), writer)
        except ApplianceError as error:
            lost = error.engines if isinstance(error, Lost) else ()
            ok, message, status = False, error.message, error.exit_status
        except ConnectionError:
            raise  # nobody is there to be told
        except OSError as error:
            ok, message = False, f"the supervisor cannot write its state: {error}"
        failed = {} if ok else {"status": status, "lost": lost}
        await _send(writer, {"done": True, "ok": ok, "message": message, **failed})

    async def _do(self, request: Mapping[str, object], uid: int, writer: asyncio.StreamWriter) -> tuple[bool, str]:
        op = request.get("op")
        if op == "status":
            await _send(writer, {"event": "fleet", **self._fleet()})
            return True, ""
        if uid not in (0, os.geteuid()):
            raise Failed("only root may change engines")
        if op not in ("hold", "resume", "restart", "drain", "undrain", "apply"):
            raise UsageError(f"there is no op {op!r}")
        try:
            await asyncio.wait_for(self._daemon.looked.wait(), FIRST_LOOK_S)
        except asyncio.TimeoutError:
            raise Failed("the supervisor has not taken its first look yet") from None
        deadline = request.get("deadline")
        usable = isinstance(deadline, (int, float)) and 0 < deadline < 30 * FOLLOW_DEADLINE_S
        limit = float(str(deadline)) if usable else FOLLOW_DEADLINE_S
        queue: asyncio.Queue[dict[str, object] | int] = asyncio.Queue(1000)
        self._daemon.listeners.add(queue)
        try:
            if op == "apply":
                return await self._apply(writer, queue, limit)
            return await self._change(str(op), request, writer, queue, limit)
        finally:
            self._daemon.listeners.discard(queue)

    async def _change(
        self,
        op: str,
        request: Mapping[str, object],
        writer: asyncio.StreamWriter,
        queue: asyncio.Queue[dict[str, object] | int],
        limit: float,
    ) -> tuple[bool, str]:
        daemon = self._daemon
        instances = self._instances(request.get("engine"), with_held=op != "restart")
        if request.get("evidence") is True:
            instances = [instance for instance in instances if instance == request.get("engine")] or instances[:1]
        observed = await self._look(daemon.effective, daemon.desired)
        if op == "resume":
            held = daemon.holds
            instances = [i for i in instances if i in held or observed.seen.get(i, Seen()).unit not in RUNNING]
            if not instances:
                return True, f"{request.get('engine')} is not held and runs"
        for instance in instances:
            seen = observed.seen.get(instance, Seen())
            record = daemon.ledger.records.get(instance, Record())
            if op == "hold":
                daemon.hold(instance, orders.BY_OPERATOR, str(request.get("reason") or "by the operator"))
            elif op == "resume":
                resumed = orders.resumed(record, seen, "resumed by the operator")
                daemon.save({**daemon.ledger.records, instance: resumed})
                daemon.release(instance)
                self._tell("engine-resumed", f"{instance}: resumed by the operator", instance)
            elif op in ("drain", "undrain"):
                why = str(request.get("reason") or "drained by the operator") if op == "drain" else ""
                daemon.save({**daemon.ledger.records, instance: orders.drained(record, why)})
            elif request.get("evidence") is True:
                self._take_down(instance, str(request.get("reason") or "by the operator"))
            else:
                why = str(request.get("reason") or "by the operator")
                daemon.save({**daemon.ledger.records, instance: orders.restarted(record, seen, why)})
        daemon.ordered()
        who = ", ".join(instances)
        if op == "hold":
            return await self._follow(instances, writer, queue, self._stop_s(instances), down=True)
        if request.get("wait") is True and op in ("resume", "restart"):
            return await self._follow(instances, writer, queue, limit)
        await self._shown(queue)
        if op in ("drain", "undrain"):
            return True, f"{who}: {'gets no new calls' if op == 'drain' else 'takes calls again'}"
        return True, f"{who}: {'restart' if op == 'restart' else 'start'} is under way"

    def _take_down(self, instance: str, why: str) -> None:
        """Raises Failed where there is nothing to take evidence of, or nothing may be touched."""
        if self._daemon.settings.mode == "observe":
            raise Failed('nothing is killed while mode under [supervisor] is "observe"')
        if instance in self._daemon.recoveries.active:
            raise Failed(f"{instance} is being taken down already")
        if not self._daemon.recoveries.restart(instance, why):
            raise Failed(f"{instance} does not run: there is nothing to take evidence of")

    async def _apply(
        self, writer: asyncio.StreamWriter, queue: asyncio.Queue[dict[str, object] | int], limit: float
    ) -> tuple[bool, str]:
        daemon = self._daemon
        found = source.effective(daemon.config_path)
        if found.config is None or (found.errors and not found.rolled_back):
            raise ConfigInvalid(found.problems)
        new = desired_of(found.config)
        observed = await self._look(found, new)
        result = orders.applied(daemon.desired, new, observed.seen, daemon.ledger.records, daemon.holds)
        daemon.save(result.records)
        for instance in result.released:
            daemon.release(instance)
        daemon.effective, daemon.desired = found, new
        daemon.tell_config(found)
        changes = "; ".join(f"{instance} {note}" for instance, note in result.notes.items())
        self._tell("config-applied", f"the configuration is applied: {changes or 'no engine is touched'}")
        for instance, note in result.notes.items():
            await _send(writer, {"event": "change", "engine": instance, "message": note})
        daemon.ordered()
        followed = [d.instance for d in new if d.instance in result.records and result.records[d.instance].wanted]
        followed += [instance for instance, record in result.records.items() if record.drop]
        if not followed:
            await self._shown(queue)
            return True, "no engine had to be touched"
        return await self._follow(followed, writer, queue, limit)

    async def _follow(
        self,
        instances: Sequence[str],
        writer: asyncio.StreamWriter,
        queue: asyncio.Queue[dict[str, object] | int],
        limit: float,
        *,
        down: bool = False,
    ) -> tuple[bool, str]:
        """Pass on what happens to the instances until all are settled, one failed, or the limit."""
        end, before = clock.monotonic() + limit, self._daemon.cycle
        while True:
            try:
                event = await asyncio.wait_for(queue.get(), end - clock.monotonic())
            except asyncio.TimeoutError:
                return False, f"not settled within {limit:.0f} s; the supervisor goes on"
            if not isinstance(event, int):
                if event.get("engine") in instances:
                    await _send(writer, event)
            elif event > before and (settled := self._settled(instances, down=down)) is not None:
                return settled

    async def _shown(self, queue: asyncio.Queue[dict[str, object] | int]) -> None:
        """Until what was ordered is shown, so that who asks next is not told how it was before."""
        before = self._daemon.cycle  # one that runs may have looked before the order came

        async def look() -> None:
            while not isinstance(event := await queue.get(), int) or event <= before:
                pass

        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(look(), SHOWN_S)

    def _settled(self, instances: Sequence[str], *, down: bool) -> tuple[bool, str] | None:
        """How it ended; None while something is under way. Raises Lost."""
        daemon = self._daemon
        wanted = {desired.instance for desired in daemon.desired}
        open_, bad = [], {}
        for instance in instances:
            seen = daemon.observation.seen.get(instance, Seen())
            entry, record = daemon.fleet.entries.get(instance), daemon.ledger.records.get(instance, Record())
            state = entry.view.state if entry is not None else ""
            if down or instance not in wanted:
                if seen.unit in RUNNING or seen.unit is UnitState.STOPPING:
                    open_.append(instance)
            elif entry is not None and _is_lost(entry.view, record, daemon.observation):
                bad[instance] = f"{entry.view.cause or state}: {entry.view.reason}"
            elif state not in ("serving", "draining") or record.wanted:
                open_.append(instance)
        if bad:
            raise Lost(bad)
        if open_:
            return None
        return True, f"{', '.join(instances)}: {'stopped' if down else 'settled'}"

    async def _look(self, found: source.Effective, desired: tuple[Desired, ...]) -> Observation:
        """How things are now: the last cycle's look may be older than a death. Raises Failed when systemd is silent."""
        observed = await self._daemon.look(found, desired)
        if observed.fault:
            raise Failed(f"systemd does not answer: {observed.fault}")
        return observed

    def _instances(self, engine: object, *, with_held: bool) -> list[str]:
        """The instances that an order names. Raises UsageError for none, Failed for a held one."""
        daemon = self._daemon
        found = [d.instance for d in daemon.desired if d.engine == engine]
        found = found or [d.instance for d in daemon.desired if d.instance == engine]
        if not found and isinstance(engine, str) and engine in daemon.holds:
            found = [engine]  # held, and the configuration does not name it any more
        if not found:
            known = ", ".join(dict.fromkeys(d.engine for d in daemon.desired)) or "none"
            raise UsageError(f"there is no local engine {engine!r}; the configuration in force has: {known}")
        held = [instance for instance in found if instance in daemon.holds]
        if held and not with_held:
            raise Failed(f"{held[0]} is held: {daemon.holds[held[0]][1]}; llm-appliance resume {held[0]}")
        return found

    def _stop_s(self, instances: Sequence[str]) -> float:
        """How long the stop of these engines may take; systemd kills what takes longer."""
        config = self._daemon.effective.config
        engines = [config.engine_of(instance) for instance in instances] if config is not None else []
        graces = [shutdown_s(engine) for engine in engines if engine is not None]
        return max([SHUTDOWN_S, *graces]) + STOP_MARGIN_S + HOLD_MARGIN_S

    def _fleet(self) -> dict[str, object]:
        daemon = self._daemon
        engines: dict[str, object] = {}
        for instance, entry in daemon.fleet.entries.items():
            group = daemon.observation.groups.get(instance, "")
            processes = proc.unit_processes(group)
            listed = [
                {"pid": p.pid, "parent": p.parent, "comm": p.comm, "state": p.state, "cpu_s": round(p.cpu_s, 2)}
                for p in (processes if isinstance(processes, tuple) else ())
            ]
            engines[instance] = {**entry.public, "processes": listed}
        return {
            "mode": daemon.settings.mode,
            "origin": daemon.effective.origin,
            "digest": daemon.effective.text_digest,
            "fault": daemon.observation.fault,
            "engines": engines,
        }

    def _tell(self, event: str, text: str, instance: str | None = None) -> None:
        incident = self._daemon.recorder.open.get(instance) if instance else None
        story.line(self._daemon.journal, NOTICE, text, event=event, instance=instance, incident=incident)


def _is_lost(view: View, record: Record, observation: Observation) -> bool:
    """Whether an engine will not serve without more ado: it is not waited for any longer."""
    if view.state == "waiting" and observation.runtime_failed and view.reason:
        return True
    return view.state in ("held", "failed") or (view.state == "restarting" and record.not_before is not None)


async def _read(reader: asyncio.StreamReader) -> Mapping[str, object]:
    try:
        line = await asyncio.wait_for(reader.readline(), READ_DEADLINE_S)
        value = json.loads(line)
    except asyncio.TimeoutError:
        raise UsageError(f"no request within {READ_DEADLINE_S:.0f} s") from None
    except (ValueError, RecursionError):  # readline raises ValueError for a line over the limit
        raise UsageError("the request is not one line of JSON") from None
    if not isinstance(value, dict):
        raise UsageError("the request is not a JSON object")
    return value


async def _send(writer: asyncio.StreamWriter, value: Mapping[str, object]) -> None:
    """One line. Raises ConnectionError for a caller that left or does not read."""
    writer.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")
    try:
        await asyncio.wait_for(writer.drain(), SEND_DEADLINE_S)
    except asyncio.TimeoutError:
        raise ConnectionAbortedError("the caller does not read") from None
