"""The fold over a timeline: samples of one engine in, what is the matter with it and what is to be done out.

    feed(sample)   takes the next sample; samples come in the order of their `t`
    judged(now)    the judgement at an instant whose samples have all been fed; changes nothing, so it does not matter
                   how often or how rarely somebody asks
    concluded()    judgements that samples have overtaken before anybody could ask, oldest first, each once

Nothing here knows whether the samples come from the world or from a recording. A hang is held until the engine moves
again, an end until the next run begins. Memory is bounded: readings are counted, not kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from appliance.config.model import Supervisor
from appliance.names import LAUNCHER_ENGINE_DIED, LAUNCHER_START_FAILED
from appliance.quantity import UNKNOWN
from appliance.samples import (
    Boot,
    Canary,
    Cgroup,
    Ended,
    Fs,
    Health,
    Learned,
    Ledger,
    Line,
    Metrics,
    Milestone,
    Notice,
    Nvml,
    OomKill,
    Proc,
    Said,
    Sample,
    Setting,
    Xid,
)

from .aftermath import ACTIONS, Aftermath
from .causes import CARRIERS, UNKNOWN_CAUSE, Remedy
from .ending import LOOK_AHEAD_S, End, Ending
from .failure import EXITED, KILLED, Exit, Failure
from .hang import Opinion
from .hardware import reading_of
from .judgement import Judgement
from .service import Service
from .startup import Start
from .witness import API, CORE, WORKER

UNSEEN, STARTING, SERVING, STOPPING, ENDED = "unseen", "starting", "serving", "stopping", "ended"
XID_BEFORE_S = 30.0  # of a silence: the kernel's line comes first, and a step may still end
POLLED = (Metrics, Health, Nvml, Ledger, Proc, Cgroup, Canary)  # what somebody asked for at its instant


class Judge:
    """Judges one engine."""

    def __init__(self, setting: Setting, limits: Supervisor) -> None:
        self.setting = setting
        self.limits = limits
        self._t = float("-inf")
        self._phase = UNSEEN
        self._start_id, self._began = "", float("-inf")  # of this run, and when it was first told of
        self._served = False  # in this run
        self._service = Service(setting, limits.interval)
        self.ending = Ending(setting)  # evidence, for whoever knows of an end by himself, too
        self._aftermath = Aftermath(setting, limits.restart)
        self._start = Start(0.0)
        self._hung: Judgement | None = None
        self._hung_steps = 0
        self._end: End | None = None
        self._over: Judgement | None = None  # the settled end
        self._over_at = 0.0
        self._concluded: deque[Judgement] = deque(maxlen=64)
        self._see: dict[type[Any], Callable[[Any], None]] = {
            Metrics: self._see_metrics, Health: self._see_health, Nvml: self._see_nvml, Ledger: self._see_ledger,
            Proc: self._see_proc, Cgroup: self._see_cgroup, Canary: self._see_canary, Line: self._see_line,
            Fs: self.ending.see_file, Milestone: self._see_milestone, Notice: self._see_notice, Said: self._see_said,
            Xid: self.ending.see_xid, OomKill: self.ending.see_kill, Ended: self._see_ended, Boot: self._see_boot,
        }  # fmt: skip

    # --- what is asked ------------------------------------------------------------------------------------------

    def judged(self, now: float) -> Judgement:
        """The judgement at `now`."""
        if self._over is not None:
            return self._after_end(now)
        if self._end is not None:
            return self._ended_lately(now)
        if self._hung is not None:
            return self._with_hardware(self._hung, now)
        if self._phase == STOPPING:
            return self._made(now, "ok", "draining", "none", "the engine was told to stop")
        if self._phase == ENDED:
            return self._made(now, "ok", "draining", "none", "the engine was stopped as asked")
        if self._phase == UNSEEN:
            return self._made(now, "unknown", UNKNOWN_CAUSE, "none", "nothing tells yet what the engine does")
        if self._phase == STARTING:
            gpus = self._service.testimony(now).gpus
            return self._of_opinion(self._start.opinion(self._service.seen_by(now), self.limits.hang, gpus), now)
        found = self._service.opinion(now, self.limits.hang)
        return self._with_hardware(self._of_opinion(found, now), now)

    @property
    def settles_at(self) -> float | None:
        """When an end that is known already will be settled; None when there is none."""
        return None if self._end is None else self._end.t + LOOK_AHEAD_S

    def concluded(self) -> tuple[Judgement, ...]:
        """Judgements that nobody could ask for in time."""
        found = tuple(self._concluded)
        self._concluded.clear()
        return found

    def learned(self) -> Learned:
        """What is known by now of the engine at work, for the next judge."""
        return self._service.learned()

    def idle_s(self) -> float:
        """Observed seconds since the last demand, for whoever sends canaries."""
        return self._service.progress.idle_s

    @property
    def runs(self) -> bool:
        """Whether it is a run that is judged, not the end of one."""
        return self._end is None and self._over is None and self._phase in (STARTING, SERVING)

    # --- what is told -------------------------------------------------------------------------------------------

    def feed(self, sample: Sample) -> None:
        """The next sample. One that is older than the last counts as of that instant."""
        if sample.t > self._t:
            self._close(sample.t)
            self._t = sample.t
        if isinstance(sample, POLLED):
            self._service.tick(sample.t)
        see = self._see.get(type(sample))
        if see is not None:
            see(sample)
        self._service.heed()
        if self._hung is not None and self._service.progress.steps != self._hung_steps:
            self._hung = None  # it moves again

    def _close(self, now: float) -> None:
        """All samples before `now` are known: what they amount to is held."""
        end = self._end
        if end is not None and now > end.t + LOOK_AHEAD_S:
            self._settle(end.t + LOOK_AHEAD_S)
        if self._hung is None and self._end is None and self._over is None:
            watched = self._phase == STARTING or self._service.progress.silent_s >= self.limits.hang.suspect
            if watched and (found := self.judged(self._t)).verdict == "hung":
                self._hang(found)

    def _hang(self, found: Judgement) -> None:
        self._hung, self._hung_steps = found, self._service.progress.steps
        self._aftermath.enter(found.t, Failure(found.cause, Remedy.RESTART, found.reason))

    def _settle(self, now: float) -> None:
        """An end is final: it is entered, and held until the next run."""
        end = self._end
        assert end is not None
        failure = self.ending.failure(end, now)
        self._over = self._of_failure(failure, end, now)
        self._over_at, self._end = end.t, None
        self._aftermath.enter(end.t, failure, self.ending.hint)
        self.ending.keep_end(failure.pci, failure.step)

    def _begin(self, start: str = "", began: float = float("-inf")) -> None:
        """Another run begins, or has by now where nobody tells when it began."""
        if self._end is not None:
            self._settle(self._t)
            assert self._over is not None
            self._concluded.append(self._over)
        self._start_id, self._began = start, began
        self._phase, self._served = STARTING, False
        self._hung = self._over = None
        self._service.begin()
        self.ending.begin()
        self._start = Start(self._service.seen_by(self._t))

    # --- one for each kind of sample --------------------------------------------------------------------------------

    def _see_metrics(self, sample: Metrics) -> None:
        answered = not sample.error and sample.http in (200, UNKNOWN) and bool(sample.values)
        if answered and self._service.progress.has_restarted(sample):
            self._begin()
        if answered:
            self._serve()
        elif self._phase == UNSEEN and _is_nobody_there(sample.error):
            self._phase, self._start = STARTING, Start(self._service.seen_by(self._t))
        self._service.see_metrics(sample)

    def _see_health(self, sample: Health) -> None:
        if sample.http == 200:
            self._serve()
        elif self._phase == UNSEEN and _is_nobody_there(sample.error):
            self._phase, self._start = STARTING, Start(self._service.seen)

    def _serve(self) -> None:
        """Somebody got an answer: it serves, whatever its log has said so far."""
        if self._phase in (UNSEEN, STARTING) and self._end is None and self._over is None:
            if self._phase == UNSEEN:
                self._service.progress.finished = True  # it served before this timeline began
            self._phase, self._served = SERVING, True

    def _see_ledger(self, sample: Ledger) -> None:
        if self._phase == UNSEEN and sample.inflight is not UNKNOWN and sample.inflight > 0:
            self._serve()  # the gateway sends nothing to an engine that does not serve
        self._service.progress.see_ledger(sample)
        self.ending.see_ledger(sample)

    def _see_canary(self, sample: Canary) -> None:
        self._service.progress.see_canary(sample)

    def _see_line(self, sample: Line) -> None:
        if sample.src == "journal" and sample.unit.endswith(".service"):
            self.ending.unit = sample.unit

    def _see_nvml(self, sample: Nvml) -> None:
        self.ending.see_nvml(sample)
        self._service.see_nvml(sample, learn=self._phase == SERVING and self._hung is None)
        if self._phase == STARTING:
            self._start.see_gpus(self._service.witness.own(sample), self._service.seen)

    def _see_proc(self, sample: Proc) -> None:
        if self.ending.is_own(sample):
            compiles = self._service.see_process(sample)
            if sample.event == "exit" or sample.exit_code is not UNKNOWN:
                self._see_exit(sample)
            elif self._phase == STARTING and compiles:
                self._start.see_activity(self._service.seen)
        self.ending.see_process(sample)

    def _see_exit(self, sample: Proc) -> None:
        """A process of the engine ended. The engine does not outlive any of vLLM's own."""
        main = API.search(sample.name) is not None or self.ending.is_parent(sample.pid)
        if not (main or CORE.search(sample.name) or WORKER.search(sample.name)):
            return
        if self.ending.is_gone(sample.pid, self._began):
            return  # the run before: a look finds the next one's state first, and then who is not there any more
        status = sample.exit_code
        if status is not UNKNOWN and status < 0:
            self._ends(sample.t, Exit("signal", KILLED, -status), status=UNKNOWN, signal=-status)
            return
        launcher = LAUNCHER_ENGINE_DIED if self._served else LAUNCHER_START_FAILED
        self._ends(sample.t, Exit("exit-code", EXITED, launcher), status=status if main else UNKNOWN)

    def _see_cgroup(self, sample: Cgroup) -> None:
        self.ending.see_cgroup(sample)
        if self._service.see_cgroup(sample) and self._phase == STARTING:
            self._start.see_activity(self._service.seen)

    def _see_milestone(self, sample: Milestone) -> None:
        if sample.phase == "stopping":
            if self._end is not None and self._end.exit.result == "success":  # systemd told of it first
                self._end, self._phase = None, ENDED
            elif self._phase in (STARTING, SERVING, UNSEEN):
                self._phase = STOPPING
        elif sample.phase == "exited":
            self._ends(sample.t, Exit("success", EXITED, 0))
        elif self._is_new_run(sample):
            self._begin(sample.start, sample.t)
            self._start.see_milestone(sample, self._service.seen_by(sample.t))
            self._phase = SERVING if sample.phase == "serving" else STARTING
            self._served = sample.phase == "serving"
        elif sample.phase == "serving":
            if self._phase == STARTING:
                self._phase, self._served, self._hung = SERVING, True, None
        elif self._phase == STARTING:
            self._start.see_milestone(sample, self._service.seen_by(sample.t))
            self._hung = None

    def _is_new_run(self, sample: Milestone) -> bool:
        if sample.start and sample.start != self._start_id:
            return True
        if self._phase in (UNSEEN, ENDED) or self._over is not None:
            return True
        return sample.phase == "starting" and not sample.joining and (self._served or self._end is not None)

    def _see_notice(self, sample: Notice) -> None:
        self._service.witness.see_notice(sample, self._service.seen_by(sample.t))
        if sample.kind == "death" and self._phase != UNSEEN:
            launcher = LAUNCHER_ENGINE_DIED if self._served else LAUNCHER_START_FAILED
            self._ends(sample.t, Exit("exit-code", EXITED, launcher))
        elif self._phase == STARTING and sample.kind != "shm-wait":
            self._start.see_line(self._service.seen_by(sample.t))
            self._hung = None

    def _see_said(self, sample: Said) -> None:
        self.ending.said = sample

    def _see_ended(self, sample: Ended) -> None:
        self._ends(sample.t, Exit(sample.result, sample.code, sample.status), status=UNKNOWN)

    def _see_boot(self, sample: Boot) -> None:
        used = self._phase in (STARTING, SERVING) and self._end is None and self._over is None
        self.ending.boot()
        if used and not sample.clean:
            self._end = End(sample.t, Exit("success"), self._ended_phase, unclean_boot=True)
        else:
            self._phase = ENDED if self._phase != UNSEEN else UNSEEN

    def _ends(self, t: float, end: Exit, *, status: Any = UNKNOWN, signal: Any = UNKNOWN) -> None:
        """The unit or a process of it ended; the first news of an end gives its instant, later news its details."""
        if self._over is not None or self._phase == ENDED:
            return
        if self._phase == STOPPING:
            self._phase = ENDED
            return
        if self._hung is not None and self._end is None:
            self._over, self._over_at = self._hung, t  # it was killed for the hang, or vLLM noticed it at last
            return
        before = self._end
        if before is None:
            self._end = End(t, end, self._ended_phase, status, signal)
            return
        told = before.exit if end.result == "success" and before.exit.result != "success" else end
        status = before.status if status is UNKNOWN else status
        signal = before.signal if signal is UNKNOWN else signal
        self._end = replace(before, exit=told, status=status, signal=signal)

    @property
    def _ended_phase(self) -> str:
        return SERVING if self._served else self._start.phase

    # --- judgements ----------------------------------------------------------------------------------------------

    def _with_hardware(self, found: Judgement, now: float) -> Judgement:
        """A fault of a GPU is the cause behind a silence; an engine that works is left alone, whatever is told."""
        # An engine that has moved since its GPU was reported has shown that it can; only when it is surely hung is an
        # older report the cause.
        recent = now - self._service.progress.silent_s - XID_BEFORE_S
        failure = self.ending.hardware(now, float("-inf") if found.verdict in ("hung", "ok") else recent)
        if failure is not None:
            if found.verdict in ("hung", "suspect"):
                facts = (*failure.evidence, *found.evidence)
                return self._made(now, "failed", failure.cause, ACTIONS[failure.remedy], failure.reason, facts)
            told = f"the engine works on, but {failure.reason}"
            return self._made(now, found.verdict, failure.cause, "none", told, failure.evidence)
        code, silent = self.ending.nvml(now)
        fault = reading_of((), self.ending.owner, code=code, silent=silent)
        if fault is None or found.verdict == "suspect":
            return found
        if found.verdict == "hung":
            if not silent:
                return found
            facts = (*fault.evidence, *found.evidence)
            return self._made(now, "failed", fault.cause, ACTIONS[fault.remedy], fault.reason, facts)
        return self._made(
            now, found.verdict, fault.cause, "none", f"the engine works on, but {fault.reason}", fault.evidence
        )

    def _ended_lately(self, now: float) -> Judgement:
        """An end whose evidence may still come: the kernel's lines are late at times."""
        end = self._end
        assert end is not None
        failure = self.ending.failure(end, now)
        if failure.cause not in CARRIERS or now >= end.t + LOOK_AHEAD_S:
            return self._of_failure(failure, end, now)
        told = f"{failure.reason}; the kernel may have more to say"
        return self._made(now, "suspect", failure.cause, "evidence", told, failure.evidence)

    def _after_end(self, now: float) -> Judgement:
        """A settled end, unless what is left of the engine is worse."""
        over = self._over
        assert over is not None
        worse = self.ending.leftover(self._over_at, now)
        if worse is None:
            return over
        return self._made(now, "failed", worse.cause, ACTIONS[worse.remedy], worse.reason, worse.evidence)

    def _of_failure(self, failure: Failure, end: End, now: float) -> Judgement:
        verdict, action, reason = self._aftermath.answer(end.t, failure, self.ending.hint)
        return self._made(now, verdict, failure.cause, action, reason, failure.evidence)

    def _of_opinion(self, found: Opinion, now: float) -> Judgement:
        if found.verdict != "hung":
            action = "evidence" if found.verdict == "suspect" else "none"
            return self._made(now, found.verdict, found.cause, action, found.reason, found.evidence)
        failure = Failure(found.cause, Remedy.RESTART, found.reason, found.evidence)
        _, action, reason = self._aftermath.answer(now, failure)
        return self._made(now, "hung", found.cause, action, reason, found.evidence)

    def _made(
        self, t: float, verdict: str, cause: str, action: str, reason: str, evidence: tuple[str, ...] = ()
    ) -> Judgement:
        return Judgement(
            t=t, engine=self.setting.engine, verdict=verdict, cause=cause, action=action, reason=reason,
            evidence=evidence,
        )  # fmt: skip


def _is_nobody_there(error: str) -> bool:
    """Whether a question failed since nothing listens yet, in the words of connect(2)."""
    return "refused" in error.lower() or "no such file" in error.lower()
