"""One judge for each engine that is watched: told all that telemetry sees, asked once a cycle.

Judges judge and nothing else. What follows from it is the loop's: a recovery of an engine that hangs, evidence for the
end of one that died. An idle engine is asked for a sign of life here, since its answer is something to be judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from appliance import clock, names
from appliance.config.model import Config, Supervisor
from appliance.host import realwork
from appliance.host.journal import NOTICE, WARNING, Journal
from appliance.host.places import Places
from appliance.policy.canary import Rest, is_due
from appliance.policy.causes import CAUSES, UNKNOWN_CAUSE, Remedy
from appliance.policy.failure import Failure
from appliance.policy.hardware import Step
from appliance.policy.judge import Judge
from appliance.policy.judgement import Judgement
from appliance.policy.reconcile import Seen, UnitState, View
from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Canary, Gpu, Lag, Ledger, Nvml, Sample, Setting
from appliance.wire.findings import Reader
from appliance.wire.timelinewrite import header, record_of
from appliance.wire.vllmargs import ranks_of

from . import story
from .learned import LearnedFile
from .telemetry import Telemetry

SUSPECT_EVENT, NOTE_EVENT = "engine-suspect", "engine-note"
CANARY_LIMIT_S = 900.0  # longest wait for its answer: a judge has made up its mind long before
STALE_S = 30.0  # a reading of the GPUs that is older says nothing of their memory now


_NO_STEPS: Mapping[str, Step] = {}
_SILENT = ("suspect", "hung", "failed")


@dataclass(slots=True)
class _Case:
    """An engine before its judge."""

    judge: Judge
    reader: Reader
    setting: Setting  # without what was learned
    limits: Supervisor
    model: str
    key: str  # of what is learned
    place: tuple[int, int, int] = (0, 0, 0)  # how far telemetry was read
    judgement: Judgement | None = None
    judged_at: float = 0.0
    told: tuple[str, str] = ("ok", "")
    noted: tuple[str, ...] = ()
    canary: asyncio.Task[object] | None = None
    open_calls: Maybe[int] = field(default=UNKNOWN)


class Judges:
    """The judges of all engines. Its methods run in the loop; `look` first, then what is asked."""

    def __init__(self, telemetry: Telemetry, places: Places, journal: Journal) -> None:
        self._telemetry, self._places, self._journal = telemetry, places, journal
        self._cases: dict[str, _Case] = {}
        self._learned = LearnedFile(places.under_state(names.LEARNED))
        self._addresses: dict[tuple[str, ...], tuple[str, ...]] = {}  # of GPUs, by the launcher's names for them

    # --- once a cycle -------------------------------------------------------------------------------------------------

    def look(self, config: Config | None, seen: Mapping[str, Seen], past: Mapping[str, Step] = _NO_STEPS) -> None:
        """Hear what is new of each local engine, and ask those for a sign of life that have rested for long.

        `past`: how far up its ladder each GPU was before what telemetry keeps.
        """
        instances = config.local_instances if config is not None else ()
        for gone in [instance for instance in self._cases if instance not in instances]:
            self._drop(gone)
        for instance in instances:
            assert config is not None
            case = self._case(config, instance, seen.get(instance, Seen()), past)
            self._hear(instance, case)
            self._ask_for_life(instance, case, seen.get(instance, Seen()))
        if self._learned.is_due:
            for case in self._cases.values():
                self._learned.keep(case.key, case.judge.learned())
            self._learned.write()

    def close(self) -> None:
        """No more questions."""
        for instance in list(self._cases):
            self._drop(instance)
        self._learned.write()

    @property
    def fault(self) -> str:
        """Why what was learned is not kept; empty while it is."""
        return self._learned.fault

    # --- what is concluded --------------------------------------------------------------------------------------------

    def hanging(self) -> Iterator[tuple[str, Judgement]]:
        """Engines that run and are to be taken down: they hang, or have stopped moving with a GPU that failed."""
        for instance, case in self._cases.items():
            found = case.judgement
            if found is not None and case.judge.runs and found.verdict in ("hung", "failed") and found.action != "none":
                yield instance, found

    def suspected(self) -> Iterator[str]:
        """Engines that are silent for too long, those that are surely hung among them."""
        for instance, case in self._cases.items():
            if case.judgement is not None and case.judge.runs and case.judgement.verdict in _SILENT:
                yield instance

    def view(self, instance: str, view: View) -> View:
        """What is shown of an engine, with what its judge thinks of it."""
        case = self._cases.get(instance)
        found = case.judgement if case is not None else None
        if case is None or found is None or view.state not in ("serving", "starting") or not case.judge.runs:
            return view
        if found.verdict in _SILENT:
            return replace(view, reason=found.reason, cause=found.cause, suspect=view.state == "serving")
        if view.state == "serving" and found.cause in ("asleep", "compiling", "busy-prefill"):
            return replace(view, reason=view.reason or found.reason, cause=found.cause)
        return view

    def with_evidence(self, instance: str, seen: Seen) -> Seen:
        """What is seen of an engine that ended, with what was noticed around its end."""
        case = self._cases.get(instance)
        now = clock.monotonic()
        return seen if case is None else replace(seen, evidence=case.judge.ending.evidence(now - seen.age_s, now))

    def gpu_fault(self, instance: str) -> Failure | None:
        """What stops a GPU of an engine, whatever the engine itself does."""
        case = self._cases.get(instance)
        return None if case is None else case.judge.ending.hardware(clock.monotonic(), float("-inf"))

    def killed(self, instance: str) -> None:
        """We sent a SIGKILL to its processes."""
        case = self._cases.get(instance)
        if case is not None:
            case.judge.ending.killed_at = clock.monotonic()

    def tell(self) -> None:
        """One line for each change of mind that nothing else tells."""
        for instance, case in self._cases.items():
            found = case.judgement
            notes = case.judge.ending.notes
            for note in sorted(set(notes) - set(case.noted)):
                self._line(NOTICE, instance, NOTE_EVENT, note, "")
            case.noted = notes
            if found is None or not case.judge.runs:
                case.told = ("ok", "")
                continue
            works = found.verdict in ("ok", "unknown")
            # A fault, a GPU's for instance, that leaves the engine working.
            noted = works and found.cause != UNKNOWN_CAUSE and CAUSES[found.cause].remedy is not Remedy.NONE
            now = (found.verdict, found.cause) if not works or noted else ("ok", "")
            if now == case.told:
                continue
            before, case.told = case.told, now
            if noted:
                self._line(WARNING, instance, NOTE_EVENT, found.reason, found.cause)
            elif not works:
                self._line(NOTICE, instance, SUSPECT_EVENT, f"{found.verdict}: {found.reason}", found.cause)
            elif before[0] in ("suspect", "hung"):
                rests = found.cause == "idle"
                text = "nothing is asked of it any more" if rests else "it makes progress again"
                self._line(NOTICE, instance, SUSPECT_EVENT, text, "")

    # --- what others ask ----------------------------------------------------------------------------------------------

    def open_calls(self) -> Maybe[Mapping[str, Maybe[int]]]:
        """Calls that the gateway has open at each engine; UNKNOWN while it does not tell of any."""
        found = {instance: case.open_calls for instance, case in self._cases.items()}
        return found if any(calls is not UNKNOWN for calls in found.values()) else UNKNOWN

    def memory(self, instance: str) -> Maybe[Nvml]:
        """The last reading of an engine's GPUs; UNKNOWN where there is none that is fresh."""
        case, reading = self._cases.get(instance), self._telemetry.nvml
        if case is None or reading is None or reading.error or clock.monotonic() - reading.t > STALE_S:
            return UNKNOWN
        own = tuple(gpu for gpu in reading.gpus if gpu.pci in case.setting.engine_gpu_pci)
        return replace(reading, gpus=own) if own else UNKNOWN

    def timeline(self, instance: str) -> Iterator[Mapping[str, object]]:
        """The last minutes of an engine as a recording that can be judged again.

        A silence grows between two samples, and a hang is seen as soon as it is certain: the instant of the last
        judgement has a line of its own, else a recording might end before it.
        """
        case = self._cases.get(instance)
        if case is None:
            return
        yield header(case.judge.setting)
        samples: list[Sample] = [
            *self._telemetry.samples(instance),
            Lag(t=case.judged_at, late_s=self._telemetry.late_s),
        ]
        for sample in sorted(samples, key=lambda sample: sample.t):
            record = record_of(sample, instance)
            if record is not None:
                yield record

    # --- within -------------------------------------------------------------------------------------------------------

    def _case(self, config: Config, instance: str, seen: Seen, past: Mapping[str, Step]) -> _Case:
        """The case of an engine; another start, or other limits, may make it another one, which hears all anew."""
        case, limits = self._cases.get(instance), config.supervisor
        told = seen.facts.place.known  # what nobody tells now is as it was
        setting = case.setting if case is not None and not told else self._setting(config, instance, seen)
        if case is None or (case.setting, case.limits) != (setting, limits):
            canary = case.canary if case is not None else None
            if case is not None:
                self._learned.keep(case.key, case.judge.learned())
            engine = config.engine_of(instance)
            model = engine.served[0] if engine is not None and engine.served else ""
            key = f"{engine.model if engine is not None else ''} {setting.ranks} {','.join(setting.engine_gpu_pci)}"
            judge = Judge(replace(setting, learned=self._learned.of(key)), limits)
            for pci, step in past.items():
                judge.ending.keep_step(pci, step)
            reader = Reader(names.engine_unit(instance))
            case = self._cases[instance] = _Case(judge, reader, setting, limits, model, key, canary=canary)
        return case

    def _setting(self, config: Config, instance: str, seen: Seen) -> Setting:
        engine = config.engine_of(instance)
        given, known = seen.facts.place.gpus, seen.facts.place.known
        on_cpu = config.runtime.device == "cpu" or (known and not seen.facts.cuda)
        tp, pp = ranks_of(engine, 0 if on_cpu else len(given)) if engine is not None else (1, 1)
        gpus: Maybe[int] = 0 if on_cpu else len(given) or UNKNOWN
        return Setting(engine=instance, tp=tp, pp=pp, gpus=gpus, engine_gpu_pci=() if on_cpu else self._pci(given))

    def _pci(self, given: tuple[str, ...]) -> tuple[str, ...]:
        """The addresses of GPUs that the launcher names by UUID, or by number in the order of their addresses."""
        if given in self._addresses:  # a driver that does not answer later on changes nothing about them
            return self._addresses[given]
        reading = self._telemetry.nvml
        cards: list[Gpu] = sorted(reading.gpus, key=lambda gpu: gpu.pci) if reading is not None else []
        numbered = {str(number): gpu.pci for number, gpu in enumerate(cards)}
        named = {gpu.uuid: gpu.pci for gpu in cards if gpu.uuid}
        found = [named.get(name) or numbered.get(name, "") for name in given]
        if not found or not all(found):
            return ()
        return self._addresses.setdefault(given, tuple(found))

    def _hear(self, instance: str, case: _Case) -> None:
        if case.canary is not None and case.canary.done():
            case.canary = None
            self._telemetry.add(instance, Canary(t=clock.monotonic(), outstanding=False))
        came, case.place = self._telemetry.after(instance, case.place)
        for sample in came:
            case.judge.feed(sample)
            if isinstance(sample, Ledger):
                case.open_calls = sample.inflight
            for finding in case.reader.read(sample):
                case.judge.feed(finding)
        case.judged_at = clock.monotonic()
        case.judgement = case.judge.judged(case.judged_at)

    def _ask_for_life(self, instance: str, case: _Case, seen: Seen) -> None:
        cause = case.judgement.cause if case.judgement is not None else ""
        rest = Rest(
            idle_s=case.judge.idle_s(),
            serving=seen.unit is UnitState.UP and seen.phase == "serving",
            asleep=cause == "asleep",
            draining=cause == "draining",
            outstanding=case.canary is not None,
        )
        if is_due(rest, case.limits.hang.canary_after) and case.model:
            socket = names.engine_socket(instance, self._places.run)
            work = asyncio.to_thread(realwork.attempt, socket, case.model, CANARY_LIMIT_S)
            case.canary = asyncio.ensure_future(work)
            self._telemetry.add(instance, Canary(t=clock.monotonic(), outstanding=True))

    def _drop(self, instance: str) -> None:
        case = self._cases.pop(instance)
        self._learned.keep(case.key, case.judge.learned())
        if case.canary is not None:
            case.canary.cancel()

    def _line(self, priority: int, instance: str, event: str, text: str, cause: str) -> None:
        story.line(self._journal, priority, f"{instance}: {text}", event=event, instance=instance, cause=cause)
