"""All recoveries under way: the way in for whoever judges an engine, and back after the supervisor was killed."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from appliance import clock, names
from appliance.host import files
from appliance.host.journal import ERR
from appliance.policy.aftermath import REMEDIES
from appliance.policy.causes import CAUSES, UNKNOWN_CAUSE, Remedy
from appliance.policy.deaths import died
from appliance.policy.failure import Failure
from appliance.policy.hardware import Step
from appliance.policy.reclaim import Judged
from appliance.policy.reconcile import RUNNING, Seen, View
from appliance.policy.restart import Death, Record, asked

from . import story
from .recovery import Case, Recovery, path_of, read, write

if TYPE_CHECKING:
    from .daemon import Daemon


class Recoveries:
    """Owner of the recoveries' tasks."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._active: dict[str, Recovery] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._taken: dict[str, str] = {}  # instance: the run that was taken down last

    @property
    def active(self) -> frozenset[str]:
        """Instances that are being taken down: nobody else acts on them."""
        return frozenset(self._active)

    @property
    def runs(self) -> Mapping[str, str]:
        """The run of each of them."""
        return {instance: recovery.case.run for instance, recovery in self._active.items()}

    def took(self, instance: str, run: str) -> bool:
        """Whether a run's end is this recovery's doing, and so no death of its own."""
        return bool(run) and self._taken.get(instance) == run

    @property
    def views(self) -> Mapping[str, View]:
        """What each of them is."""
        return {instance: recovery.view for instance, recovery in self._active.items()}

    def resume(self) -> None:
        """Go on with what is on disk; what the last supervisor decided and had no time to enter is entered. Raises
        OSError."""
        directory = self._daemon.places.under_state(names.RECOVERIES)
        try:
            left = sorted(name for name in os.listdir(directory) if names.INSTANCE.fullmatch(name))
        except FileNotFoundError:
            return
        for instance in left:
            case = read(f"{directory}/{instance}")
            if case is not None and instance not in self._active:
                news = self._enter(instance, case)
                self._begin(instance, case)
                if news and case.kind != "asked":
                    self._tell_end(instance, case)

    def recover(self, instance: str, judged: Judged) -> bool:
        """Take a running engine down for what was judged, with evidence, and have it started again within its budget.

        Returns at once: True when it was begun, False when it is under way already or nothing runs. What was decided is
        on disk then. Raises OSError: nothing was begun.
        """
        cause = judged.cause if judged.cause in CAUSES else UNKNOWN_CAUSE
        case = self._case(instance, "kill", cause, judged.reason, judged)
        if case is None:
            return False
        self._decided(instance, case)
        self._tell_end(instance, case)
        return True

    def restart(self, instance: str, why: str) -> bool:
        """The same for an operator who wants evidence with a restart: it costs nothing of the budget."""
        case = self._case(instance, "asked", "", why)
        if case is None:
            return False
        self._decided(instance, case)
        self._publish(instance, "evidence", f"restart with evidence: {why}")  # its line is the change of its state
        return True

    async def close(self) -> None:
        """Leave everything as it is on disk; the next supervisor goes on."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _case(self, instance: str, kind: str, cause: str, reason: str, judged: Judged | None = None) -> Case | None:
        """A new case; None for what is being taken down already or does not run."""
        seen = self._daemon.observation.seen.get(instance, Seen())
        if instance in self._active or seen.unit not in RUNNING or not seen.run:
            return None
        at = clock.wall()
        failed = judged is not None and judged.verdict == "failed"
        fault = self._daemon.judges.gpu_fault(instance) if failed else None
        state = files.read_json(names.engine_state(instance, self._daemon.places.run)) or {}
        return Case(
            at=round(at, 3),
            run=seen.run,
            start=str(state.get("start") or ""),
            kind=kind,
            incident=self._daemon.recorder.name(instance, cause, at),
            cause=cause,
            reason=reason,
            verdict=judged.verdict if judged is not None else "",
            action=judged.action if judged is not None else "restart",
            evidence=tuple(judged.evidence) if judged is not None else (),
            group=self._daemon.observation.groups.get(instance, ""),
            pci=fault.pci if fault is not None else "",
            step=fault.step.value if fault is not None else 0,
        )

    def _decided(self, instance: str, case: Case) -> None:
        write(path_of(self._daemon, instance), case)
        self._enter(instance, case)
        self._begin(instance, case)

    def _enter(self, instance: str, case: Case) -> bool:
        """The death that the kill is going to be, or the operator's wish, on record; once. Whether it was not there.
        Raises OSError."""
        records = self._daemon.ledger.records
        record, now = records.get(instance, Record()), clock.wall()
        if case.kind == "asked":
            if not record.wanted:
                record = asked(record, case.reason, case.run)
        elif not record.knows(case.run):
            death = Death(now, case.run, case.cause, case.start)
            failure = Failure(case.cause, _remedy(case), case.reason, case.evidence, case.pci, _step(case))
            facts = self._daemon.observation.seen.get(instance, Seen()).facts
            limits = self._daemon.settings.restart
            record = died(record, death, failure, facts, limits, now=now, jitter=random.random())
        self._daemon.save({**records, instance: record})
        return record is not records.get(instance)

    def _begin(self, instance: str, case: Case) -> None:
        self._daemon.recorder.open[instance] = case.incident
        recovery = Recovery(self._daemon, instance, case, self._daemon.judges.memory)
        task = asyncio.ensure_future(recovery.run())
        task.set_name(f"recovery {instance}")
        self._taken[instance] = case.run
        self._active[instance], self._tasks[instance] = recovery, task
        task.add_done_callback(lambda done: self._ended(instance, done))

    def _ended(self, instance: str, task: asyncio.Task[None]) -> None:
        """The loop acts again on the engine. A fault of ours leaves the case on disk for the next supervisor."""
        if task.cancelled():
            return
        self._active.pop(instance, None)
        self._tasks.pop(instance, None)
        error = task.exception()
        fault = f"recovery of {instance}: {type(error).__name__}: {error}" if error is not None else ""
        self._daemon.complain(f"recovery of {instance}", fault, "supervisor-fault", ERR, instance)
        self._daemon.ordered()

    def _tell_end(self, instance: str, case: Case) -> None:
        text = f"{case.cause}: {case.reason}"
        story.line(
            self._daemon.journal, ERR, f"{instance}: {text}", event="engine-ended", instance=instance, cause=case.cause,
            incident=case.incident, entry=case.cause,
        )  # fmt: skip
        self._publish(instance, case.cause, text)

    def _publish(self, instance: str, cause: str, text: str) -> None:
        self._daemon.publish({"event": "ended", "engine": instance, "cause": cause, "message": text})


def _step(case: Case) -> Step:
    """How far up its ladder the GPU at fault is; what no version of ours has written is nothing."""
    return Step(case.step) if case.step in {step.value for step in Step} else Step.NOTHING


def _remedy(case: Case) -> Remedy:
    """What follows: of a GPU that failed what was judged, of a hang what its own count in the ledger makes of it."""
    usual = CAUSES[case.cause].remedy
    return REMEDIES.get(case.action, usual) if case.verdict == "failed" else usual
