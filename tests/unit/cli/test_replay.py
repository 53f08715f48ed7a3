from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance.cli import main as cli
from tests.support.hangstories import told
from tests.support.timelines import Scene


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A collective hang of the engine `default`, at 1120 s."""
    file = tmp_path / "timeline.jsonl"
    file.write_bytes(b"".join(told("collective")[0].text()))
    return file


def run(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> tuple[str, str]:
    assert cli.main(["replay", *words]) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_has_an_object_a_change(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, str(recording), "--json")
    found = objects(out)
    assert [(each["t"], each["verdict"], each["cause"], each["action"]) for each in found] == [
        (1000.0, "ok", "idle", "none"),
        (1150.0, "suspect", "slow", "evidence"),
        (1210.0, "hung", "hang-collective", "restart"),
    ]
    assert all(list(each) == ["t", "engine", "verdict", "cause", "action", "reason", "evidence"] for each in found)
    assert {each["engine"] for each in found} == {"default"}
    assert all(isinstance(fact, str) for each in found for fact in each["evidence"])


def test_a_pipe_gets_plain_lines(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, str(recording))
    lines = out.splitlines()
    assert lines[0].split() == ["T", "ENGINE", "VERDICT", "CAUSE", "ACTION", "REASON"]
    assert lines[-1].split()[:5] == ["1210.0", "default", "hung", "hang-collective", "restart"]
    assert "all GPUs at full utilisation" in lines[-1]
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("change", "hung_at"),
    [
        (("--set", "supervisor.hang.confirm=60s"), 1180.0),
        (("--set", "supervisor.hang.confirm=2m"), 1240.0),
        (("--set", "supervisor.hang.confirm=9m", "--set", "supervisor.hang.confirm_blind=9m"), None),
    ],
)
def test_other_limits_can_be_tried(
    recording: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, ...], hung_at: float | None
) -> None:
    out, _ = run(capsys, str(recording), "--json", *change)
    assert next((each["t"] for each in objects(out) if each["verdict"] == "hung"), None) == hung_at


@pytest.mark.parametrize("config", [{"hang": {"confirm": "60s"}}, {"hang": {"confirm": 60}}])
def test_limits_of_the_recording_come_before_those_of_the_file(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any]
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[supervisor.hang]\nconfirm = "70s"\n[[engine]]\nmodel = "builtin:smollm2-135m"\n')
    out, _ = run(capsys, str(recording), "--json", "--config", str(file))
    assert objects(out)[-1]["t"] == 1190.0
    head, _, rest = recording.read_bytes().partition(b"\n")
    value = json.loads(head)
    value["config"]["supervisor"] = config
    recording.write_bytes(json.dumps(value).encode() + b"\n" + rest)
    out, _ = run(capsys, str(recording), "--json", "--config", str(file))
    assert objects(out)[-1]["t"] == 1180.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("supervisor.hang.confirm=soon", "soon"),
        ("supervisor.hang.confirm=0s", "too small"),
        ("supervisor.hang.sureness=60s", "write a setting of [supervisor]"),
        ("gateway.max_body=1MiB", "write a setting of [supervisor]"),
        ("supervisor.hang.confirm", "write a setting of [supervisor]"),
    ],
)
def test_a_wrong_setting_is_refused(
    recording: Path, capsys: pytest.CaptureFixture[str], change: str, said: str
) -> None:
    _, err = run(capsys, str(recording), "--set", change, status=2)
    assert said in err


def test_a_malformed_recording_is_refused_after_what_was_found(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording.write_bytes(recording.read_bytes() + b'{"t": 1, "src"')
    out, err = run(capsys, str(recording), status=2)
    assert "hang-collective" in out
    assert f"{recording}:" in err and "not JSON" in err


def test_a_recording_that_is_not_there_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (tmp_path / "none.jsonl", tmp_path):
        assert str(file) in run(capsys, str(file), status=2)[1]


def test_standard_input_is_read(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with recording.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        out, _ = run(capsys, "-", "--json")
    assert objects(out)[-1]["verdict"] == "hung"


def test_what_is_not_known_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"config": {}}\n{"t": 1, "src": "weather\\u001b[2J"}\n{"t": 2, "src": "health", "http": 200}\n')
    out, err = run(capsys, str(file), "--json")
    assert objects(out)[-1]["verdict"] == "ok"
    assert "1 lines with src weather" in err and "\x1b" not in err


def test_several_engines_are_judged_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines with an engine's name are that engine's; those without are everybody's."""
    hung, well = Scene(1, nvml=False), Scene(1, nvml=False)
    hung.serve(60)
    hung.freeze()
    hung.run(300)
    well.serve(360)
    lines = [{**line, "engine": "chat"} for line in hung.lines[1:]]
    lines += [{**line, "engine": "embed"} for line in well.lines[1:]]
    lines.append({"t": 1030.0, "src": "kernel", "msg": "nothing of note"})
    file = tmp_path / "x.jsonl"
    ordered = sorted(lines, key=lambda line: float(line["t"]))
    file.write_text("".join(f"{json.dumps(line)}\n" for line in [hung.lines[0], *ordered]))
    out, _ = run(capsys, str(file), "--json")
    verdicts = {(each["engine"], each["verdict"]) for each in objects(out)}
    assert verdicts == {("chat", "ok"), ("chat", "suspect"), ("chat", "hung"), ("embed", "ok")}
    assert io.StringIO(out).readline().startswith('{"t": 1000.0, "engine": "chat"')
