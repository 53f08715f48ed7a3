"""The allowance of every key: what a call may use is taken before it, given back after it, and kept over a restart.

Counters are in memory; what the day and the month have used is written behind the loop's back every few seconds, and
once more at the end. A lost write costs at most those seconds of a quota, never a call. A process that another one
follows lays the file down; from then on it counts its own calls alone, and tells `settled` of each that ends.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, cast

from appliance import clock
from appliance.config.model import KeyLimits
from appliance.errors import ApiError
from appliance.host.files import read_json, replace_json
from appliance.policy.allowance import Account, Demand, Denied, Hold
from appliance.wire.openai import Call, Route

from .auth import ANONYMOUS, Principal

SAVE = 2.0  # seconds between two writes of the counts
BYTES_A_TOKEN = 4  # of a request's body; what was really used is counted afterwards
GUESS = 512  # tokens set aside for an answer without a limit, unless its key has one


@dataclass(frozen=True, slots=True)
class Use:
    """Calls in flight, waiting ones too; tokens of the calendar day and month, UTC."""

    running: int
    day: int
    month: int


class Allowances:
    """The accounts by key id. `report` tells the operator, once, that counts cannot be kept."""

    def __init__(self, path: str, report: Callable[[str], None]) -> None:
        self._path, self._report = path, report
        self._accounts: dict[str, Account] = {}
        self._changed = False
        self._number = self._written = 0
        self._lock = threading.Lock()  # writes may overlap; the newest counts win
        self._problem = ""
        self._laid_down = False
        self.settled: Callable[[Hold, int | None], None] | None = None  # who is told of each call that ends
        self._restore(clock.wall())

    # --- one call -------------------------------------------------------------------------------------------------
    def reserve(self, principal: Principal, wanted: Demand) -> Hold:
        """Reserve what a call may use. Raises ApiError with the limit that stands in the way."""
        account = self._account(principal)
        held = account.reserve(principal.limits, wanted, clock.monotonic(), clock.wall())
        if isinstance(held, Denied):
            raise ApiError(held.code, held.reason, param=held.param, retry_after=held.retry_after, final=held.final)
        return held

    def give_back(self, hold: Hold, principal: Principal, used: int | None) -> None:
        """The call ended and used so many tokens; None: no engine has seen it. Once for each hold."""
        hold.account.settle(hold, principal.limits, used, clock.monotonic(), clock.wall())
        self._changed = True
        if self.settled is not None:
            self.settled(hold, used)

    def fields(self, principal: Principal) -> str:
        """The response fields, as lines, that tell a client where it stands, for the limits that its key has."""
        limits = principal.limits
        if limits.rpm is None and limits.tpm is None:
            return ""
        account, now = self._account(principal), clock.monotonic()
        found = ""
        if limits.rpm is not None:
            found = _standing("Requests", limits.rpm, account.requests.debt(limits.rpm, now))
        if limits.tpm is not None:
            found += _standing("Tokens", limits.tpm, account.tokens.debt(limits.tpm, now))
        return found

    def _account(self, principal: Principal) -> Account:
        account = self._accounts.get(principal.key_id)
        if account is None:
            account = self._accounts[principal.key_id] = Account()
        return account

    # --- from one process to the next -----------------------------------------------------------------------------
    def adopt(self, key: str, tokens: int, since: float) -> Hold:
        """Count what a call holds that another process has let in, or is to carry out."""
        return self._account(Principal(key, key)).adopt(tokens, since)

    def count(self, key: str, limits: KeyLimits, used: int) -> None:
        """Count tokens of a call of which nothing was held here."""
        self._account(Principal(key, key)).count(limits, used, clock.monotonic(), clock.wall())
        self._changed = True

    def holds(self) -> list[tuple[str, Hold]]:
        """Everything that is held, with the key's id."""
        return [(key, hold) for key, account in self._accounts.items() for hold in account.holds]

    def state(self) -> dict[str, object]:
        """All counters for the process that takes over."""
        return {key: account.state() for key, account in self._accounts.items()}

    def restore(self, accounts: Mapping[str, Any]) -> None:
        """Go on from the counters of the process before; before any call."""
        epoch = clock.wall()
        self._accounts = {}
        for key, state in accounts.items():
            account = self._accounts[key] = Account()
            account.requests.restore(*state["requests"])
            account.tokens.restore(*state["tokens"])
            for quota in (account.day, account.month):
                start, used = state[quota.period.value]
                quota.restore(start, used, epoch)
        self._changed = True

    def lay_down(self) -> None:
        """Let another process write the file: when this returns, no write of ours is under way. Blocks for the disk."""
        with self._lock:
            self._laid_down = True

    def take_up(self) -> None:
        """Write again."""
        self._laid_down = False

    # --- readings -------------------------------------------------------------------------------------------------
    @property
    def running(self) -> int:
        """Calls that hold a part of an allowance."""
        return sum(account.running for account in self._accounts.values())

    @property
    def reserved(self) -> int:
        """Tokens that they have set aside."""
        return sum(account.day.reserved for account in self._accounts.values())

    def use(self, epoch: float) -> dict[str, Use]:
        """What each key uses, of those that have used anything in this month or have calls in flight."""
        for account in self._accounts.values():
            account.day.turn(epoch)
            account.month.turn(epoch)
        return {
            key: Use(account.running, account.day.used, account.month.used)
            for key, account in self._accounts.items()
            if account.running or account.month.used
        }

    # --- over a restart -------------------------------------------------------------------------------------------
    async def keep(self) -> None:
        """Write the counts whenever they changed, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SAVE)
            if self._changed:
                await loop.run_in_executor(None, self.write, *self.snapshot())

    def snapshot(self) -> tuple[int, dict[str, object]]:
        """The counts as they stand, numbered; on the loop."""
        self._changed = False
        self._number += 1
        epoch = clock.wall()
        keys: dict[str, object] = {}
        for key, account in self._accounts.items():
            account.day.turn(epoch)
            account.month.turn(epoch)
            if account.month.used and key != ANONYMOUS.key_id:
                keys[key] = {
                    "day": [account.day.start, account.day.used],
                    "month": [account.month.start, account.month.used],
                }
        return self._number, {"at": epoch, "keys": keys}

    def write(self, number: int, counts: dict[str, object]) -> None:
        """Write a snapshot, in any thread, unless a newer one was written. Blocks for the disk; never raises."""
        if not counts["keys"] and not os.path.exists(self._path):
            return
        with self._lock:
            if number < self._written or self._laid_down:
                return
            self._written = number
            try:
                replace_json(self._path, counts, 0o600)
                self._problem = ""
            except OSError as error:
                problem = f"what keys have used is not kept over a restart: {self._path}: {error.strerror}"
                if problem != self._problem:
                    self._report(problem)
                self._problem = problem

    def _restore(self, epoch: float) -> None:
        keys = (read_json(self._path) or {}).get("keys")
        for key, value in cast("Mapping[str, object]", keys).items() if isinstance(keys, dict) else ():
            if not isinstance(value, dict):
                continue
            account = self._accounts[key] = Account()
            for quota in (account.day, account.month):
                pair = value.get(quota.period.value)
                if isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, (int, float)) for part in pair):
                    quota.restore(float(pair[0]), int(pair[1]), epoch)


def _standing(word: str, limit: int, debt: float) -> str:
    """The limit, what is left of it, and when it is whole again."""
    left = int(limit - debt)
    return (
        f"X-RateLimit-Limit-{word}: {limit}\r\nX-RateLimit-Remaining-{word}: {left if left > 0 else 0}\r\n"
        f"X-RateLimit-Reset-{word}: {ceil(debt * 60_000 / limit) / 1000:g}s\r\n"
    )


def prompt_tokens(call: Call, route: Route) -> int:
    """Tokens of a prompt, guessed from the size of its body; the bytes of sound are none."""
    return 0 if route.multipart else call.size // BYTES_A_TOKEN + 1


def demand(call: Call, route: Route, limits: KeyLimits) -> Demand:
    """What a call is taken to need: its body's tokens, and the limit of its answers or a guess."""
    if route.free:
        return Demand(call.size, 0, 0, 0)
    prompt, count, limit = prompt_tokens(call, route), call.answers, call.max_tokens
    if not route.streams:
        return Demand(call.size, prompt, 0, 0)
    if limit is not None:
        return Demand(call.size, prompt, count * limit, limit, count)
    guess = count * (route.unbounded or GUESS)
    return Demand(call.size, prompt, min(guess, limits.max_tokens or guess), None, count)
