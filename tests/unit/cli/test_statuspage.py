from __future__ import annotations

from typing import Any

import pytest

from appliance import __version__
from appliance.cli.statuspage import MOST_KEYS, lines

NOW = 1_000_000.0
FIRST = {"within_s": 300.0, "count": 40, "p50_s": 0.213, "p95_s": 12.4, "awaited": 0, "longest_wait_s": None}
CHAT: dict[str, Any] = {
    "name": "chat", "remote": False, "state": "serving", "since": NOW - 7200.0, "restarts": 0, "in_flight": 3,
    "limit": 64, "tokens_per_second": 812.4, "first_token": FIRST,
    "load": {"at": NOW, "running": 3.0, "waiting": 0.0, "kv_usage": 0.412},
}  # fmt: skip
ALICE = {"id": "k-1", "name": "alice", "running": 2, "tokens_today": 120331, "tokens_month": 5120331,
         "daily_tokens": 2000000, "monthly_tokens": None}  # fmt: skip


def status(*replicas: dict[str, Any], **more: Any) -> dict[str, Any]:
    engine = {"name": "chat", "served_names": ["qwen"], "queued": 2, "replicas": list(replicas)}
    return {
        "state": "serving",
        "versions": {"appliance": __version__, "vllm": "0.32.0", "device": "cuda"},
        "gateway": {"listen": ["127.0.0.1:8080"], "running": 3, "queued": 2, "tokens_per_second": 812.4},
        "config": {"valid": True},
        "supervisor": {"at": NOW - 3, "mode": "act", "version": __version__},
        "engines": [engine] if replicas else [],
        **more,
    }


def shown(value: dict[str, Any], columns: int = 80) -> list[str]:
    made = list(lines(value, NOW, columns))
    assert max(map(len, made)) <= columns
    return made


def test_the_page_of_a_fleet_at_work() -> None:
    second = {**CHAT, "name": "chat-2", "in_flight": 0, "tokens_per_second": 0.0, "load": None,
              "first_token": {**FIRST, "p50_s": None, "p95_s": None}}  # fmt: skip
    assert shown(status(CHAT, second, keys={"use": [ALICE]})) == [
        f"llm-appliance {__version__}, vLLM 0.32.0 (cuda): serving",
        "gateway   127.0.0.1:8080: 3 running, 2 queued, 812 tok/s",
        "",
        "ENGINE  STATE    SINCE  RESTARTS  SERVES",
        "chat    serving  2h     0         qwen",
        "chat-2  serving  2h     0         qwen",
        "",
        "ENGINE  RUNNING  QUEUED  TOK/S  FIRST TOKEN p50 / p95  KV CACHE",
        "chat    3/64     2       812    213 ms / 12 s          41 %",
        "chat-2  0/64             0      -                      -",
        "",
        "KEY    RUNNING  TOKENS TODAY          THIS MONTH",
        "alice  2        120,331 of 2,000,000  5,120,331",
    ]


def test_calls_that_await_their_first_token_are_told() -> None:
    waiting = {**CHAT, "first_token": {**FIRST, "awaited": 12, "longest_wait_s": 41.2}}
    assert "chat: 12 calls without a first token, the longest for 41 s" in shown(status(waiting))
    soon = {**CHAT, "first_token": {**FIRST, "awaited": 12, "longest_wait_s": 2.0}}
    assert not any("without" in line for line in shown(status(soon)))


def test_an_engine_that_takes_no_calls_has_no_figures_and_its_cause_and_next_step() -> None:
    held = {**CHAT, "state": "held", "in_flight": 0, "cause": "config-error", "reason": "bad flag",
            "next": "llm-appliance resume chat"}  # fmt: skip
    page = shown(status(held))
    assert not any("KV CACHE" in line for line in page)
    assert "chat: config-error: bad flag" in page and "    next: llm-appliance resume chat" in page


@pytest.mark.parametrize(
    ("supervisor", "words"),
    [
        ({"at": NOW - 5, "mode": "act"}, ""),
        ({"at": NOW - 120, "mode": "act"}, "silent for 2m"),
        ({"at": None, "mode": "act"}, "has told nothing"),
        (None, "has told nothing"),
        ({"at": NOW - 5, "mode": "observe"}, "it judges and touches nothing"),
    ],
)
def test_a_supervisor_that_restarts_nothing_is_named(supervisor: dict[str, Any] | None, words: str) -> None:
    told = [line for line in shown(status(CHAT, supervisor=supervisor)) if line.startswith("supervisor")]
    assert len(told) == bool(words) and words in "".join(told)
    remote = [line for line in shown(status({**CHAT, "remote": True}, supervisor=None)) if "supervisor" in line]
    assert remote == []  # nobody has to restart what is elsewhere


