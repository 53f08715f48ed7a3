"""What one key may still do: every limit asked before a call, everything given back after it.

`reserve` looks at all limits before it takes anything; what it takes is in a `Hold`, and `settle` gives that back
exactly once: the place, what was set aside, and the difference between what was reserved and what was used. Order of
refusals: what can never be allowed, then what this day or month cannot allow, then what a moment's patience can.

Laws, kept after every step: `running` = holds out; what a quota has set aside = tokens of the holds out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from appliance.config.model import KeyLimits

from .quota import Period, Quota
from .rate import Bucket

RETRY_MIN, RETRY_MAX = 0.05, 120.0  # seconds; OpenAI's SDK does not wait longer than a minute whatever it is told
SET_ASIDE_WAIT = 5.0  # when running calls hold what is left of a quota, and may not use it
DURATION_MEMORY = 0.2  # weight of the newest call in the mean duration


class Demand(NamedTuple):
    """What a call asks for, before anything is known of its answer.

    `size` is its body in bytes; `prompt` and `answer` are tokens, estimated, all answers together; `limit` is the limit
    of one answer as the client set it, None where it set none (then `answer` is a guess, which is cut to what can be
    had); `answers` is how many there will be.
    """

    size: int
    prompt: int
    answer: int
    limit: int | None = None
    answers: int = 1


@dataclass(frozen=True, slots=True)
class Denied:
    """The call is not let in. `retry_after` in seconds; `final`: asking again cannot help."""

    code: str
    reason: str
    retry_after: float | None = None
    final: bool = False
    param: str | None = None


@dataclass(slots=True, eq=False)
class Hold:
    """What a running call has taken of its key's allowance."""

    account: Account
    tokens: int
    since: float


