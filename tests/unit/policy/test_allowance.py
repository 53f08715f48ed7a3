from __future__ import annotations

import random
from typing import Any

import pytest

from appliance.config.model import UNLIMITED, KeyLimits
from appliance.policy.admission import Admission, Lease, Outcome, Refuse, Ticket
from appliance.policy.allowance import Account, Demand, Denied, Hold

DAY = 1_800_000_000.0 // 86400 * 86400  # a midnight


def ask(account: Account, now: float = 0.0, *, prompt: int = 10, answer: int = 90, limit: int | None = None,
        size: int = 40, answers: int = 1, **limits: Any) -> Hold | Denied:  # fmt: skip
    demand = Demand(size, prompt, answer if limit is None else limit * answers, limit, answers)
    return account.reserve(KeyLimits(**limits), demand, now, DAY + now)


def denied(found: Hold | Denied) -> Denied:
    assert isinstance(found, Denied), found
    return found


def held(found: Hold | Denied) -> Hold:
    assert isinstance(found, Hold), found
    return found


@pytest.mark.parametrize(
    ("limits", "demand", "code", "param"),
    [({"max_tokens": 50}, {"limit": 51}, "invalid_request", "max_tokens"),
     ({"max_tokens": 50}, {"limit": 13, "answers": 4}, "invalid_request", "max_tokens"),
     ({"max_tokens": 3}, {"answers": 4}, "invalid_request", "max_tokens"),
     ({"tpm": 99}, {"limit": 30, "answers": 3}, "rate_limit_exceeded", None),
     ({"max_prompt": 39}, {}, "request_too_large", None),
     ({"tpm": 99}, {"limit": 90}, "rate_limit_exceeded", None),
     ({"tpm": 9}, {}, "rate_limit_exceeded", None),
     ({"daily_tokens": 99}, {"limit": 90}, "quota_exceeded", None),
     ({"monthly_tokens": 9}, {}, "quota_exceeded", None)],
)  # fmt: skip
def test_what_can_never_fit_is_final(limits: dict[str, int], demand: dict[str, int], code: str, param: Any) -> None:
    account = Account()
    found = denied(ask(account, **demand, **limits))
    assert (found.code, found.final, found.param, found.retry_after) == (code, True, param, None)
    account.check()
    assert account.running == 0 and account.requests.debt(1, 0) == account.tokens.debt(1, 0) == 0


@pytest.mark.parametrize(
    "limits", [{"max_tokens": 90}, {"max_prompt": 40}, {"tpm": 100}, {"daily_tokens": 100}, {"monthly_tokens": 100}]
)
def test_what_just_fits_is_let_in(limits: dict[str, int]) -> None:
    assert held(ask(Account(), limit=90, **limits)).tokens == 100


def test_a_guessed_answer_is_cut_to_what_can_be_had() -> None:
    account = Account()
    assert held(ask(account, tpm=60)).tokens == 60
    account = Account()
    assert held(ask(account, daily_tokens=130)).tokens == 100
    assert held(ask(account, daily_tokens=130)).tokens == 30
    assert denied(ask(account, daily_tokens=130)).code == "quota_exceeded"


def test_places_come_back_and_the_hint_follows_the_calls() -> None:
    account, limits = Account(), KeyLimits(parallel=2)
    first, second = held(ask(account, parallel=2)), held(ask(account, parallel=2))
    full = denied(ask(account, parallel=2))
    assert (full.code, full.final, full.retry_after) == ("concurrency_limit", False, 1.0)
    account.settle(first, limits, 5, 8.0, DAY)
    again = held(ask(account, 8.0, parallel=2))
    assert denied(ask(account, 8.0, parallel=2)).retry_after == 4.0
    with pytest.raises(ValueError, match="already"):
        account.settle(first, limits, 5, 9.0, DAY)
    account.settle(second, limits, 2000, 900.0, DAY)
    assert account.running == 1
    account.settle(again, limits, None, 900.0, DAY)
    account.check()


