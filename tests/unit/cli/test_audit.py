from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from appliance.cli import main
from appliance.gateway.auditwriter import AuditWriter
from appliance.host import keystore
from appliance.wire.auditline import members


def entry(at: float, key: str, **fields: Any) -> dict[str, object]:
    return {
        "at": at, "request_id": "r", "key_id": key, "client": "127.0.0.1", "route": "/v1/chat/completions",
        "model": "smollm2-135m", "engine": "chat", "status": 200, "outcome": "ok", "code": "", "stream": True,
        "queue_ms": 1.0, "first_token_ms": 20.0, "total_ms": 1234.5, "events": 4, "prompt_tokens": 7,
        "cached_tokens": 2, "completion_tokens": 3, "estimated": False, "resent": 0, **fields,
    }  # fmt: skip


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """A configuration with a ledger of five requests, the oldest three days old."""
    (tmp_path / "audit").mkdir()
    config = tmp_path / "config.toml"
    config.write_text(f'[audit]\ndirectory = "{tmp_path}/audit"\n[auth]\nkeys_file = "{tmp_path}/keys.toml"\n')
    now = time.time()
    key, _ = keystore.create(str(tmp_path / "keys.toml"), "alice", now)
    keystore.create(str(tmp_path / "keys.toml"), "bob", now)
    writer = AuditWriter(str(tmp_path / "audit"))
    write_on = [
        (now - 3 * 86400, entry(now - 3 * 86400, "k-old")),
        (now - 3600, entry(now - 3600, key.id)),
        (now - 60, entry(now - 60, key.id, outcome="client_left", status=499, estimated=True, prompt_tokens=None)),
        (now - 50, entry(now - 50, key.id, model="a-model-with-a-rather-long-name-for-a-table-of-80-columns")),
        (now - 1, entry(now - 1, "", model="", status=401, outcome="refused", code="invalid_api_key",
                        prompt_tokens=None, completion_tokens=None, cached_tokens=None)),
    ]  # fmt: skip
    for at, body in write_on:
        writer.append(time.strftime("%Y-%m-%d", time.gmtime(at)), [members(body)])
    writer.close()
    return tmp_path


