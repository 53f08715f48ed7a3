"""The launcher with a standby: vLLM is forked from it where it is fit, and started as ever where it is not."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import names
from appliance.host.proc import read_process
from tests.support.enginestage import LIMIT, Stage, alive, ask, staged
from tests.support.waiting import wait_until

INSTEAD = "started without the standby"


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as made:
        yield made


def standby(stage: Stage) -> int:
    """The launcher's standby; 0 where there is none."""
    assert stage.process is not None
    for entry in Path("/proc").iterdir():
        found = read_process(int(entry.name)) if entry.name.isdigit() else None
        if found is not None and (found.parent, found.comm) == (stage.process.pid, names.STANDBY_PROCESS):
            return found.pid
    return 0


def asked(stage: Stage, verb: str) -> str:
    """What the launcher says to a request for evidence."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(LIMIT)
        line.connect(str(stage.directory / "launcher/evidence.sock"))
        line.sendall(json.dumps({"verb": verb}).encode() + b"\n")
        with line.makefile() as answer:
            return "\n".join(str(each.get("text", each.get("message"))) for each in map(json.loads, answer))


def test_vllm_is_forked_and_its_standby_is_none_of_its_processes(stage: Stage) -> None:
    stage.configure("tp=2", env=stage.import_modules())
    stage.start()
    stage.until("serving")
    pids, process = stage.pids(), read_process(stage.pids()["api"])
    assert process is not None and stage.process is not None
    assert (process.parent, process.comm) == (stage.process.pid, "vllm")
    own = standby(stage)
    told = asked(stage, "stacks")
    assert names.STANDBY_PROCESS not in told and all(f"pid {pid}" in told for pid in pids.values())
    assert "4 processes were aborted" in asked(stage, "abort")
    assert stage.ended() == 0
    assert not any(map(alive, [own, *pids.values()]))
    assert INSTEAD not in stage.output


def test_what_a_killed_vllm_leaves_is_ended_and_the_standby_with_its_launcher(stage: Stage) -> None:
    stage.configure("stubborn", env=stage.import_modules())
    stage.start()
    stage.until("serving")
    own, pids = standby(stage), stage.pids()
    assert alive(own)
    os.kill(pids["api"], signal.SIGKILL)
    assert stage.ended() == names.LAUNCHER_ENGINE_DIED
    assert stage.read("verdict.json")["signal"] == signal.SIGKILL
    assert not any(map(alive, [own, *pids.values()]))


@pytest.mark.slow
def test_the_next_run_in_the_unit_is_forked_from_the_same_standby(stage: Stage) -> None:
    count = stage.home / "imports"
    stage.configure(env=stage.import_modules(f"open({str(count)!r}, 'a').write('x')"))
    stage.start(word=LIMIT)
    before = stage.until("serving")
    own = standby(stage)
    os.kill(before["pid"], signal.SIGKILL)
    stage.until("exited")
    assert not alive(stage.pids()["core"]) and alive(own)
    assert ask(stage, {"verb": "again", "start": before["start"]})[1]["ok"]
    after = stage.until("serving")
    process = read_process(after["pid"])
    assert process is not None and stage.process is not None
    assert (process.parent, process.comm, after["again"]) == (stage.process.pid, "vllm", 1)
    assert (standby(stage), count.read_text()) == (own, "x")
    assert INSTEAD not in stage.output
    stage.process.terminate()
    assert stage.ended() == 0


def test_a_stop_during_the_imports_is_obeyed_at_once(stage: Stage) -> None:
    stage.configure(env=stage.import_modules("import time; time.sleep(60)"))
    stage.start()
    wait_until(lambda: standby(stage) and stage.read("state.json").get("message") == "importing vLLM", LIMIT, "imports")
    own = standby(stage)
    assert stage.process is not None
    stage.process.terminate()
    assert stage.process.wait(20) == names.LAUNCHER_STOPPED
    assert not alive(own) and stage.pids() == {}
    assert INSTEAD not in stage.output


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()", "threads"),
        ("import os; os.abort()", "it died before it was ready"),
    ],
)
def test_an_unfit_standby_costs_a_line(stage: Stage, body: str, fault: str) -> None:
    stage.configure(env=stage.import_modules(body))
    stage.start()
    stage.until("serving")
    (line,) = [line for line in stage.output.splitlines() if INSTEAD in line]
    assert fault in line
    assert standby(stage) == 0


def test_what_a_late_standby_took_is_part_of_the_start(stage: Stage) -> None:
    """It has the half of a start's time; vLLM needs more than the other half."""
    stage.configure("gap=0.03", env=stage.import_modules("import time; time.sleep(60)"))
    stage.start(start=3.0)
    assert stage.ended() == names.LAUNCHER_START_FAILED
    assert stage.read("verdict.json")["cause"] == "start-timeout"
    assert f"{INSTEAD}: it was not ready within 2 s" in stage.output


@pytest.mark.parametrize("wanted", ["true", "false"])
def test_a_runtime_without_its_python_starts_as_ever(stage: Stage, wanted: str) -> None:
    stage.configure(keys=f"standby = {wanted}")
    stage.start()
    stage.until("serving")
    assert (f"{INSTEAD}: it cannot be started" in stage.output) == (wanted == "true")