def test_a_minutes_requests() -> None:
    account = Account()
    holds = [held(ask(account, rpm=2)) for _ in range(2)]
    late = denied(ask(account, rpm=2))
    assert late.code == "rate_limit_exceeded" and late.retry_after == 30.0 and not late.final
    account.settle(holds[0], KeyLimits(rpm=2), None, 0.0, DAY)  # it never reached an engine: it does not count
    assert isinstance(ask(account, rpm=2), Hold)
    account.settle(holds[1], KeyLimits(rpm=2), 0, 0.0, DAY)
    assert isinstance(ask(account, rpm=2), Denied)


def test_tokens_are_reserved_and_then_settled() -> None:
    account, limits = Account(), KeyLimits(tpm=1000)
    hold = held(ask(account, limit=890, tpm=1000))
    wait = denied(ask(account, limit=290, tpm=1000))
    assert wait.code == "rate_limit_exceeded" and wait.retry_after == pytest.approx(12.0)
    account.settle(hold, limits, 100, 0.0, DAY)
    assert account.tokens.debt(1000, 0) == 100
    more = held(ask(account, limit=10, tpm=1000))
    account.settle(more, limits, 5000, 0.0, DAY)  # it used more than it had reserved
    assert denied(ask(account, tpm=1000)).retry_after == 120.0  # at most what a client waits


def test_the_days_tokens() -> None:
    account, limits = Account(), KeyLimits(daily_tokens=200)
    hold = held(ask(account, 3600, limit=140, daily_tokens=200))
    aside = denied(ask(account, 3600, limit=50, daily_tokens=200))
    assert (aside.code, aside.final, aside.retry_after) == ("quota_exceeded", False, 5.0)
    account.settle(hold, limits, 190, 3600, DAY + 3600)
    gone = denied(ask(account, 3600, limit=5, daily_tokens=200))
    assert (gone.code, gone.final, gone.retry_after) == ("quota_exceeded", True, 86400 - 3600)
    assert isinstance(ask(account, 86400, limit=5, daily_tokens=200), Hold)
    month = denied(ask(account, 86400, limit=5, monthly_tokens=204))
    assert "a month" in month.reason and month.final


def test_a_call_over_midnight_counts_where_it_ends() -> None:
    account, limits = Account(), KeyLimits(daily_tokens=200)
    hold = held(ask(account, 86399, daily_tokens=200))
    account.settle(hold, limits, 60, 86401, DAY + 86401)
    assert (account.day.used, account.day.reserved) == (60, 0)


def test_another_account_goes_on_where_one_ends() -> None:
    """What is held is told apart from what is counted: held in both, it is counted once."""
    limits = {"parallel": 1, "tpm": 1000, "daily_tokens": 300}
    before, after = Account(), Account()
    hold = held(ask(before, limit=90, **limits))
    state = before.state()
    for bucket, name in ((after.requests, "requests"), (after.tokens, "tokens")):
        bucket.restore(*state[name])  # type: ignore[misc]
    adopted = after.adopt(hold.tokens, hold.since)
    assert denied(ask(after, limit=90, **limits)).code == "concurrency_limit"
    assert after.tokens.debt(1000, 0.0) == 100
    after.settle(adopted, KeyLimits(tpm=1000, parallel=1, daily_tokens=300), 60, 1.0, DAY + 1)
    after.count(KeyLimits(tpm=1000), 40, 1.0, DAY + 1)
    assert (after.running, after.day.used, after.month.used) == (0, 100, 100)
    after.check()
    assert denied(ask(after, 1.0, limit=201, **limits)).code == "quota_exceeded"
    held(ask(after, 1.0, limit=190, **limits))


def test_limits_that_come_and_go_leave_no_debt() -> None:
    account = Account()
    hold = held(ask(account))
    account.settle(hold, KeyLimits(rpm=5, tpm=5), 10_000, 0.0, DAY)
    other = held(ask(account, 4000, limit=10, rpm=5, tpm=20_000))
    account.settle(other, UNLIMITED, 0, 4000, DAY)
    assert isinstance(ask(account, 4600, rpm=5, tpm=20_000), Hold)
    account.check()


