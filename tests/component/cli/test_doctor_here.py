"""`doctor` as a command on this machine, whatever it is: its form, its time, and what it writes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.cli import deeplooks, findingspage
from appliance.config import source
from appliance.errors import Failed
from appliance.policy.checkup.deep import Setting
from appliance.policy.finding import Finding, Verdict
from tests.support.stage import ROOT

VERDICTS = {"ok", "warn", "fail", "unknown", "skipped"}


def doctor(directory: Path, *words: str, config: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    (directory / "config.toml").write_text(config)
    here = {"LLM_APPLIANCE_RUN": str(directory), "LLM_APPLIANCE_STATE": str(directory), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "appliance", "--config", str(directory / "config.toml"), "doctor", *words],
        env={**os.environ, **here, "COLUMNS": "80", **more}, capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


# Ports that nobody has: a gateway of this machine's would answer.
LOCAL = (
    '[gateway]\nlisten = ["127.0.0.1:9"]\nadmin_listen = "127.0.0.1:7"\n'
    '[runtime]\nwheelhouse = "/srv"\n[[engine]]\nmodel = "/m"\n'
)


def test_every_check_says_something_that_a_machine_can_read(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--json", config=LOCAL)
    found = json.loads(done.stdout)
    names = [one["name"] for one in found]
    assert {"config", "keys", "gateway", "models", "memory", "shm", "disk", "ports", "limits", "hub", "gpu"} <= set(
        names
    )
    for one in found:
        assert set(one) == {"name", "verdict", "evidence", "remedy", "group"} and one["verdict"] in VERDICTS
        assert one["evidence"] and "a fault of this program" not in one["evidence"], one
    wrong = {one["name"] for one in found if one["verdict"] == "fail"}
    assert done.returncode == 1 and {"gateway", "models"} <= wrong
    assert next(one for one in found if one["name"] == "hub")["verdict"] == "skipped"


@pytest.mark.parametrize("text", ["[gatway]\n", "[gateway\n"])
def test_what_is_wrong_with_the_file_stands_as_check_says_it(tmp_path: Path, text: str) -> None:
    found = json.loads(doctor(tmp_path, "--json", config=text).stdout)
    told = next(one["evidence"] for one in found if one["name"] == "config")
    assert told.startswith(f"{tmp_path}/config.toml:1: ") and ": :" not in told


def test_evidence_that_was_asked_for_is_nothing_that_happened_to_an_engine(tmp_path: Path) -> None:
    (tmp_path / "supervisor").mkdir()
    asked, died = ({"engine": "chat", "at": time.time(), "cause": cause, "count": 1} for cause in (None, "engine-died"))
    fleet = {"v": 1, "at": time.time(), "engines": {}, "incidents": [asked, died]}
    (tmp_path / "supervisor/fleet.json").write_text(json.dumps(fleet))
    found = json.loads(doctor(tmp_path, "--json", config=LOCAL).stdout)
    told = [one["evidence"] for one in found if one["name"] == "engines"]
    assert [words for words in told if "within a day" in words] == ["chat: engine-died, 1 time within a day"]


@pytest.mark.slow
def test_people_see_what_is_wrong_first_and_good_ones_in_a_row(tmp_path: Path) -> None:
    done = doctor(tmp_path, config=LOCAL)
    lines = done.stdout.splitlines()
    assert lines[0] == "The appliance" and lines[1].startswith("fail") and "Traceback" not in done.stderr
    assert any(line.startswith("ok      applied, ") for line in lines) and lines[-1].endswith(" s")
    whole = doctor(tmp_path, "--all", config=LOCAL).stdout
    assert "ok      timeouts     a first token may take 10m" in whole
    if not any(Path("/sys/bus/pci/devices").glob("*/driver/module/drivers/pci:nvidia")):
        assert sum("no NVIDIA device" in line for line in lines) == 1


@pytest.mark.slow
def test_what_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    """A server that takes the connection and says nothing, and a driver that keeps nvidia-smi: under ten seconds, of
    which a busy machine makes more."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho x >> $0.asked; trap '' TERM; exec sleep 60\n")
    smi.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as trap:
        config = f'[runtime]\nindex_url = "http://127.0.0.1:{trap.getsockname()[1]}/simple"\n'
        begun = time.monotonic()
        path = f"{tmp_path}:{os.environ['PATH']}"
        done = doctor(tmp_path, "--json", config=config, no_proxy="*", PATH=path)
        assert time.monotonic() - begun < 30
    hub = next(one for one in json.loads(done.stdout) if one["name"] == "hub")
    assert hub["verdict"] == "fail" and "the package index cannot be reached" in hub["evidence"]
    assert (tmp_path / "nvidia-smi.asked").read_text() == "x\n"  # one process for a driver that keeps it


