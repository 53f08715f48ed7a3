"""Processes are killed and stopped while streams run: a new request succeeds by itself. Holds are kept."""

from __future__ import annotations

import json

import pytest

from appliance.host.kernellog import BOOT_VARIABLE
from tests.support.machine import CHAT, Appliance
from tests.support.waiting import wait_until

pytestmark = pytest.mark.vllm
UNIT = "llm-engine@default.service"


@pytest.mark.parametrize("victim", ["API server", "EngineCore", pytest.param("Worker", marks=pytest.mark.full)])
def test_a_killed_engine_process(appliance: Appliance, victim: str) -> None:
    """The stream ends with an error (no half answer that looks whole), then a new request is answered."""
    appliance.wait_answer()
    before, deaths = appliance.engine("default"), _deaths(appliance)
    with appliance.streaming() as stream:
        pid = _pid(appliance, victim)
        appliance.box.sh(f"kill -KILL {pid}")
        end = stream.end(60)
        assert end["error"] is not None, end
    answer = appliance.wait_answer()
    assert "Paris" in answer["text"]
    after = appliance.wait_serving("default")
    assert after["start"] != before["start"]
    if victim == "EngineCore":  # vLLM starts again in the unit that runs
        assert (after["unit"], after["again"]) == (before["unit"], before["again"] + 1)
    assert pid not in appliance.processes(UNIT).values()
    wait_until(lambda: _deaths(appliance) > deaths, 20, "this death is in the journal, with its cause")


def _deaths(appliance: Appliance) -> int:
    """How many ends of engines the supervisor has told, each with a cause."""
    return appliance.journal("-q -o export LLM_EVENT=engine-ended").count("\nLLM_CAUSE=")


def _pid(appliance: Appliance, victim: str) -> int:
    """The pid, in the box, of one of vLLM's processes; the API server is the launcher's child."""
    found = appliance.processes(UNIT)
    if victim == "API server":
        return int(appliance.engine()["pid"])
    prefix = {"EngineCore": "VLLM::EngineCor", "Worker": "VLLM::Worker"}[victim]
    return next(pid for name, pid in found.items() if name.startswith(prefix))


def test_a_stopped_gateway_is_restarted_by_its_watchdog(appliance: Appliance) -> None:
    appliance.wait_answer()
    engine = appliance.engine("default")["start"]
    with appliance.short_watchdog():
        before = appliance.show("llm-gateway.service", "MainPID")["MainPID"]
        appliance.box.sh(f"kill -STOP {before}")

        def again() -> bool:
            now = appliance.show("llm-gateway.service", "MainPID", "ActiveState")
            return now["ActiveState"] == "active" and now["MainPID"] not in ("0", before)

        wait_until(again, 90, "the watchdog has restarted the gateway", pause=0.5)
        assert "Paris" in appliance.wait_answer(30)["text"]
    assert appliance.engine()["start"] == engine


def test_a_restart_with_evidence_tells_where_it_was_and_can_be_judged_again(appliance: Appliance) -> None:
    """The bundle holds the stacks of vLLM's processes and what was seen, also of systemd's words on the unit."""
    appliance.wait_serving("default")
    known = {one["id"] for one in json.loads(appliance.cli("incidents --json").out)["incidents"]}
    appliance.cli("restart default --evidence --wait", timeout=300)
    asked = [one for one in json.loads(appliance.cli("incidents --json").out)["incidents"] if one["kind"] == "asked"]
    (new,) = [one for one in asked if one["id"] not in known]  # a death before this may be put down only now
    bundle = f"/var/lib/llm-appliance/incidents/{new['id']}"
    assert "VLLM::EngineCor" in appliance.box.read(f"{bundle}/processes.txt")
    assert "Current thread" in appliance.box.read(f"{bundle}/stacks.txt")
    recorded = [json.loads(line) for line in appliance.box.read(f"{bundle}/timeline.jsonl").splitlines()]
    assert {"metrics", "health", "ledger", "proc", "cgroup", "state_file", "systemd"} <= {
        each.get("src") for each in recorded
    }
    assert "idle" in appliance.cli(f"replay {bundle}/timeline.jsonl").out
    told = appliance.cli(f"incidents {new['id']}").out
    assert "an operator had it restarted" in told and "stacks.txt" in told
    assert "incident/stacks.txt" in appliance.cli(f"report {new['id']} --output /tmp/report.tar.gz").out
    assert "Paris" in appliance.wait_answer(60)["text"]