def test_ten_thousand_calls_that_end_anyhow_leave_every_counter_at_zero() -> None:
    """Refused by a limit or the queue, cancelled while waiting or running, failed by the engine, or answered."""
    chance = random.Random(20)
    admission = Admission(queue_size=12, queue_timeout=3.0)
    for name in ("a", "b"):
        admission.set_replica(name, limit=4, serving=True)
    keys = {
        f"k{n}": (Account(), KeyLimits(rpm=3000, tpm=200_000, parallel=3 + n, daily_tokens=10**6)) for n in range(6)
    }
    waiting: dict[int, tuple[Ticket, Hold]] = {}
    running: dict[int, tuple[Lease, Hold]] = {}
    ends = dict.fromkeys(("denied", "full", "displaced", "left", "late", "released"), 0)
    now, returned = 0.0, []

    def settle(ticket: Ticket, hold: Hold, used: int | None) -> None:
        account, limits = keys[ticket.key]
        account.settle(hold, limits, used, now, DAY + now)
        returned.append(ticket.number)

    def take_in(leases: list[Lease]) -> None:
        for lease in leases:
            running[lease.ticket.number] = lease, waiting.pop(lease.ticket.number)[1]

    for number in range(10_000):
        now += chance.expovariate(40)
        name = chance.choice(list(keys))
        account, limits = keys[name]
        found = account.reserve(limits, Demand(400, 100, chance.choice((50, 3000))), now, DAY + now)
        if isinstance(found, Denied):
            ends["denied"] += 1
        else:
            ticket = Ticket(number, name, now, found.tokens, chance.choice(("interactive", "standard", "batch")))
            decision = admission.offer(ticket, now)
            if isinstance(decision, Lease):
                running[number] = decision, found
            elif isinstance(decision, Refuse):
                ends["full"] += 1
                settle(ticket, found, None)
            else:
                waiting[number] = ticket, found
                if decision.displaced is not None:
                    ends["displaced"] += 1
                    settle(*waiting.pop(decision.displaced[0].number), None)
        for _ in range(chance.randrange(3)):
            if waiting and chance.random() < 0.1:
                left = chance.choice(list(waiting))
                assert admission.leave(waiting[left][0])
                ends["left"] += 1
                settle(*waiting.pop(left), None)
            elif running and chance.random() < 0.4:
                lease, hold = running.pop(chance.choice(list(running)))
                admission.release(lease, chance.choice(list(Outcome)), now)
                used = chance.choice((None, 0, hold.tokens // 3, hold.tokens * 2))
                admission.correct(lease.ticket, used or 0)
                ends["released"] += 1
                settle(lease.ticket, hold, used)
                take_in(admission.admit_waiting(now))
        for late, _ in admission.overdue(now):
            ends["late"] += 1
            settle(*waiting.pop(late.number), None)
        if number % 100 == 0:
            admission.check()
            for account, _ in keys.values():
                account.check()
    while running:
        lease, hold = running.popitem()[1]
        admission.release(lease, Outcome.OK, now)
        settle(lease.ticket, hold, hold.tokens)
        ends["released"] += 1
        take_in(admission.admit_waiting(now))
    assert all(count > 50 for count in ends.values()), ends
    assert sum(ends.values()) == 10_000 and len(returned) == len(set(returned)) == 10_000 - ends["denied"]
    assert (admission.in_flight(), admission.waiting, len(waiting)) == (0, 0, 0)
    for account, limits in keys.values():
        account.check()
        assert (account.running, account.day.reserved, account.month.reserved) == (0, 0, 0)
        assert account.day.used > 0 and limits.rpm and limits.tpm
        assert account.requests.debt(limits.rpm, now + 61) == account.tokens.debt(limits.tpm, now + 10_000) == 0