def test_trials_without_gpus_say_why_not(tmp_path: Path) -> None:
    found = {one["name"]: one for one in json.loads(doctor(tmp_path, "--deep", "--json", config=LOCAL).stdout)}
    assert found["links"]["verdict"] == found["disk-speed"]["verdict"] == "skipped"


@pytest.mark.parametrize("words", [("--write",), ("--deep", "--yes"), ("--deep", "--through", "http://h")])
def test_words_that_do_not_go_together(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = doctor(tmp_path, *words)
    assert done.returncode == 2 and "--write with --deep" in done.stderr


ENGINES = '[[engine]]\nname = "chat"\nmodel = "/m"\ngpus = [0, 1]\n[engine.env]\nA = "1"\n'
SETTING = Setting("chat", {"NCCL_P2P_DISABLE": "1"}, {"disable_custom_all_reduce": True})


def test_what_trials_ask_for_becomes_a_drop_in(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(ENGINES)
    with pytest.raises(Failed, match="nothing was written"):
        deeplooks.write((SETTING,), str(tmp_path / "config.toml"), sure=False)
    assert not (tmp_path / "config.d").exists()
    for _ in range(2):  # it replaces what it wrote before
        deeplooks.write((SETTING,), str(tmp_path / "config.toml"), sure=True)
        config = source.load(str(tmp_path / "config.toml")).config
        assert config is not None
        (engine,) = config.engines
        assert dict(engine.env) == {"A": "1", "NCCL_P2P_DISABLE": "1"}
        assert dict(engine.vllm) == {"disable_custom_all_reduce": True}


def test_what_an_engine_got_before_stays_when_another_one_needs_something(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(ENGINES + '[[engine]]\nname = "code"\nmodel = "/n"\ngpus = [2, 3]\n')
    wanted = (SETTING, replace(SETTING, engine="code"))
    for now in (wanted[:1], wanted):
        config = source.load(str(file)).config
        assert config is not None
        deeplooks.write(deeplooks.to_write(config, now), str(file), sure=True)
    config = source.load(str(file)).config
    assert config is not None and deeplooks.to_write(config, wanted) == ()
    assert all("NCCL_P2P_DISABLE" in engine.env for engine in config.engines)


def test_a_drop_in_that_would_break_the_file_is_taken_back(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(ENGINES)
    broken = Setting("chat", {}, {"no_such_flag_of_vllm": True})
    with pytest.raises(Failed, match="no_such_flag_of_vllm"):
        deeplooks.write((broken,), str(tmp_path / "config.toml"), sure=True)
    assert source.load(str(tmp_path / "config.toml")).config is not None
    (tmp_path / "config.toml").write_text("x = 1\n")
    with pytest.raises(Failed, match="has errors"):
        deeplooks.write((SETTING,), str(tmp_path / "config.toml"), sure=True)


# --- the page ---------------------------------------------------------------------------------------------------------

GROUPS = {"a": "One", "b": "One", "c": "One", "d": "Two"}


def test_a_page_of_eighty_columns() -> None:
    long = "what was seen is long enough to need a second line on a terminal of eighty columns"
    found = [
        Finding("a", Verdict.OK, "seen"), Finding("b", Verdict.UNKNOWN, "not known: late"),
        Finding("c", Verdict.UNKNOWN, "not known: late"), Finding("d", Verdict.FAIL, long, f"do this: {long}"),
    ]  # fmt: skip
    lines = "\n".join(findingspage.page(found, GROUPS, 80, whole=False)).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:3] == ["One", "unknown              b, c: not known: late", "ok      a"]
    assert lines[3] == "Two" and lines[4].startswith("fail    d            what was seen")
    assert lines[6].startswith(f"{'':21}-> do this:") and lines[7].startswith(f"{'':24}")
    piped = list(findingspage.page(found, GROUPS, None, whole=True))
    assert f"fail    d            {long}\n{'':21}-> do this: {long}" in piped and "ok      a            seen" in piped
    assert findingspage.summary(found, 1.234) == "1 wrong, 2 not known, 1 good; 1.2 s"
