from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from appliance.cli import main


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "config.toml"
    file.write_text(f'[auth]\nkeys_file = "{tmp_path}/keys.toml"\n')
    return str(file)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main.main(list(words))
    told = capsys.readouterr()
    return status, told.out, told.err


def test_the_key_alone_is_on_standard_output(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "keys", "create", "alice", "--config", config)
    assert status == 0 and out.startswith("sk-") and out.count("\n") == 1 and out.strip() not in err


def test_json_holds_id_name_and_key(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(
        capsys, "keys", "create", "bob", "--models", "a, b", "--expires", "30d", "--json", "--config", config
    )
    made = json.loads(out)
    assert made["name"] == "bob" and made["key"].startswith("sk-") and made["models"] == ["a", "b"]
    assert abs(made["expires"] - made["created"] - 30 * 86400) <= 1
    _, out, _ = run(capsys, "keys", "list", "--json", "--config", config)
    (listed,) = json.loads(out)
    assert listed["id"] == made["id"] and made["key"] not in out


def test_a_model_that_no_engine_serves_is_told(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "keys", "create", "a", "--models", "smollm2-135m,chta", "--config", config)
    assert status == 0 and out.startswith("sk-")
    assert "no engine serves 'chta'; the configuration has: smollm2-135m" in err
    assert "no engine serves" not in run(capsys, "keys", "create", "b", "--config", config)[2]


def test_limits_are_stored_and_listed(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--rpm", "60", "--tpm", "100_000", "--parallel", "4", "--daily-tokens", "2000000", "--monthly-tokens",
             "40000000", "--max-tokens", "4096", "--max-prompt", "256KiB", "--class", "batch",
             "--stream-time", "10m"]  # fmt: skip
    _, out, _ = run(capsys, "keys", "create", "eve", *words, "--json", "--config", config)
    made = json.loads(out)
    given = {"rpm": 60, "tpm": 100_000, "parallel": 4, "daily_tokens": 2_000_000, "monthly_tokens": 40_000_000,
             "max_tokens": 4096, "max_prompt": 262_144, "class": "batch", "stream_time": 600}  # fmt: skip
    assert given.items() <= made.items()
    run(capsys, "keys", "rotate", "eve", "--config", config)  # which keeps them
    run(capsys, "keys", "create", "free", "--config", config)
    eve, free = json.loads(run(capsys, "keys", "list", "--json", "--config", config)[1])
    assert given.items() <= eve.items() and (free["class"], free["rpm"]) == ("standard", None)
    table = run(capsys, "keys", "list", "--config", config)[1]
    assert "batch" in table and "60 rpm, 100000 tpm, 4 at once" in table
    assert "256 KiB a request, 10m of streaming" in table


def test_a_keys_life(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, first, _ = run(capsys, "keys", "create", "carol", "--config", config)
    status, second, _ = run(capsys, "keys", "rotate", "carol", "--overlap", "1h", "--config", config)
    assert status == 0 and second.startswith("sk-") and second != first
    assert "good, its old secret until 2" in run(capsys, "keys", "list", "--config", config)[1]
    (listed,) = json.loads(run(capsys, "keys", "list", "--json", "--config", config)[1])
    assert abs(listed["previous_until"] - time.time() - 3600) < 60
    assert run(capsys, "keys", "revoke", "carol", "--config", config)[0] == 0
    assert "revoked" in run(capsys, "keys", "list", "--config", config)[1]


@pytest.mark.parametrize(
    "words",
    [("create", "no way"), ("create", "x", "--expires", "soon"), ("create", "x", "--expires", "2001-01-01"),
     ("create", "x", "--rpm", "0"), ("create", "x", "--tpm", "many"), ("create", "x", "--class", "first"),
     ("create", "x", "--max-prompt", "0"), ("create", "x", "--max-prompt", "2 yards"),
     ("create", "x", "--stream-time", "0s"), ("create", "x", "--stream-time", "1.5s"),
     ("create", "x", "--stream-time", "long"),
     ("revoke", "nobody"), ("rotate", "nobody"), ("rotate", "x", "--overlap", "x"), ()],
)  # fmt: skip
def test_wrong_words_are_2(config: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    status, out, err = run(capsys, "keys", *words, "--config", config)
    assert status == 2 and out == "" and err


def test_keys_can_be_managed_while_the_configuration_is_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[auth]\nkeys_file = "{tmp_path}/keys.toml"\n[nonsense]\nx = 1\n')
    status, out, _ = run(capsys, "keys", "create", "dora", "--config", str(file))
    assert status == 0 and out.startswith("sk-")
    file.write_text("[nonsense")
    assert run(capsys, "keys", "list", "--config", str(file))[0] == 2
