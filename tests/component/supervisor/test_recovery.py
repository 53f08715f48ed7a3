"""An engine that is taken down with evidence: real launchers, real signals, a supervisor that is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from appliance.host import files
from appliance.host.places import Places
from appliance.policy.events import EVENTS
from appliance.policy.reclaim import EMPTY_S
from appliance.supervisor.daemon import Daemon
from tests.support.enginestage import LIMIT, ROOT
from tests.support.journalsocket import Listener
from tests.support.livestage import LiveStage, live
from tests.support.stage import unit
from tests.support.waiting import wait_until

SECRET, PROMPT = "Zq9xSecretValue77", "tell-me-of-Ada"


@pytest.fixture
def stage() -> Iterator[LiveStage]:
    with live("") as made:
        yield made


@pytest.fixture
def ranks() -> Iterator[LiveStage]:
    with live("tp=2") as made:
        yield made


def serving(stage: LiveStage) -> dict[str, int]:
    stage.start()
    stage.served(1)
    return stage.pids()


@pytest.mark.slow
def test_an_operator_has_a_stopped_engine_restarted_with_its_stacks(ranks: LiveStage) -> None:
    stage = ranks
    pids = serving(stage)
    os.kill(pids["worker"], signal.SIGSTOP)
    os.kill(pids["api"], signal.SIGSTOP)
    answer = stage.ask("restart", engine="chat", evidence=True, wait=True, reason="it hangs")
    assert answer[-1] == {"done": True, "ok": True, "message": "chat: settled"}
    stage.served(2)
    (bundle,) = stage.bundles
    about = bundle.incident
    assert (about.kind, about.cause, about.reason) == ("asked", "", "it hangs")
    assert about.outcome.startswith("done: its processes are gone")
    stacks = stage.text("stacks.txt")
    assert "waits_for_its_peers" in stacks and "turns_in_its_loop" in stacks
    assert f"pid {pids['worker']}, parent {pids['core']}, state T" in stage.text("processes.txt")
    assert "Application startup complete." in stage.text("lines.log")
    assert set(about.collected) >= {"stacks.txt", "processes.txt", "lines.log", "shm.txt", "config.toml"}
    assert json.loads(stage.text("timeline.jsonl").splitlines()[0])["config"]["gpus"] == 0
    assert "answer" in about.missing["metrics.txt"]  # its API process was stopped
    assert stage.ledger().get("deaths", []) == []
    assert [call for call in stage.systemd.calls if call[0] == "kill"] == []  # the abort was enough
    assert stage.journal.count("restarting: it hangs") == 1 and "restart with evidence" not in stage.journal
    fleet = json.loads((stage.run / "supervisor/fleet.json").read_text())
    assert [one["id"] for one in fleet["incidents"]] == [about.id]


@pytest.mark.parametrize(
    ("moment", "answers"),
    [
        pytest.param("begun", True, marks=pytest.mark.slow),
        pytest.param("recorded", True, marks=pytest.mark.slow),
        pytest.param("aborted", False, marks=pytest.mark.slow),
        pytest.param("killed", False, marks=pytest.mark.slow),
    ],
)
def test_a_supervisor_that_is_killed_in_a_recovery_goes_on_with_it(
    stage: LiveStage, moment: str, answers: bool
) -> None:
    """Whenever it is killed: one incident, one new run, nothing killed twice, nothing of the new run."""
    stage.program("nvidia-smi", "sleep 0.5; echo GPU" if moment == "begun" else "echo GPU")
    pids = serving(stage)
    if not answers:  # the launcher hangs as well: only SIGKILL ends it
        (stage.run / "engines/chat/launcher/evidence.sock").unlink()
        for pid in (*pids.values(), stage.launcher):
            os.kill(pid, signal.SIGSTOP)
    stage.ask("restart", engine="chat", evidence=True)
    stage.wait(lambda: stage.case() and (moment == "begun" or stage.case()[moment]), f"it is {moment}")
    stage.kill()
    assert len(stage.bundles) == (0 if moment == "begun" else 1)
    stage.start()
    stage.served(2)
    assert stage.starts() == 2
    assert len(stage.bundles) == 1
    assert list((stage.state / "incidents").glob(".*")) == []
    kills = [call for call in stage.systemd.calls if call[0] == "kill"]
    assert all(call == ["kill", unit(), "SIGKILL"] for call in kills) and len(kills) <= 2
    assert bool(kills) is not answers
    assert "GPU" in stage.text("nvidia-smi.txt")


@pytest.mark.slow
def test_what_was_to_be_killed_long_ago_is_killed_before_it_is_called_unkillable(stage: LiveStage) -> None:
    """The supervisor ended between its word and the deed and was away for minutes, or the clock was set meanwhile."""
    pids = serving(stage)
    (stage.run / "engines/chat/launcher/evidence.sock").unlink()
    for pid in (*pids.values(), stage.launcher):
        os.kill(pid, signal.SIGSTOP)
    stage.ask("restart", engine="chat", evidence=True)
    stage.wait(lambda: stage.case().get("aborted"), "it is aborted")
    stage.kill()
    case = stage.case()
    files.replace_json(stage.state / "supervisor/recoveries/chat", {**case, "killed": case["aborted"] - 600.0})
    stage.start()
    stage.served(2)
    assert [call for call in stage.systemd.calls if call[0] == "kill"] == [["kill", unit(), "SIGKILL"]]
    assert "cannot be killed" not in stage.journal


@pytest.mark.slow
def test_an_end_that_was_decided_and_not_told_yet_is_told_by_the_next_supervisor(stage: LiveStage) -> None:
    """Killed between the case on disk and the ledger: the death is entered and told, once."""
    serving(stage)
    stage.kill()
    start = json.loads((stage.run / "engines/chat/state.json").read_text())["start"]
    case = {"run": stage.systemd.get(unit())["InvocationID"], "kind": "kill", "cause": "hang-kernel",
            "reason": "no token", "incident": "20261129T173000Z-chat-hang-kernel", "group": f"/../../..{stage.group}",
            "at": 1.0, "start": start}  # fmt: skip
    (stage.state / "supervisor/recoveries").mkdir()
    (stage.state / "supervisor/recoveries/chat").write_text(json.dumps({"v": 1, **case}))
    stage.start()
    stage.served(2)
    assert [death["cause"] for death in stage.ledger()["deaths"]] == ["hang-kernel"]
    assert stage.journal.count("chat: hang-kernel: no token") == 1


@pytest.mark.slow
def test_processes_that_cannot_be_killed_hold_the_engine_and_ask_for_a_reboot(stage: LiveStage) -> None:
    pids = serving(stage)
    stage.kill()
    for pid in (*pids.values(), stage.launcher):
        os.kill(pid, signal.SIGSTOP)
    case = {"run": stage.systemd.get(unit())["InvocationID"], "kind": "kill", "cause": "hang-kernel",
            "reason": "no token", "incident": "20261129T173000Z-chat-hang-kernel", "group": f"/../../..{stage.group}",
            "at": 1.0, "recorded": True, "aborted": 1.0, "killed": 1.0}  # fmt: skip
    (stage.state / "supervisor/recoveries").mkdir()
    (stage.state / "supervisor/recoveries/chat").write_text(json.dumps({"v": 1, **case}))
    (stage.home / "nobody").mkdir()
    (stage.home / "nobody/cgroup.procs").touch()
    stage.systemd.set(unit(), ControlGroup=f"/../../..{stage.home}/nobody")  # whom systemd's kill reaches
    stage.start()
    stage.wait(lambda: not stage.case(), "it is given up", EMPTY_S + LIMIT)
    assert stage.systemd.calls.count(["kill", unit(), "SIGKILL"]) > 1
    assert "cannot be killed" in stage.journal and f"(pid {pids['core']}, state T)" in stage.journal
    for pid in (*pids.values(), stage.launcher):
        os.kill(pid, signal.SIGKILL)
    held = stage.wait_state("held")
    assert held["cause"] == "driver-unresponsive" and "reboot" in held["reason"]
    assert stage.starts() == 1


@pytest.mark.slow
def test_deaths_get_incidents_without_secrets_and_the_report_has_none(tmp_path: Path) -> None:
    """Secrets in the configuration, keys and prompts in the engine's lines: neither bundle nor report shows them."""
    (tmp_path / "said").write_text(f"ERROR token={SECRET} sk-{SECRET} ?a=1&token={SECRET} and prompt: {PROMPT}\n")
    with live(f"say={tmp_path}/said", env=f'HF_TOKEN = "{SECRET}-known"\nNCCL_DEBUG = "INFO"') as stage:
        pids = serving(stage)
        for number in (1, 2):
            os.kill(stage.pids()["api"], signal.SIGKILL)
            stage.wait(partial(started, stage, number + 1), "it is started again")
            stage.served(number + 1)
        stage.wait(lambda: stage.bundles and stage.bundles[0].incident.again, "the second death is counted")
        (bundle,) = stage.bundles
        about = bundle.incident
        assert (about.kind, about.cause, len(about.again)) == ("death", "engine-died", 1)
        assert len(stage.ledger()["deaths"]) == 2
        assert "ERROR token=(hidden)" in stage.text("lines.log") and "config.toml" in bundle.files
        assert 'HF_TOKEN = "(hidden)"' in stage.text("config.toml")
        listed = command(stage, "incidents")
        assert about.id in listed and "engine-died" in listed
        story = command(stage, "incidents", about.id[:20])
        assert "remedy    It is restarted" in story and "again     1 times" in story and "lines.log" in story
        shown = json.loads(command(stage, "incidents", "--json"))["incidents"][0]
        assert (shown["id"], shown["count"], shown["files"]) == (about.id, 2, bundle.files)
        told = command(stage, "report", "--output", str(tmp_path / "report.tar.gz"))
        assert "no prompts and no keys" in told
        with tarfile.open(tmp_path / "report.tar.gz") as tar:
            members = {m.name.partition("/")[2]: read_member(tar, m) for m in tar.getmembers()}
        assert {"README.txt", "versions.json", "status.json", "config.toml", "incident/incident.json"} <= set(members)
        assert (tmp_path / "report.tar.gz").stat().st_mode & 0o777 == 0o600
        kept = [*((stage.state / "incidents").rglob("*.*")), stage.errors, stage.run / "supervisor/fleet.json"]
        texts = {**members, **{str(path): path.read_text() for path in kept if path.is_file()}, "told": story + listed}
        for name, text in texts.items():
            assert SECRET not in text and PROMPT not in text, name
        assert pids