def run(stage: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main.main(["--config", str(stage / "config.toml"), *words])
    told = capsys.readouterr()
    return status, told.out, told.err


def newest(stage: Path) -> Path:
    return max((stage / "audit").glob("usage-*.jsonl"))


def test_what_stands_in_a_ledger_does_not_reach_the_terminal_as_it_is(
    stage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = AuditWriter(str(stage / "audit"))
    hostile = "\x1b]0;title\x07\n\x1b[8m"
    today = time.strftime("%Y-%m-%d", time.gmtime())
    body = entry(time.time(), "k-other", model=hostile, outcome=hostile)
    writer.append(today, [members({"event": "torn", "bytes": 3, "file": hostile}), members(body)])
    writer.close()
    for words in (("verify",), ("show",), ("show", "--sum")):
        status, out, err = run(stage, capsys, "audit", *words)
        assert status == 0 and "title" in out, words
        assert not any(control in out + err for control in "\x1b\x07"), words


def test_a_whole_ledger_is_good(stage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(stage, capsys, "audit", "verify")
    assert status == 0 and err == "" and ": 5 lines in " in out and ", 1 to 5\n" in out and out.endswith("is whole\n")
    status, out, _ = run(stage, capsys, "audit", "verify", "--json")
    told = json.loads(out)
    assert status == 0 and told["good"] is True and told["lines"] == 5 and len(told["hash"]) == 64


def test_a_changed_line_is_named_with_its_place(stage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = newest(stage)
    file.write_text(file.read_text().replace('"status":401', '"status":200'))
    place = f"{file.name}:{len(file.read_text().splitlines())}"
    status, out, err = run(stage, capsys, "audit", "verify")
    assert status == 1 and f"FAULT: {place}: changed: " in out and "is not whole: 1 fault" in err
    status, out, _ = run(stage, capsys, "audit", "verify", "--json")
    assert status == 1 and json.loads(out)["good"] is False and json.loads(out)["findings"][0]["kind"] == "changed"


def test_the_head_of_an_empty_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text(f'[audit]\ndirectory = "{tmp_path}/audit"\n')
    status, out, err = run(tmp_path, capsys, "audit", "verify")
    assert status == 3 and out == "" and f"no usage ledger at {tmp_path}/audit" in err
    (tmp_path / "audit").mkdir()
    assert run(tmp_path, capsys, "audit", "verify")[0] == 0
    assert run(tmp_path, capsys, "audit", "show")[:2] == (0, "")


def test_show_lists_the_last_day_in_80_columns(
    stage: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.cli.output.width", lambda: 80)
    status, out, _ = run(stage, capsys, "audit", "show")
    head, *rows = out.splitlines()
    assert status == 0 and len(rows) == 4 and head.split()[:3] == ["TIME", "KEY", "RESULT"]
    assert max(map(len, out.splitlines())) <= 80
    assert "499 client_left" in rows[1] and " ~3 " in rows[1] and "401 invalid_api_key" in rows[3]


@pytest.mark.parametrize(
    ("words", "count"),
    [((), 4), (("--since", "7d"), 5), (("--since", "5m"), 3), (("--since", "2001-01-01"), 5),
     (("--key", "alice"), 3), (("--key", "k-old"), 0), (("--key", "k-old", "--since", "4d"), 1), (("--key", "bob"), 0)],
)  # fmt: skip
def test_show_chooses(stage: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], count: int) -> None:
    status, out, _ = run(stage, capsys, "audit", "show", *words, "--json")
    assert status == 0 and len(json.loads(out)) == count


def test_sums(stage: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, out, _ = run(stage, capsys, "audit", "show", "--sum", "--json", "--key", "alice")
    long, short = sorted(json.loads(out), key=lambda one: one["requests"])
    assert short["model"] == "smollm2-135m" and short["key_name"] == "alice" and long["requests"] == 1
    assert {name: short[name] for name in ("requests", "ok", "prompt_tokens", "completion_tokens", "estimated")} == {
        "requests": 2, "ok": 1, "prompt_tokens": 7, "completion_tokens": 6, "estimated": 1,
    }  # fmt: skip
    monkeypatch.setattr("appliance.cli.output.width", lambda: 80)
    _, out, _ = run(stage, capsys, "audit", "show", "--sum", "--since", "30d")
    assert len(out.splitlines()) == 5 and max(map(len, out.splitlines())) <= 80 and " ~6 " in out
    assert out.count("alice") == 2


def test_what_cannot_be_read_is_told(stage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with newest(stage).open("ab") as file:
        file.write(b"{torn")
    status, _, err = run(stage, capsys, "audit", "show")
    assert status == 0 and "1 line cannot be read" in err


@pytest.mark.parametrize("words", [(), ("show", "--since", "soon"), ("burn",), ("verify", "x")])
def test_wrong_words_are_2(stage: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert run(stage, capsys, "audit", *words)[0] == 2


def test_keys_list_tells_the_last_use(
    stage: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = run(stage, capsys, "keys", "list", "--json")
    alice, bob = json.loads(out)
    assert abs(time.time() - 50 - alice["last_use"]) < 30 and bob["last_use"] is None
    _, out, _ = run(stage, capsys, "keys", "list")
    _, alice_row, bob_row = out.splitlines()
    expires, _, ago, *rest = alice_row.split()[-6:]
    assert (expires, ago, rest) == ("-", "ago", ["all", "standard", "none"]) and len(alice_row) <= 80
    assert bob_row.split()[-5:] == ["-", "-", "all", "standard", "none"]
    (stage / "config.toml").write_text(f'[audit]\ndirectory = "{stage}/x"\n[auth]\nkeys_file = "{stage}/keys.toml"\n')
    assert "  ?  " in run(stage, capsys, "keys", "list")[1]
