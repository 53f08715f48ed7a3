"""What a call is taken to need, what clients are told of it, and what outlives the process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance import clock
from appliance.config.model import KeyLimits
from appliance.errors import ApiError
from appliance.gateway.allowances import Allowances, demand
from appliance.gateway.auth import ANONYMOUS, Principal
from appliance.gateway.claim import HEAVIEST, Claim
from appliance.gateway.finish import LEFT
from appliance.policy.allowance import Demand, Hold
from appliance.wire.openai import ROUTES, Call
from tests.support.waiting import clear_of_midnight

CHAT = ROUTES["/v1/chat/completions"]


def principal(key: str = "k-1", **limits: Any) -> Principal:
    return Principal(key, key, (), KeyLimits(**limits))


def call(size: int = 399, **fields: Any) -> Call:
    return Call(model="m", stream=False, size=size, **fields)


@pytest.mark.parametrize(
    ("path", "asked", "cap", "expected"),
    [("/v1/chat/completions", 50, None, Demand(399, 100, 50, 50)),
     ("/v1/chat/completions", None, None, Demand(399, 100, 512)),
     ("/v1/chat/completions", None, 64, Demand(399, 100, 64)),
     ("/v1/completions", None, 64, Demand(399, 100, 16)),
     ("/v1/embeddings", None, None, Demand(399, 100, 0, 0)),
     ("/tokenize", None, None, Demand(399, 0, 0, 0)),
     ("/v1/audio/transcriptions", None, None, Demand(399, 0, 512))],
)  # fmt: skip
def test_what_a_call_needs(path: str, asked: int | None, cap: int | None, expected: Demand) -> None:
    assert demand(call(max_tokens=asked), ROUTES[path], KeyLimits(max_tokens=cap)) == expected


@pytest.mark.parametrize(
    ("path", "asked", "cap", "expected"),
    [("/v1/chat/completions", 50, None, Demand(399, 100, 400, 50, 8)),
     ("/v1/chat/completions", None, None, Demand(399, 100, 4096, None, 8)),
     ("/v1/chat/completions", None, 1000, Demand(399, 100, 1000, None, 8)),
     ("/v1/completions", None, None, Demand(399, 100, 128, None, 8)),
     ("/v1/completions", None, 100, Demand(399, 100, 100, None, 8))],
)  # fmt: skip
def test_what_several_answers_need(path: str, asked: int | None, cap: int | None, expected: Demand) -> None:
    assert demand(call(max_tokens=asked, answers=8), ROUTES[path], KeyLimits(max_tokens=cap)) == expected


def test_what_a_client_claims_to_need_cannot_outweigh_everybody(tmp_path: Path) -> None:
    allowances = Allowances(str(tmp_path / "use.json"), print)
    for asked, weight in ((50, 150), (10**30, HEAVIEST)):
        claim = Claim(allowances, principal(), call(max_tokens=asked), CHAT)
        assert claim.ticket(1, 0.0).weight == weight
        claim.settle(None, LEFT, None)
    assert allowances.running == allowances.reserved == 0


@pytest.mark.parametrize(
    ("path", "cap", "answers", "context", "limit"),
    [("/v1/chat/completions", 100, 1, None, 100), ("/v1/chat/completions", 100, 8, None, 12),
     ("/v1/chat/completions", 100, 1, 64, 64), ("/v1/completions", 100, 1, None, 16),
     ("/v1/completions", 100, 10, None, 10), ("/v1/completions", 100, 100, 2048, 1)],
)  # fmt: skip
def test_a_keys_cap_is_shared_by_the_answers(
    tmp_path: Path, path: str, cap: int, answers: int, context: int | None, limit: int
) -> None:
    allowances = Allowances(str(tmp_path / "use.json"), print)
    claim = Claim(allowances, principal(max_tokens=cap), call(answers=answers), ROUTES[path])
    assert claim.bound(context) == b',"max_tokens":%d' % limit
    with pytest.raises(ApiError) as caught:
        Claim(allowances, principal(max_tokens=answers - 1), call(answers=answers), ROUTES[path])
    assert (caught.value.status, caught.value.param) == (400, "max_tokens")


def take(allowances: Allowances, who: Principal, wanted: Call) -> Hold:
    return allowances.reserve(who, demand(wanted, CHAT, who.limits))


def lines(fields: str) -> dict[str, str]:
    return dict(line.split(": ") for line in fields.split("\r\n")[:-1])


def test_fields_are_those_of_the_limits(tmp_path: Path) -> None:
    allowances = Allowances(str(tmp_path / "use.json"), print)
    assert allowances.fields(principal()) == ""
    who = principal(rpm=60, tpm=6000)
    take(allowances, who, call(max_tokens=500))
    told = lines(allowances.fields(who))
    assert told["X-RateLimit-Limit-Requests"] == "60" and told["X-RateLimit-Remaining-Requests"] == "59"
    assert told["X-RateLimit-Limit-Tokens"] == "6000" and 5400 <= int(told["X-RateLimit-Remaining-Tokens"]) <= 5402
    assert 5.9 <= float(told["X-RateLimit-Reset-Tokens"].rstrip("s")) <= 6.0
    assert set(lines(allowances.fields(principal("k-2", rpm=1)))) == {
        "X-RateLimit-Limit-Requests", "X-RateLimit-Remaining-Requests", "X-RateLimit-Reset-Requests"
    }  # fmt: skip


def test_counts_outlive_the_process(tmp_path: Path) -> None:
    clear_of_midnight(2)
    path = tmp_path / "use.json"
    allowances = Allowances(str(path), print)
    who, other = principal(daily_tokens=1000), principal("k-2", monthly_tokens=1000)
    for one in (who, other, ANONYMOUS):
        allowances.give_back(take(allowances, one, call()), one, 990)
    assert (allowances.running, allowances.reserved) == (0, 0)
    allowances.write(*allowances.snapshot())
    assert set(json.loads(path.read_text())["keys"]) == {"k-1", "k-2"}
    following = Allowances(str(path), print)
    for one in (who, other):
        with pytest.raises(ApiError) as caught:
            take(following, one, call())
        assert caught.value.code == "quota_exceeded" and caught.value.final
    take(following, principal("k-3", daily_tokens=1000), call())


@pytest.mark.parametrize(
    "text",
    ["", "{torn", "[]", '{"v": 2, "keys": {}}', '{"v": 1}', '{"v": 1, "keys": []}', '{"v": 1, "keys": {"k-1": 3}}',
     '{"v": 1, "keys": {"k-1": {"day": [1]}}}', '{"v": 1, "keys": {"k-1": {"day": ["x", null]}}}'],
)  # fmt: skip
def test_a_file_that_is_not_ours_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "use.json"
    path.write_text(text)
    take(Allowances(str(path), print), principal(daily_tokens=1000), call())


def test_yesterdays_counts_are_over(tmp_path: Path) -> None:
    path = tmp_path / "use.json"
    day = clock.wall() // 86400 * 86400 - 86400
    path.write_text(json.dumps({"v": 1, "keys": {"k-1": {"day": [day, 5000], "month": [0, 5000]}}}))
    take(Allowances(str(path), print), principal(daily_tokens=1000, monthly_tokens=1000), call())


def test_an_older_snapshot_never_replaces_a_newer_one(tmp_path: Path) -> None:
    path = tmp_path / "use.json"
    allowances, who = Allowances(str(path), print), principal()
    allowances.give_back(take(allowances, who, call()), who, 10)
    old = allowances.snapshot()
    allowances.give_back(take(allowances, who, call()), who, 10)
    allowances.write(*allowances.snapshot())
    allowances.write(*old)
    assert json.loads(path.read_text())["keys"]["k-1"]["day"][1] == 20


def test_counts_that_cannot_be_written_are_reported_once(tmp_path: Path) -> None:
    reports: list[str] = []
    allowances, who = Allowances(str(tmp_path / "none" / "use.json"), reports.append), principal()
    allowances.write(*allowances.snapshot())
    assert reports == []  # nothing was used, nothing is lost
    for _ in range(2):
        allowances.give_back(take(allowances, who, call()), who, 10)
        allowances.write(*allowances.snapshot())
    assert len(reports) == 1 and "use.json" in reports[0]