def started(stage: LiveStage, count: int) -> bool:
    return stage.starts() >= count


def read_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = tar.extractfile(member)
    assert file is not None
    return file.read().decode()


def command(stage: LiveStage, *arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "appliance", "--config", str(stage.config), *arguments],
        env=stage.environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_judged_hang_costs_a_death_and_its_cause_stands_everywhere(
    ranks: LiveStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way in that a judge takes: in this process, on the same stage."""
    for name, value in ranks.environment.items():
        monkeypatch.setenv(name, value)
    judged = Judged("hung", "hang-collective", "restart", "no byte for 94s", ("3 calls wait", "GPU 0 spins"))
    listener = Listener(ranks.home / "journal")
    told: list[dict[str, str]] = []

    async def until(condition: Callable[[], bool], what: str) -> None:
        def heard() -> bool:
            told.extend(listener.entries())
            return condition()

        await asyncio.to_thread(wait_until, heard, 30.0, what, 0.05)

    async def judge() -> None:
        daemon = Daemon(str(ranks.config), Places(str(ranks.run), str(ranks.state)), listener.journal)
        stop = asyncio.Event()
        running = asyncio.ensure_future(daemon.run(stop))
        await until(lambda: ranks.fleet().get("state") == "serving", "it serves")
        assert daemon.recoveries.recover("chat", judged)
        assert not daemon.recoveries.recover("chat", judged)  # it is under way
        await until(lambda: ranks.starts() == 2 and ranks.fleet().get("state") == "serving", "it serves again")
        stop.set()
        await running

    asyncio.run(judge())
    told += listener.entries()
    listener.close()
    (bundle,) = ranks.bundles
    about = bundle.incident
    assert (about.kind, about.verdict, about.cause, about.action) == ("kill", "hung", "hang-collective", "restart")
    assert about.evidence == judged.evidence and about.reason == "no byte for 94s"
    assert "waits_for_its_peers" in ranks.text("stacks.txt")
    assert [death["cause"] for death in ranks.ledger()["deaths"]] == ["hang-collective"]
    entries = [entry for entry in told if entry.get("LLM_ENGINE") == "chat"]
    story = [entry for entry in entries if entry.get("LLM_INCIDENT") == about.id]
    events = [entry["LLM_EVENT"] for entry in story if entry["SYSLOG_IDENTIFIER"] == "llm-supervisor"]
    assert events[0] == "engine-ended"  # before anything follows from it; the bundle is written beside the loop
    assert events.index("engine-restarting") < events.index("engine-starting") < events.index("engine-serving")
    assert set(events) >= {"incident-kept", "engine-reclaimed"}
    assert len(events) <= 8  # once each, whatever the number of cycles
    assert all(entry["LLM_CAUSE"] == "hang-collective" for entry in story if entry["LLM_EVENT"] == "engine-ended")
    assert all(entry.get("LLM_EVENT") in EVENTS and entry.get("MESSAGE_ID") for entry in entries)


@dataclass(frozen=True)
class Judged:
    verdict: str
    cause: str
    action: str
    reason: str
    evidence: tuple[str, ...]
