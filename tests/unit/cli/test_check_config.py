"""`check` and `config` through the command line: words, JSON and exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from appliance.config import source
from appliance.units.render import engine_digest

BAD = '[gateway]\nlisen = ["127.0.0.1:1"]\n[[engine]]\nreplicas = 0\n'
GOOD = """[supervisor.hang]
confirm = "60s"
[network]
https_proxy = "http://me:word@proxy.example.org:1"
[[engine]]
name = "chat"
env = { SOME_API_KEY = "abc", A = "b" }
[engine.vllm]
max_num_seqs = 4
swap_space = 4
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return status, out, err


def test_check_names_every_problem(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(BAD)
    status, out, _ = run(capsys, "check", config)
    assert status == 2
    assert f"error: {config}:2: gateway.lisen: there is no such setting (did you mean gateway.listen?)\n" in out
    assert f"error: {config}:4: engine.replicas: 0 is too small (at least 1)\n" in out
    assert out.splitlines()[-1] == f"{config}: invalid, 2 errors; what runs is not touched"
    assert run(capsys, "--config", config, "check")[:2] == (2, out)


def test_check_of_a_good_file_with_warnings_is_good(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(GOOD)
    status, out, _ = run(capsys, "check", config)
    assert status == 0
    assert out.splitlines()[-1] == f"{config}: good, 1 engine, 1 warning"


def test_a_ledger_that_nobody_can_write_is_told(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(f'[audit]\ndirectory = "{tmp_path}/ledger"\n')
    status, out, _ = run(capsys, "check", config)
    assert status == 0
    assert f'{config}:2: audit.directory: there is no "{tmp_path}/ledger" (install -d -o llm-gateway' in out
    (tmp_path / "ledger").mkdir(mode=0o777)
    assert "warning" not in run(capsys, "check", config)[1]


def test_check_tells_what_the_supervisor_changes(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_APPLIANCE_STATE", str(tmp_path))
    config.write_text("[[engine]]\nreplicas = 2\n[engine.vllm]\nmax_num_seqs = 64\n")
    loaded = source.load(str(config)).config
    assert loaded is not None
    (tmp_path / "supervisor/rungs").mkdir(parents=True)
    for instance, digest in (("default", engine_digest(loaded, "default")), ("default-2", "another")):
        rung = {"v": 1, "digest": digest, "told": "max_num_seqs 64 -> 32 (cuda-oom-warmup)"}
        (tmp_path / f"supervisor/rungs/{instance}.json").write_text(json.dumps(rung))
    status, out, _ = run(capsys, "check", config)
    assert status == 0
    assert "default does not run as it is written; it is started with: max_num_seqs 64 -> 32 (cuda-oom-warmup)" in out
    assert f"{config}:3: engine.vllm" in out and "default-2" not in out


def test_check_of_a_missing_file(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "check", config)
    assert status == 2
    assert f"{config}: there is no such file" in out


def test_check_as_json(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(BAD)
    status, out, _ = run(capsys, "check", config, "--json")
    told: dict[str, Any] = json.loads(out)
    assert (status, told["valid"], told["files"]) == (2, False, [str(config)])
    assert told["problems"][1] == {
        "severity": "error", "file": str(config), "line": 4, "key": "engine.replicas", "message": "0 is too small",
        "remedy": "at least 1",
    }  # fmt: skip


def test_check_says_what_the_host_lacks(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("x")
    config.write_text(
        f'[models]\ntoken_file = "{tmp_path}/token"\n[[engine]]\nmodel = "{tmp_path}/nothing"\n'
    )  # fmt: skip
    status, out, _ = run(capsys, "check", config)
    assert status == 0
    assert f'{config}:4: engine.model: there is no "{tmp_path}/nothing"' in out
    assert "token_file" not in out


def test_show_lists_what_is_set_and_where(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(GOOD)
    status, out, _ = run(capsys, "--config", config, "config", "show")
    assert status == 0
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["KEY", "VALUE", "FROM"]
    assert ["supervisor.hang.confirm", '"60s"', f"{config}:2"] in rows
    assert ["engine[chat].vllm.max_num_seqs", "4", f"{config}:9"] in rows
    assert not [row for row in rows if row[0] == "gateway.max_body"]
    assert "abc" not in out
    assert "word" not in out


def test_show_effective_lists_defaults_too(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(GOOD)
    status, out, _ = run(capsys, "--config", config, "config", "show", "--effective", "--json")
    told = json.loads(out)
    settings = {row["key"]: row for row in told["settings"]}
    assert (status, told["origin"]) == (0, "file")
    assert settings["gateway.max_body"] == {
        "key": "gateway.max_body",
        "engine": None,
        "toml": '"64MiB"',
        "from": "default",
    }
    assert settings["engine[chat].replicas"]["from"] == "default"
    assert settings["supervisor.hang.confirm"]["from"] == f"{config}:2"


def test_show_of_a_bad_file_is_of_the_last_good_one(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config.parent / "last-good.toml").write_text(GOOD)
    config.write_text(BAD)
    status, out, err = run(capsys, "--config", config, "config", "show")
    assert status == 0
    assert "last-good.toml:2" in out
    assert "is invalid" in err
    (config.parent / "last-good.toml").unlink()
    status, _, err = run(capsys, "--config", config, "config", "show")
    assert status == 2
    assert "lisen" in err


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "config", "explain", "gateway.admission.queue_size")
    assert status == 0
    assert "512" in out
    assert "no request is lost" in out
    assert (
        json.loads(run(capsys, "config", "explain", "engine.vllm.dtype", "--json")[1])["kind"] == "one of the choices"
    )
    assert "gateway.admission" in run(capsys, "config", "explain")[1]


def test_explain_of_an_unknown_key_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "config", "explain", "gateway.admission.queue_sise")
    assert status == 2
    assert "gateway.admission.queue_size" in err


def test_a_snapshot_is_printed_and_kept_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(GOOD)
    kept = config.parent / "last-good.toml"
    status, out, _ = run(capsys, "--config", config, "config", "snapshot")
    assert status == 0
    assert 'confirm = "60s"' in out
    assert not kept.exists()
    assert run(capsys, "--config", config, "config", "snapshot", "--keep") == (0, "", "")
    assert kept.read_text() == out
    config.write_text("")
    run(capsys, "--config", config, "config", "snapshot", "--keep")
    assert kept.read_text() == out
    config.write_text(BAD)
    assert run(capsys, "--config", config, "config", "snapshot", "--keep")[0] == 2
