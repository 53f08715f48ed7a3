"""What follows on TAB, and that bash and zsh offer just that."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from appliance import names
from appliance.cli.complete import FILES, candidates
from appliance.cli.examples import EXAMPLES
from appliance.cli.main import VERBS, main, parser_of
from tests.support.provisions import zsh

ROOT = Path(__file__).resolve().parents[3]
CONFIG = '[[engine]]\nname = "chat"\nreplicas = 2\n[[engine]]\nname = "embed"\nmodel = "builtin:minilm-l6-v2"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(f'[auth]\nkeys_file = "{tmp_path}/keys.toml"\n{CONFIG}')
    return path


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_examples_that_it_reads(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for example in EXAMPLES[verb]:
        word, *rest = shlex.split(example.partition(" | ")[0])
        assert word == verb
        parser_of(verb).parse_args(rest)
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  llm-appliance {example}\n" in shown for example in EXAMPLES[verb])


@pytest.mark.parametrize("verb", ["hold", "resume", "drain", "undrain", "restart"])
def test_examples_name_engines_and_replicas_as_they_are_called(verb: str) -> None:
    assert all(shlex.split(example)[1] in names.instances("chat", 2) for example in EXAMPLES[verb])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", [*VERBS, "gateway", "supervisor"]),
        ("re", ["report", "replay", "resume", "restart"]),
        ("--", ["--config", "--json", "--help", "--version"]),
        ("--config ", [FILES]),
        ("nothing ", []),
        ("restart ", ["chat", "chat-2", "embed"]),
        ("restart --wait chat", ["chat", "chat-2"]),
        ("restart embed ", []),
        ("restart embed --", ["--help", "--wait", "--evidence", "--config", "--json"]),
        ("restart --wait embed --w", []),
        ("hold chat --reason x --", ["--help", "--config", "--json"]),
        ("hold --reason ", []),
        ("config ", ["show", "explain", "import", "snapshot"]),
        ("config ex", ["explain"]),
        ("config explain gateway.timeouts.he", ["gateway.timeouts.head"]),
        ("config import ", [FILES]),
        ("config nothing ", []),
        ("keys create a --class ", ["interactive", "standard", "batch"]),
        ("keys create a --class b", ["batch"]),
        ("plan --kv-cache-dtype=fp8 em", ["embed"]),
        ("replay ", [FILES]),
        ("logs -n 3 e", ["embed"]),
        ("chat hello wor", []),
        ("chat --key-file ", [FILES]),
        ("bench --key-file ", [FILES]),
    ],
)
def test_candidates(words: str, expected: list[str], config: Path) -> None:
    # The option before the verb is how a completion, too, comes to another file.
    before = [] if words.startswith("--") else ["--config", str(config)]
    found = [word for word, _ in candidates([*before, *words.split(" ")])]
    assert [word for word in found if word in expected] == found
    assert set(expected) - {"--json"} <= set(found)


def test_keys_and_incidents_are_silent_where_they_cannot_be_read(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_APPLIANCE_STATE", str(tmp_path))
    assert candidates(["--config", str(config), "incidents", ""]) == []
    assert candidates(["--config", str(config), "keys", "revoke", ""]) == []
    assert main(["--config", str(config), "keys", "create", "alice"]) == 0
    ((name, _),) = candidates(["--config", str(config), "keys", "revoke", ""])
    assert name == "alice"


def _program(directory: Path, config: Path) -> dict[str, str]:
    """`llm-appliance` on PATH, with the configuration of the test."""
    program = directory / "llm-appliance"
    program.write_text(
        f'#!/bin/sh\nshift 2\nexec {sys.executable} -m appliance complete -- --config {config} "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    return os.environ | {"PATH": f"{directory}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def _asked(command: list[str], environment: dict[str, str], directory: Path) -> list[str]:
    done = subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash(tmp_path: Path, config: Path) -> None:
    environment = _program(tmp_path, config)
    script = f"source {ROOT}/packaging/completion/llm-appliance; COMP_WORDS=(%s); COMP_CWORD=%d; _llm_appliance"

    def offered(*words: str) -> list[str]:
        line = script % (" ".join(shlex.quote(word) for word in ("llm-appliance", *words)), len(words))
        return _asked(["bash", "-c", line + '; printf "%s\\n" "${COMPREPLY[@]}"'], environment, tmp_path)

    assert offered("restart", "ch") == ["chat", "chat-2"]
    assert offered("check", "conf") == ["config.toml"]
    assert offered("nothing", "") == []


def test_zsh(tmp_path: Path, config: Path) -> None:
    """The completion system is stood in for: it is there only on a terminal."""
    environment = _program(tmp_path, config)
    stands_in = "_files() { print FILES }; _describe() { print -l -- ${(P)2} }"

    def offered(*words: str) -> list[str]:
        line = " ".join(shlex.quote(word) for word in ("llm-appliance", *words))
        script = (
            f"{stands_in}; words=({line}); CURRENT={len(words) + 1}; source {ROOT}/packaging/completion/_llm-appliance"
        )
        return _asked([str(zsh()), "-f", "-c", script], environment, tmp_path)

    assert offered("restart", "em") == ["embed:builtin:minilm-l6-v2"]
    assert offered("check", "conf") == ["FILES"]
    assert offered("nothing", "") == []


def test_no_verb_of_a_verb_takes_half_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "alice", "--daily-token", "5"]) == 2
    assert "--daily-token" in capsys.readouterr().err