class Account:
    """The counters of one key. One thread; `now` is monotonic, `epoch` wall-clock seconds."""

    __slots__ = ("_mean", "day", "holds", "month", "requests", "tokens")

    def __init__(self) -> None:
        self.requests, self.tokens = Bucket(), Bucket()
        self.day, self.month = Quota(Period.DAY), Quota(Period.MONTH)
        self.holds: set[Hold] = set()
        self._mean: float | None = None  # seconds that a call takes

    @property
    def running(self) -> int:
        """Calls that were let in and have not ended, waiting ones too."""
        return len(self.holds)

    def reserve(self, limits: KeyLimits, demand: Demand, now: float, epoch: float) -> Hold | Denied:
        """Take what the call needs, or say why not; nothing is taken then."""
        day, month, rpm, tpm = self.day, self.month, limits.rpm, limits.tpm
        if not day.start <= epoch < day.end:  # a month ends with a day
            day.turn(epoch)
            month.turn(epoch)
        tokens = demand.prompt + demand.answer
        if demand.limit is None:
            tokens = self._cut(limits, demand, tokens)
        asked = demand.answers * (1 if demand.limit is None else demand.limit)  # the least that can be asked for
        if limits.max_tokens is not None and asked > limits.max_tokens:
            return _too_long(limits.max_tokens, demand)
        if limits.max_prompt is not None and demand.size > limits.max_prompt:
            return _too_large(limits.max_prompt, demand)
        most = limits.monthly_tokens
        if most is not None and tokens > most - month.used - month.reserved:
            return _used_up(month, most, tokens, epoch)
        most = limits.daily_tokens
        if most is not None and tokens > most - day.used - day.reserved:
            return _used_up(day, most, tokens, epoch)
        if limits.parallel is not None and len(self.holds) >= limits.parallel:
            return self._no_place(limits.parallel)
        if (rpm is not None and self.requests.debt(rpm, now) + 1 > rpm) or (
            tpm is not None and self.tokens.debt(tpm, now) + tokens > tpm
        ):
            return self._too_often(limits, tokens, now)
        hold = Hold(self, tokens, now)
        self.holds.add(hold)
        if rpm is not None:
            self.requests.add(1)
        if tpm is not None:
            self.tokens.add(tokens)
        day.reserved += tokens
        month.reserved += tokens
        return hold

    def settle(self, hold: Hold, limits: KeyLimits, used: int | None, now: float, epoch: float) -> None:
        """Give back what a call held and count what it used; None: no engine has seen it, it never was.

        A second time is a fault of the caller.
        """
        if hold not in self.holds:
            raise ValueError("this hold was settled already")
        self.holds.remove(hold)
        self.day.reserved -= hold.tokens
        self.month.reserved -= hold.tokens
        self._use(limits, used or 0, (used or 0) - hold.tokens, now, epoch)
        if used is None:
            if limits.rpm is not None:
                self.requests.use(-1, limits.rpm, now)
        else:
            took = now - hold.since
            self._mean = took if self._mean is None else self._mean + DURATION_MEMORY * (took - self._mean)

    def adopt(self, tokens: int, since: float) -> Hold:
        """Count what a call of another process holds; its request and its tokens are in the buckets already."""
        hold = Hold(self, tokens, since)
        self.holds.add(hold)
        self.day.reserved += tokens
        self.month.reserved += tokens
        return hold

    def state(self) -> dict[str, object]:
        """The counters, without what is set aside, as JSON: what another process of this boot needs to go on."""
        return {
            "requests": self.requests.state(),
            "tokens": self.tokens.state(),
            "day": [self.day.start, self.day.used],
            "month": [self.month.start, self.month.used],
        }

    def count(self, limits: KeyLimits, used: int, now: float, epoch: float) -> None:
        """Count tokens of a call of which nothing was held here."""
        self._use(limits, used, used, now, epoch)

    def _use(self, limits: KeyLimits, used: int, more: int, now: float, epoch: float) -> None:
        """Count tokens that were used, `more` of them beyond those that the rate has counted already."""
        if limits.tpm is not None:
            self.tokens.use(more, limits.tpm, now)
        day, month = self.day, self.month
        if not day.start <= epoch < day.end:  # a month ends with a day
            day.turn(epoch)
            month.turn(epoch)
        day.used += used
        month.used += used

    def check(self) -> None:
        """The laws, executed; raises AssertionError."""
        held = sum(hold.tokens for hold in self.holds)
        assert self.day.reserved == self.month.reserved == held, f"{self.day.reserved} set aside, {held} held"

    # --- what a limit says ----------------------------------------------------------------------------------------
    def _cut(self, limits: KeyLimits, demand: Demand, tokens: int) -> int:
        """A guessed answer is cut to what could be allowed at all."""
        for room in (
            limits.tpm,
            None if limits.daily_tokens is None else self.day.left(limits.daily_tokens),
            None if limits.monthly_tokens is None else self.month.left(limits.monthly_tokens),
        ):
            if room is not None:
                tokens = max(min(tokens, room), demand.prompt, 1)
        return tokens

    def _no_place(self, parallel: int) -> Denied:
        wait = 1.0 if self._mean is None else self._mean / max(parallel, 1)
        return Denied(
            "concurrency_limit",
            f"this key may have {parallel} requests at once, and has {self.running}",
            _bounded(wait),
        )

    def _too_often(self, limits: KeyLimits, tokens: int, now: float) -> Denied:
        """The rate that is waited for longest, or one that has never room for so much."""
        wait, what = 0.0, ""
        if limits.rpm is not None:
            pause = self.requests.wait(1, limits.rpm, now)
            if pause is None:
                return Denied("rate_limit_exceeded", "this key may make no requests", final=True)
            wait, what = pause, f"{limits.rpm} requests"
        if limits.tpm is not None:
            pause = self.tokens.wait(tokens, limits.tpm, now)
            if pause is None:
                return Denied(
                    "rate_limit_exceeded",
                    f"this request may use {tokens} tokens, more than the key's {limits.tpm} a minute can ever allow: "
                    "shorten the prompt or lower max_tokens",
                    final=True,
                )
            if pause > wait:
                wait, what = pause, f"{limits.tpm} tokens"
        return Denied("rate_limit_exceeded", f"this key's {what} a minute are used up", _bounded(wait))


def _used_up(quota: Quota, limit: int, tokens: int, epoch: float) -> Denied:
    """A call is not let in by what a period has left."""
    word = quota.period.value
    if tokens > limit:
        return Denied(
            "quota_exceeded",
            f"this request may use {tokens} tokens, more than the key's {limit} a {word} can ever allow",
            final=True,
        )
    if quota.used + tokens > limit:
        left = max(limit - quota.used, 0)
        return Denied(
            "quota_exceeded",
            f"this key has {left} of its {limit} tokens a {word} left, this request may use {tokens}",
            max(quota.end - epoch, 1.0),
            final=True,
        )
    return Denied(
        "quota_exceeded", f"what is left of this key's {limit} tokens a {word} is set aside for calls that run",
        SET_ASIDE_WAIT,
    )  # fmt: skip


def _too_long(most: int, demand: Demand) -> Denied:
    what = f"max_tokens is {demand.limit}" if demand.limit is not None else "max_tokens is not given"
    several = f" for each of {demand.answers} answers" if demand.answers > 1 else ""
    reason = f"{what}{several}, this key may ask for {most} at most"
    return Denied("invalid_request", reason + (" in all" if several else ""), final=True, param="max_tokens")


def _too_large(most: int, demand: Demand) -> Denied:
    reason = f"the request is {demand.size} bytes, this key may send {most} at most"
    return Denied("request_too_large", reason, final=True)


def _bounded(seconds: float) -> float:
    return min(max(seconds, RETRY_MIN), RETRY_MAX)
