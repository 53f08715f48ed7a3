"""Whether an engine has work, and whether it gets on with it.

    progress   any change of the counters and gauges that vLLM sets when a step has ended, or a byte from the engine
    demand     the gateway has sent it a request that is unfinished (or our canary has); without a gateway: running or
               waiting requests in its own metrics
    silence    observed seconds with demand since the last progress; time in which neither source could have shown
               progress does not count

Traps in vLLM's metrics that this follows: token counters stand still in a long prefill, where `kv_cache_usage_perc`
moves with each chunk; a hang in the first step after idle leaves running = waiting = 0, so those are no precondition; a
scrape that fails says nothing (its API process may just be busy), only together with the gateway's silence it counts.
A demand that is gone for moments only, since a client gave up and tries again, does not begin a new silence.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Canary, Ledger, Metrics

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
GENERATED, PROMPTED = "vllm:generation_tokens_total", "vllm:prompt_tokens_total"
SUCCEEDED = "vllm:request_success_total"
PREEMPTED = "vllm:num_preemptions_total"
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second is the name before 0.10
AWAKE = 'vllm:engine_sleep_state{sleep_state="awake"}'
DEFERRED = 'vllm:num_requests_waiting_by_reason{reason="deferred"}'
TOKENS = (GENERATED, PROMPTED)
HEARTBEATS = (
    *TOKENS, SUCCEEDED, PREEMPTED, *KV_USAGE, RUNNING, WAITING,
)  # fmt: skip

BRIDGE_S = 10.0  # clients try again within seconds; a longer absence of demand ends a silence
STALE = 5.0  # usual distances after which a reading says nothing of now
BIG_PROMPT = 1000.0  # prompt tokens in one jump from which the rate of prefill can be told
_LATER_S = 0.05  # rounding in a recording


class Progress:
    """Follows the metrics and the ledger of one run of an engine."""

    def __init__(self, prefill_rate: Maybe[float] = UNKNOWN) -> None:
        self.silent_s = 0.0
        self.episode = 0  # grows whenever a silence ends
        self.steps = 0  # grows with every progress
        self.tokenless_s = 0.0  # as `silent_s`, since the last token
        self.token_s = float("inf")  # observed seconds since a token, with demand or without
        self.preempted_s = float("inf")  # observed seconds since a request was preempted
        self.metrics: Metrics | None = None  # the last that was answered
        self.scrape_error = ""
        self.ledger: Ledger | None = None
        self.finished = False  # whether a request has been finished in this run
        self.drained = False  # it has ended all that it was sent, by its own count
        self.idle_s = 0.0  # observed seconds since the last demand
        self._canary = False
        self._scraped_at = self._told_at = float("-inf")
        self._absent_s = 0.0
        self._working_s = 0.0  # since prompt tokens were last counted
        self._rates: deque[float] = deque(maxlen=31)
        self._learned_rate = prefill_rate

    # --- what is asked ------------------------------------------------------------------------------------------

    @property
    def demand(self) -> Maybe[bool]:
        """Whether the engine has work; UNKNOWN when nobody says."""
        if self._canary:
            return True
        if self.ledger is not None and self.ledger.inflight is not UNKNOWN:
            return self.ledger.inflight > 0
        return UNKNOWN if self.requests is UNKNOWN else self.requests > 0

    @property
    def requests(self) -> Maybe[float]:
        """Running and waiting requests by the engine's own count."""
        running, waiting = self.value(RUNNING), self.value(WAITING)
        if running is UNKNOWN:
            return waiting
        return running if waiting is UNKNOWN else running + waiting

    @property
    def asleep(self) -> bool:
        """Whether the engine says that it sleeps or is paused."""
        awake = self.value(AWAKE)
        return awake is not UNKNOWN and awake == 0.0

    @property
    def prefill_rate(self) -> Maybe[float]:
        """Prompt tokens a second, by this run or an earlier one."""
        return median(self._rates) if self._rates else self._learned_rate

    def value(self, name: str) -> Maybe[float]:
        """A figure of the last scrape that was answered."""
        return UNKNOWN if self.metrics is None else self.metrics.values.get(name, UNKNOWN)

    def is_visible(self, now: float, usual_s: float) -> bool:
        """Whether progress, had there been any, would have been seen by now."""
        return self.is_scraped(now, usual_s) or self._told_at >= now - STALE * usual_s

    def is_scraped(self, now: float, usual_s: float) -> bool:
        """Whether the engine's own figures are known by now."""
        return self._scraped_at >= now - STALE * usual_s and not self.scrape_error

    # --- what is told -------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float, now: float, usual_s: float) -> None:
        """Observed seconds went by until `now`."""
        if self.ledger is not None and self.ledger.t < now - 2.0 * STALE * usual_s:
            self.ledger = None  # the gateway tells nothing any more
        self._working_s += seconds
        self.preempted_s += seconds
        self.token_s += seconds
        if self.demand is True:
            self.idle_s = self._absent_s = 0.0
            if self.asleep:
                self._break()
            elif self.is_visible(now, usual_s):
                self.silent_s += seconds
                self.tokenless_s += seconds
            return
        self.idle_s += seconds
        self._absent_s += seconds
        if self._absent_s > max(BRIDGE_S, 2.0 * usual_s):
            self.tokenless_s = 0.0
            self._break()

    def see_metrics(self, sample: Metrics) -> None:
        """A scrape, answered or not."""
        if sample.error or (sample.http is not UNKNOWN and sample.http != 200):
            self.scrape_error = sample.error or f"status {sample.http}"
            return
        before, self.metrics, self.scrape_error = self.metrics, sample, ""
        self._scraped_at = sample.t
        done = sample.values.get(SUCCEEDED, UNKNOWN)
        self.finished |= done is not UNKNOWN and done > 0
        if before is None:
            return
        told = [name for name in HEARTBEATS if name in sample.values and name in before.values]
        changed = [name for name in told if sample.values[name] != before.values[name]]
        if not changed:
            return
        self.drained = self.requests == 0
        if PREEMPTED in changed:
            self.preempted_s = 0.0
        tokens = any(name in TOKENS for name in changed)
        self.finished |= tokens and done is UNKNOWN
        if PROMPTED in changed:
            self._learn_rate(sample.values[PROMPTED] - before.values[PROMPTED])
        self._progress(tokens)

    def has_restarted(self, sample: Metrics) -> bool:
        """Whether a scrape can only come from another run: its counters have begun anew."""
        before = {} if self.metrics is None else self.metrics.values
        counters = [name for name in (*TOKENS, SUCCEEDED) if name in sample.values and name in before]
        return any(sample.values[name] < before[name] for name in counters)

    def see_ledger(self, sample: Ledger) -> None:
        """What the gateway says of its open requests. A failure to say it leaves the engine's own count."""
        if sample.error or sample.inflight is UNKNOWN:
            self.ledger, self._told_at = None, float("-inf")
            return
        before, self.ledger = self.ledger, sample
        since = _since_byte(sample)
        if before is None or before.inflight is UNKNOWN or sample.inflight > before.inflight:
            self.drained = False  # it was sent something since
        if since is UNKNOWN:
            return
        self._told_at = sample.t
        earlier = sample.t if before is None else before.t
        if sample.t - since > earlier + _LATER_S or (before is None and since < _LATER_S):
            self._progress(True)

    def see_canary(self, sample: Canary) -> None:
        """Our own request was sent, or answered."""
        if self._canary and not sample.outstanding:
            self._progress(True)
        self._canary = sample.outstanding
        self.drained &= not sample.outstanding

    def _progress(self, tokens: bool) -> None:
        self.steps += 1
        if tokens:
            self.tokenless_s = self.token_s = 0.0
        self._break()

    def _break(self) -> None:
        self.silent_s = 0.0
        self.episode += 1

    def _learn_rate(self, tokens: float) -> None:
        """A prompt is counted whole when its first token comes: the time since the last such count bounds its rate."""
        if tokens >= BIG_PROMPT and self._working_s > 0.0:
            self._rates.append(tokens / self._working_s)
        self._working_s = 0.0


def _since_byte(sample: Ledger) -> Maybe[float]:
    """Seconds since the engine sent any byte, where the ledger tells it."""
    if sample.since_any_byte_s is not UNKNOWN:
        return sample.since_any_byte_s
    return sample.oldest_silent_s if sample.inflight == 1 else UNKNOWN