def test_the_keys_that_use_most_are_shown_and_the_others_counted() -> None:
    use = [{**ALICE, "name": None, "id": f"k-{n}"} for n in range(MOST_KEYS + 2)]
    page = shown(status(CHAT, keys={"use": use}))
    assert sum(line.startswith("k-") for line in page) == MOST_KEYS and page[-1] == "and 2 more keys"


def test_drift_is_told_with_its_remedy() -> None:
    drift = [{"kind": "settings", "text": "2 settings are edited and not applied: " + "a.long.key, " * 9,
              "remedy": "llm-appliance apply"}]  # fmt: skip
    page = shown(status(CHAT, drift=drift))
    assert any("2 settings are edited" in line for line in page) and page[-1] == "    llm-appliance apply"
    invalid = {"kind": "invalid", "text": "the configuration file cannot be used", "remedy": "llm-appliance check"}
    both = shown(status(CHAT, drift=[invalid], config={"valid": False, "origin": "last-good"}))
    assert sum("cannot be used" in line for line in both) == 1 and "    llm-appliance check" in both
    named = shown(status(CHAT, config={"valid": False, "origin": "none", "file": "/srv/my config.toml"}))
    assert "    llm-appliance check '/srv/my config.toml'" in named


@pytest.mark.parametrize("process", ["gateway", "supervisor"])
def test_a_process_of_another_version_is_named(process: str) -> None:
    old = {"versions": {"appliance": "0.0.9"}} if process == "gateway" else {
        "supervisor": {"at": NOW, "mode": "act", "version": "0.0.9"}
    }  # fmt: skip
    page = shown(status(CHAT, **old))
    assert f"the {process} that runs is of 0.0.9, {__version__} is installed:" in page
    assert f"    systemctl restart llm-{process}" in page


def test_the_incidents_of_the_last_day_are_named() -> None:
    told = [
        {"id": "20261129T173000Z-chat-engine-died", "at": NOW - 90.0, "count": 2},
        {"id": "20261128T173000Z-chat-old", "at": NOW - 2 * 86400.0, "count": 1},
    ]
    page = "\n".join(shown({"state": "serving", "incidents": told}))
    assert "incident 20261129T173000Z-chat-engine-died (2 times), 90s ago" in page
    assert "    llm-appliance incidents 20261129T173000Z-chat-engine-died" in page
    assert "old" not in page


def test_without_incidents_nothing_is_said() -> None:
    assert "incident" not in "\n".join(lines({"state": "serving", "incidents": None}, NOW))
    assert "incident" not in "\n".join(lines({"state": "serving"}, NOW))


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "a\nb", "\x1b[2J", "\x1b[8m", "\x1b[30;40m"])
def test_what_others_wrote_does_not_reach_the_terminal_as_it_is(text: str) -> None:
    held = {**CHAT, "state": "held", "reason": text, "next": text, "cause": text}
    drift = [{"kind": "unit", "text": text, "remedy": text}]
    told = {"versions": {"vllm": text, "device": text}, "runtime": {"phase": text, "message": text}}
    page = shown(status(held, drift=drift, keys={"use": [{**ALICE, "name": text}]}, **told))
    assert not any(control in line for line in page for control in ("\x1b", "\x07", "\n"))


def test_requests_in_quarantine_are_told_with_the_way_out() -> None:
    def told(refused: int) -> str:
        return "\n".join(lines({"state": "serving", "gateway": {"quarantine": {"refused": refused}}}, NOW))

    assert "1 request is refused for up to an hour" in told(1) and "systemctl restart llm-gateway" in told(1)
    assert "2 requests are refused" in told(2)
    assert "refused" not in told(0) and "refused" not in "\n".join(lines({"gateway": {}}, NOW))


def test_what_was_planned_stands_beside_what_vllm_found() -> None:
    planned = {"weights_gib": 14.99, "kv_gib": 4.31, "kv_tokens": 35312, "at_once": 1.77, "context": 20000}
    chat = {**CHAT, "planned": planned, "measured": {"weights_gib": 14.9888, "kv_gib": 3.81, "kv_tokens": 31232.0}}
    page = shown(status(chat))
    assert page[page.index("ENGINE  EACH GPU  WEIGHTS   KV CACHE  TOKENS  REQUESTS") :][:3] == [
        "ENGINE  EACH GPU  WEIGHTS   KV CACHE  TOKENS  REQUESTS",
        "chat    planned   15.0 GiB  4.3 GiB   35,312  1.8 of 20,000",
        "        measured  15.0 GiB  3.8 GiB   31,232  -",
    ]
    for half in ({"planned": None, "measured": {"kv_gib": 1.0}}, {"planned": planned, "measured": {}}):
        assert not any("EACH GPU" in line for line in shown(status({**CHAT, **half})))
