"""What the figures of a serving engine amount to: its metrics, its ledger, its GPUs and its processes together.

Composes `pulse` (what was seen), `progress` (does it get on), `witness` (what does the rest say), and asks `hang`.
"""

from __future__ import annotations

from dataclasses import replace

from appliance.config.model import Hang
from appliance.quantity import UNKNOWN, format_duration
from appliance.samples import Cgroup, Learned, Metrics, Nvml, Proc, Setting

from .causes import UNKNOWN_CAUSE
from .hang import Opinion, Silence, opinion
from .progress import DEFERRED, KV_USAGE, RUNNING, WAITING, Progress
from .pulse import Pulse
from .witness import Testimony, Witness

IDLE_AFTER_S = 30.0  # without demand, before a reading counts as idle
STORM_S, STORM_KV = 60.0, 0.95  # preemptions so recent and a KV cache so full: it thrashes


class Service:
    """Follows one engine over all its runs; `begin` is another run. `serving` is said by whoever follows its starts."""

    def __init__(self, setting: Setting, interval_s: float) -> None:
        self._setting = setting
        self.pulse = Pulse(interval_s)
        self.progress = Progress(setting.learned.prefill_rate)
        self.witness = Witness(setting)
        self._episode = 0
        self._read_at = 0.0

    @property
    def seen(self) -> float:
        """Observed seconds by now."""
        return self.pulse.seen

    def learned(self) -> Learned:
        """What is known by now of the engine at work."""
        return replace(self.witness.baseline.learned(), prefill_rate=self.progress.prefill_rate)

    def begin(self) -> None:
        """Another run: counters begin anew, what was learnt stays."""
        self.progress = Progress(self.progress.prefill_rate)
        self._episode = self.progress.episode
        self.witness.clear()

    def tick(self, now: float) -> None:
        """A source was asked at `now`."""
        gained = self.pulse.tick(now)
        if gained:
            self.progress.pass_time(gained, now, self.pulse.usual_s)

    def heed(self) -> None:
        """After each sample: a silence that has ended takes its witnesses with it."""
        if self.progress.episode != self._episode:
            self._episode = self.progress.episode
            self.witness.clear()

    def see_metrics(self, sample: Metrics) -> None:
        """A scrape."""
        self.progress.see_metrics(sample)

    def see_nvml(self, sample: Nvml, *, learn: bool) -> None:
        """A reading of the GPUs; `learn`: the engine serves, so that it shows what is usual."""
        progress, seen = self.progress, self.pulse.seen
        gpus = self.witness.see_gpus(sample, seen)
        if learn and gpus:
            if progress.demand is True and progress.token_s <= 2.0 * self.pulse.usual_s:
                self.witness.baseline.learn_busy(gpus)
            elif progress.demand is False and progress.idle_s >= IDLE_AFTER_S:
                self.witness.baseline.learn_idle(gpus, seen - self._read_at)
        self._read_at = seen

    def see_process(self, sample: Proc) -> bool:
        """A process; whether something is being compiled by now."""
        self.witness.see_process(sample, self.pulse.seen)
        return self.witness.is_compiling(self.pulse.seen, self.pulse.usual_s)

    def see_cgroup(self, sample: Cgroup) -> bool:
        """The control group; whether its disk was read."""
        return self.witness.see_cgroup(sample, self.pulse.seen)

    def testimony(self, now: float) -> Testimony:
        """What the witnesses say of the silence up to `now`."""
        return self.witness.testimony(self.seen_by(now), self.pulse.usual_s)

    def seen_by(self, now: float) -> float:
        """Observed seconds by an instant that may be later than the last observation."""
        return self.pulse.seen + self._credit(now)

    def opinion(self, now: float, limits: Hang) -> Opinion:
        """What the engine does, or fails to do."""
        progress = self.progress
        if progress.asleep:
            return Opinion("ok", "asleep", "the engine says that it sleeps")
        if progress.demand is UNKNOWN:
            if not progress.scrape_error:
                return Opinion("ok", "idle", "the engine serves; nobody tells of its work")
            told = f"nobody can say whether the engine works: {progress.scrape_error}"
            return Opinion("unknown", UNKNOWN_CAUSE, told)
        visible = progress.is_visible(now, self.pulse.usual_s)
        silent_s = progress.silent_s
        if progress.demand and visible:
            silent_s += self._credit(now)
        if not progress.demand and not silent_s:
            return Opinion("ok", "idle", "no request is at work")
        if silent_s >= limits.suspect:
            found = opinion(self._silence(silent_s), self.testimony(now), limits)
            if found.verdict != "ok" or found.cause:
                return found
        return self._working(visible, silent_s, limits)

    def _working(self, visible: bool, silent_s: float, limits: Hang) -> Opinion:
        """An engine that gets on with its work, or has been silent for moments only."""
        progress = self.progress
        kv_usage = next((v for name in KV_USAGE if (v := progress.value(name)) is not UNKNOWN), 0.0)
        error = progress.scrape_error
        if error and not visible:
            told = f"its metrics are not answered ({error}) and the gateway tells nothing"
            return Opinion("unknown", UNKNOWN_CAUSE, told)
        if error:
            return Opinion("ok", "slow", f"its metrics are not answered ({error}), but answers come")
        if progress.preempted_s <= STORM_S and kv_usage >= STORM_KV:
            return Opinion("ok", "slow", "requests are preempted, since the KV cache is full")
        if progress.tokenless_s >= limits.suspect and silent_s < limits.suspect:
            told = f"no token for {format_duration(progress.tokenless_s)}, but prompts are being read"
            return Opinion("ok", "busy-prefill", told)
        return Opinion("ok", "idle", "the engine serves")

    def _silence(self, silent_s: float) -> Silence:
        progress = self.progress
        ledger = progress.ledger
        return Silence(
            silent_s=silent_s,
            demand=progress.demand is True,
            ranks=self._setting.ranks,
            on_gpus=self._setting.gpus != 0,
            running=progress.value(RUNNING),
            waiting=progress.value(WAITING),
            inflight=UNKNOWN if ledger is None else ledger.inflight,
            structured=UNKNOWN if ledger is None else ledger.structured,
            prompt_tokens=UNKNOWN if ledger is None else ledger.largest_prompt_tokens,
            prefill_rate=progress.prefill_rate,
            deferred=progress.value(DEFERRED),
            drained=progress.drained,
            finished=progress.finished,
            scraped=progress.is_scraped(self.pulse.last or 0.0, self.pulse.usual_s),
            scrape_error=progress.scrape_error,
        )

    def _credit(self, now: float) -> float:
        return self.pulse.credit(now) if self.pulse.last is not None and now > self.pulse.last else 0.0
