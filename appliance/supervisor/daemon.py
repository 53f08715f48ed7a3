"""The loop: observe, remember, decide, show, act. The only writer of the fleet, the ledger and the holds.

Order within a cycle, so that being killed anywhere loses nothing: the ledger is on disk before anything follows from
it; a hold is on disk before the unit is stopped; a wish is on record until another run is seen. What an action led to
is the next cycle's observation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from appliance import clock, names
from appliance.config import source
from appliance.config.model import Config, Supervisor
from appliance.host import files, notify
from appliance.host.deadline import first_of
from appliance.host.journal import ERR, NOTICE, WARNING, Journal, message_id
from appliance.host.places import Places
from appliance.policy.deaths import remembered
from appliance.policy.reconcile import (
    ENDED,
    STABLE_S,
    Action,
    Desired,
    Plan,
    Readiness,
    Seen,
    Situation,
    UnitState,
    Verb,
    plan,
)
from appliance.policy.restart import Record, due_in_s, gpu_steps
from appliance.wire.incident import Incident

from . import ledger as ledgers
from . import rungs, sources, story
from .act import Hand, Refusal, Requests
from .drift import Watch
from .firstlooks import FirstLooks
from .fleet import Fleet, observed_only
from .gpumemory import GpuMemory
from .judges import Judges
from .looks import KEPT_S
from .observe import Observation, desired_of, observe, read_holds
from .planerrors import PlanErrors
from .recorder import Recorder
from .recoveries import Recoveries
from .telemetry import Telemetry

SHORTEST_PAUSE_S = 0.05
ENDING_PAUSE_S = 0.1
RETRY_CONFIG_S = 10.0  # while there is no valid configuration at all
RUNTIME_PAUSE_S = 300.0  # between two starts of the runtime's unit that an engine waits for


class Daemon:
    """One supervisor. Its methods run in one event loop; `step` is one cycle."""

    def __init__(self, config_path: str, places: Places, journal: Journal) -> None:
        self.config_path = config_path
        self.places = places
        self.journal = journal
        self.hand = Hand(places)
        self.fleet = Fleet(places.under_run(names.FLEET_STATE), journal)
        self.wake = asyncio.Event()
        self.telemetry = Telemetry(places, lambda: self.settings.interval, ended=self.wake.set)
        self.ledger = ledgers.read(places.under_state(names.RESTART_LEDGER))
        self.observation = Observation({}, {}, Readiness(), fault="not looked yet")
        self.effective = source.effective(config_path)
        self.desired = desired_of(self.effective.config)
        self.looked = asyncio.Event()  # the first look was taken
        self.cycle = 0  # the one that runs, else the last one
        self.recorder = Recorder(places.under_state(names.INCIDENTS), journal)
        self.judges = Judges(self.telemetry, places, journal)
        self.recoveries = Recoveries(self)
        self.first_looks = FirstLooks(lambda instance, run: self.subject(instance, run, ""))
        self.listeners: set[asyncio.Queue[dict[str, object] | int]] = set()
        self._requests = Requests(RUNTIME_PAUSE_S)
        self._read_at = clock.monotonic()
        self._faults: dict[str, str] = {}  # what was told already, by subject
        self._memory = GpuMemory()
        self._drift = Watch(config_path)
        self._plan_errors = PlanErrors(places.under_state(names.PLAN_ERRORS))
        self._draining: dict[str, float] = {}  # since when each engine is shown as draining
        self._ended: dict[str, str] = {}  # runs whose end was seen at the last look

    @property
    def settings(self) -> Supervisor:
        """`[supervisor]` as in force."""
        return self.effective.config.supervisor if self.effective.config is not None else Supervisor()

    @property
    def drain_s(self) -> float:
        """How long an engine's open calls are waited for before a restart."""
        return (self.effective.config or Config()).gateway.timeouts.drain

    def read_config(self) -> None:
        """Read the configuration again; an invalid file leaves what is in force, and is told once."""
        found = source.effective(self.config_path)
        self._read_at = clock.monotonic()
        if found.config is not None or self.effective.config is None:
            self.effective = found
            self.desired = desired_of(found.config)
        self.tell_config(found)

    def tell_config(self, found: source.Effective) -> None:
        """One line when the file on disk is invalid."""
        error = str(found.errors[0]) if found.errors else ""
        after = {"file": "", "last-good": "; the last good one is in force", "none": "; nothing is in force"}
        self.complain("config", f"{error}{after[found.origin]}" if error else "", "config-invalid", ERR)

    async def run(self, stop: asyncio.Event) -> None:
        """Cycle until `stop` is set; a cycle that fails is told and tried again, without a sign of life."""
        self.tell_config(self.effective)
        self._take_over()
        async with self.telemetry.running():
            while not stop.is_set():
                try:
                    await self.step()
                    self.complain("cycle", "", "supervisor-fault", ERR)
                    notify.notify(WATCHDOG=1, STATUS=self.sentence)
                except Exception as error:  # the top of the loop: engines must not pay for a fault in here
                    self.complain("cycle", f"{type(error).__name__}: {error}", "supervisor-fault", ERR)
                await first_of(self._pause_s, self.wake, stop)
                self.wake.clear()
        self.judges.close()
        await self.first_looks.close()
        await self.recoveries.close()
        await self.recorder.close()

    def _take_over(self) -> None:
        """Incidents and recoveries as the last supervisor left them."""
        try:
            self.recorder.load()
        except OSError as error:
            fault = f"incidents cannot be read: {error.strerror}: {error.filename}"
            self.complain("incidents", fault, "incident-lost", WARNING)
        for instance, entry in self.fleet.entries.items():
            if entry.incident is not None and entry.incident in self.recorder.known:
                self.recorder.open[instance] = entry.incident
        try:
            self.recoveries.resume()
        except OSError as error:
            self.complain("recoveries", f"a recovery cannot be resumed: {error}", "supervisor-fault", ERR)

    @property
    def _pause_s(self) -> float:
        """Until the next look: the interval, or less when a restart is due before, or the watchdog wants a sign, or a
        launcher has told an end and its unit's is about to follow."""
        interval = self.settings.interval
        pauses = [interval, notify.watchdog_interval() or interval]
        pauses += [ENDING_PAUSE_S for seen in self.observation.seen.values() if seen.ending]
        now, limits = clock.wall(), self.settings.restart
        pauses += [due for record in self.ledger.records.values() if (due := due_in_s(record, limits, now)) > 0]
        return max(min(pauses), SHORTEST_PAUSE_S)

    @property
    def sentence(self) -> str:
        """What `systemctl status` shows."""
        if self.effective.config is None:
            return "no valid configuration: llm-appliance check"
        if self.observation.fault:
            return f"systemd does not answer: {self.observation.fault}"
        return ("observing only; " if self.settings.mode == "observe" else "") + self.fleet.sentence

    async def step(self) -> None:
        """One cycle."""
        self.cycle += 1
        if self.effective.config is None and clock.monotonic() - self._read_at > RETRY_CONFIG_S:
            self.read_config()
        self.observation = await self.look(self.effective, self.desired)
        self.looked.set()
        self.complain("systemd", self.observation.fault, "systemd-refused", WARNING)
        self._follow()
        if self._is_news():
            await self.telemetry.ask_gateway()  # what was in flight at an end is part of its evidence
        past = gpu_steps(self.ledger.records.values(), clock.wall(), KEPT_S)
        self.judges.look(self.effective.config, self.observation.seen, past)
        unsaved = self._remember()
        made = self._plan()
        idle = 'mode is "observe"' if self.settings.mode == "observe" else unsaved
        self._show(made, idle)
        if not idle and not self.observation.fault:
            suspected = {one: seen.run for one in self.judges.suspected() if (seen := self.observation.seen.get(one))}
            self.first_looks.follow(suspected, self.recoveries.runs)
            self._take_down()
            for action in made.actions:
                if action.instance in self.recoveries.active:
                    continue
                await self._carry_out(action)
                notify.watchdog()
        self.publish(self.cycle)

    def _is_news(self) -> bool:
        """Whether an engine has ended since the last look."""
        ended = {instance: seen.run for instance, seen in self.observation.seen.items() if seen.unit in ENDED}
        before, self._ended = self._ended, ended
        return any(before.get(instance) != run for instance, run in ended.items())

    def _take_down(self) -> None:
        """Engines that hang are taken down, with evidence; what cannot be put on disk is tried again next time."""
        for instance, judged in self.judges.hanging():
            try:
                self.recoveries.recover(instance, judged)
                self.complain(f"recovery {instance}", "", "supervisor-fault", ERR)
            except OSError as error:
                fault = f"{instance} hangs, and that cannot be put on disk: {error.strerror}: {error.filename}"
                self.complain(f"recovery {instance}", fault, "supervisor-fault", ERR, instance)

    async def look(self, found: source.Effective, desired: tuple[Desired, ...]) -> Observation:
        """See how things are for a configuration, which need not be the one in force."""
        return await observe(found.config, desired, self.places)

    def save(self, records: Mapping[str, Record]) -> None:
        """Put records on disk when they changed. Raises OSError: nothing may follow from what is not on disk."""
        self._put(self.ledger.with_records(records))

    def _put(self, ledger: ledgers.Ledger) -> None:
        if ledger != self.ledger:
            ledgers.write(self.places.under_state(names.RESTART_LEDGER), ledger)
            self.ledger = ledger

    def publish(self, event: dict[str, object] | int) -> None:
        """Hand an event, or the number of a cycle that ended, to those who follow; who does not read loses some."""
        for queue in self.listeners:
            if not queue.full():
                queue.put_nowait(event)

    def complain(self, subject: str, fault: str, event: str, priority: int, instance: str | None = None) -> None:
        """Tell a fault once until it changes or ends (an empty fault is its end)."""
        if fault and self._faults.get(subject) != fault:
            incident = self.recorder.open.get(instance) if instance else None
            story.line(self.journal, priority, fault, event=event, instance=instance, incident=incident)
        self._faults[subject] = fault

    def _follow(self) -> None:
        """Telemetry watches the engines as they were seen; a source that gives nothing is told once."""
        if not self.observation.fault:
            self.telemetry.follow({d.instance: self.observation.groups.get(d.instance, "") for d in self.desired})
        self._memory.see(self.telemetry.nvml, STABLE_S)
        self._plan_errors.see(self.observation.plan_errors)
        self.complain("learned", self.judges.fault or self._plan_errors.fault, "supervisor-fault", WARNING)
        faults = {f"no evidence: {what}": fault for what, fault in self.telemetry.faults.items()}
        for subject in [*faults, *(known for known in self._faults if known.startswith("no evidence: "))]:
            fault = faults.get(subject, "")
            self.complain(subject, f"{subject}: {fault}" if fault else "", "telemetry-fault", WARNING)

    def _remember(self) -> str:
        """Deaths, fulfilled wishes and load times enter the ledger. Why nothing may follow now, empty where it may:
        what is not on disk is not told yet, and is left to systemd's net until a later look."""
        now, limits = clock.wall(), self.settings.restart
        acts = self.settings.mode == "act"
        if not acts:
            limits = replace(limits, oom_ladder=False)  # nothing would carry out its steps
        records, before, fault = dict(self.ledger.records), self.ledger.records, ""
        ended: list[tuple[str, Seen]] = []
        for desired in self.desired:
            instance = desired.instance
            seen, record = self.observation.seen.get(instance, Seen()), records.get(instance, Record())
            if seen.unit in ENDED and self.recoveries.took(instance, seen.run):
                continue
            if seen.unit in ENDED:
                seen = self.judges.with_evidence(instance, seen)
            records[instance], cause = remembered(seen, record, limits, now=now, jitter=random.random())
            if cause:
                ended.append((instance, seen))
        for instance in set(records) - {desired.instance for desired in self.desired}:
            gone = Seen() if self.observation.fault else Seen(unit=UnitState.DOWN)
            unit = self.observation.seen.get(instance, gone).unit
            if unit in (UnitState.DOWN, UnitState.FAILED) and records[instance].drop:
                del records[instance]
        try:
            self.save(records)
            for instance, seen in ended:
                self._tell_death(instance, records[instance], seen)
            for instance, record in records.items():
                story.tell_ladder(self.journal, instance, before.get(instance, Record()).ladder, record.ladder)
            if acts:
                rungs.write(self.places, self.ledger.records)
        except OSError as error:
            fault = f"what is known of engines cannot be put on disk ({error.strerror})"
        self.complain("ledger", f"{fault}: nothing is done about them" if fault else "", "supervisor-fault", ERR)
        with suppress(OSError):  # nothing follows from load times
            self._put(self.ledger.with_loads(self.observation.loads.values()))
        return fault

    def subject(self, instance: str, run: str, group: str) -> sources.Subject:
        """What evidence about a run is asked of."""
        facts, first = sources.facts(self.places, self.effective), self.first_looks.of(instance, run)
        return sources.Subject(
            instance, run, group, self.effective, self.places, self.judges.timeline, facts=facts, first=first
        )

    def _tell_death(self, instance: str, record: Record, seen: Seen) -> None:
        about = Incident(
            id="", engine=instance, at=clock.wall(), kind="death", cause=record.cause, reason=record.reason,
            verdict="failed", action="hold" if record.hold else "restart", run=seen.run,
        )  # fmt: skip
        id_ = self.recorder.death(about, lambda: self.subject(instance, seen.run, ""))
        story.tell_death(self.journal, instance, record, id_)
        self.publish({"event": "ended", "engine": instance, "cause": record.cause, "message": record.reason})

    def _plan(self) -> Plan:
        now = clock.monotonic()
        made = plan(
            Situation(
                desired=self.desired,
                seen=self.observation.seen,
                holds=self.observation.holds,
                records=self.ledger.records,
                readiness=self.observation.readiness,
                limits=self.settings.restart,
                now=clock.wall(),
                recent=self._requests.ages(self.observation.seen),
                memory=self._memory.known,
                inflight=self.judges.open_calls(),
                draining={instance: now - since for instance, since in self._draining.items()},
                drain_s=self.drain_s,
                laid=rungs.laid(self.places, self.observation.seen),
            )
        )
        drain = [instance for instance, view in made.views.items() if view.state == "draining"]
        self._draining = {instance: self._draining.get(instance, now) for instance in drain}
        return made

    def _show(self, made: Plan, idle: str) -> None:
        now, window = clock.wall(), self.settings.restart.window
        views = {instance: self.judges.view(instance, view) for instance, view in made.views.items()}
        views |= self.recoveries.views
        self.judges.tell()
        for action in made.actions if idle else ():
            if action.instance in views:
                views[action.instance] = observed_only(views[action.instance], action, idle)
        wanted = {desired.instance: desired.digest for desired in self.desired}
        counts = {name: len(record.within(window, now)) for name, record in self.ledger.records.items()}
        loads = self.ledger.load_times(wanted, self.observation.seen)
        deaths = {name: record.deaths[-1] for name, record in self.ledger.records.items() if record.deaths}
        for event in self.fleet.update(views, set(wanted), counts, loads, now, self.recorder.open, deaths):
            self.publish(event)
        for instance, entry in self.fleet.entries.items():
            if entry.view.state == "serving":  # its trouble is over
                self.recorder.open.pop(instance, None)
        drift = self._drift.look(self.effective, self.desired, self.observation.seen)
        self.fleet.write(self.settings.mode, now, self.recorder.recent, [one.public for one in drift])

    async def _carry_out(self, action: Action) -> None:
        """One step; a refusal is told once and tried again in a later cycle."""
        unit = names.engine_unit(action.instance) if action.instance else names.RUNTIME_UNIT
        try:
            if action.verb is Verb.HOLD:
                self.hold(action.instance, action.cause, action.reason)
            seen = self.observation.seen.get(action.instance, Seen())
            self._requests.made(action.instance, seen)
            if action.verb is Verb.AGAIN:
                refusal = await self.hand.again(action.instance, seen.verdict_start)
                text = f"{action.instance}: its unit is restarted: {refusal}"
                self.complain(f"again {action.instance}", text if refusal else "", "engine-note", NOTICE)
            else:
                verb = {Verb.HOLD: "stop", Verb.RUNTIME: "start"}.get(action.verb, action.verb.value)
                await self.hand.ask(verb, unit)
        except (OSError, Refusal) as error:
            fault = f"{unit} cannot be held: {error.strerror}" if isinstance(error, OSError) else error.message
            self.complain(unit, fault, "systemd-refused", WARNING, action.instance or None)
            return
        self.complain(unit, "", "systemd-refused", WARNING)
        if action.verb is Verb.RUNTIME:
            text = f"{names.RUNTIME_UNIT} is started: {action.reason}"
            self.journal.log(NOTICE, text, MESSAGE_ID=message_id("runtime-started"), LLM_EVENT="runtime-started")
        else:
            self.publish(
                {"event": "action", "engine": action.instance, "action": action.verb.value, "message": action.reason}
            )

    def ordered(self) -> None:
        """An order came: what it wants is looked at now, and what was asked before does not delay it."""
        self._requests.forget()
        self.wake.set()

    @property
    def holds(self) -> Mapping[str, tuple[str, str]]:
        """Holds as they are on disk now; the last observation may be older than the last action."""
        return read_holds(self.places)

    def hold(self, instance: str, cause: str, reason: str) -> None:
        """Put a hold on disk; the unit's own condition reads it from then on. Raises OSError."""
        directory = Path(self.places.under_state(names.HOLDS))
        directory.mkdir(parents=True, exist_ok=True)
        files.replace_json(directory / instance, {"at": round(clock.wall(), 3), "cause": cause, "reason": reason})
        cleared = replace(self.ledger.records.get(instance, Record()), hold="", wanted="", over="", not_before=None)
        self.save({**self.ledger.records, instance: cleared})

    def release(self, instance: str) -> None:
        """Remove a hold from disk. Raises OSError."""
        Path(self.places.under_state(names.HOLDS), instance).unlink(missing_ok=True)