def test_a_change_of_the_ladder_reaches_the_sandboxed_launcher_and_ends_with_a_restart(appliance: Appliance) -> None:
    """The supervisor's directory is hidden from engines; the unit's set-up hands the change in."""
    state = appliance.wait_serving("default")
    rung = {"v": 1, "digest": state["digest"], "runtime": state["runtime"], "gpus": state["gpus"], "env": {},
            "caches": "", "flags": {"max_num_seqs": 3}, "told": "max_num_seqs = 3"}  # fmt: skip
    file = "/var/lib/llm-appliance/supervisor/rungs/default.json"
    appliance.box.sh("systemctl stop llm-supervisor")  # the one writer of that file
    try:
        appliance.box.sh(f"mkdir -m 700 -p $(dirname {file}); echo '{json.dumps(rung)}' > {file}; chmod 600 {file}")
        appliance.box.sh(f"systemctl restart {UNIT}", timeout=240)
        changed = appliance.wait_serving("default")
        assert (changed["changed"], changed["flags"]["max_num_seqs"]) == ("max_num_seqs = 3", 3)
        assert "--max-num-seqs 3" in appliance.box.sh(f"tr '\\0' ' ' < /proc/{changed['pid']}/cmdline").out
        assert "it is started with: max_num_seqs = 3" in appliance.cli("check").out
    finally:
        appliance.box.sh(f"rm -rf $(dirname {file}); systemctl start llm-supervisor")
    appliance.cli("restart default", timeout=240)
    wait_until(lambda: appliance.engine().get("start") != changed["start"], 90, "another start")
    assert appliance.wait_serving("default")["changed"] == ""
    assert "Paris" in appliance.wait_answer(60)["text"]


def test_a_held_engine_stays_down_and_says_so(appliance: Appliance) -> None:
    """Held: the unit is stopped, the gateway says `engine_held`, systemd's net does not undo it; resumed: it serves."""
    appliance.cli("hold default", timeout=120)
    wait_until(lambda: appliance.show(UNIT, "ActiveState")["ActiveState"] == "inactive", 60, "the unit is stopped")
    body = f'\'{{"model": "{CHAT}", "messages": [{{"role": "user", "content": "hi"}}]}}\''

    def refused() -> bool:
        """The gateway reads what the supervisor has written twice a second."""
        status, out = appliance.curl("/v1/chat/completions", "-H 'Content-Type: application/json' -d", body)
        assert status == 503, out
        return "engine_held" in out

    wait_until(refused, 20, "the gateway says that it is held")
    assert appliance.cli("status", check=False).status == 1
    appliance.box.sh(f"systemctl start {UNIT}", check=False)
    assert appliance.show(UNIT, "ActiveState")["ActiveState"] == "inactive"
    appliance.cli("resume default", timeout=240)
    appliance.wait_serving("default")
    assert "Paris" in appliance.wait_answer(60)["text"]


def test_the_supervisor_sees_from_inside_its_sandbox(appliance: Appliance) -> None:
    """The journal is followed, nothing is missed, and a machine without a GPU lacks nothing."""
    appliance.wait_serving("default")
    group = appliance.show("llm-supervisor.service", "ControlGroup")["ControlGroup"]

    def followed() -> bool:
        names = appliance.box.sh(f"cat $(sed 's,.*,/proc/&/comm,' /sys/fs/cgroup{group}/cgroup.procs)", check=False)
        return "journalctl" in names.out.split()

    wait_until(followed, 30, "a journalctl of the supervisor's own", pause=1)
    main = appliance.show("llm-supervisor.service", "MainPID")["MainPID"]
    boot = json.loads(appliance.journal("-n 1 -o json"))["_BOOT_ID"]
    assert f"{BOOT_VARIABLE}={boot}" in appliance.box.read(f"/proc/{main}/environ").split("\0")
    assert appliance.journal("-q -o cat LLM_EVENT=telemetry-fault").strip() == ""
    told = json.loads(appliance.cli("status --json").out)
    assert (told["driver"], told["gpus"]) == (None, [])
    assert "GPU" not in appliance.cli("status").out
