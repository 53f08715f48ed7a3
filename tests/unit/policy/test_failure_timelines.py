"""The catalogue of failures, each as a recording: what the log, the kernel, systemd and the GPUs say in raw lines.

The table is the classifier's own; here its evidence goes the long way: written as lines, read, found, folded, judged.
"""

from __future__ import annotations

import pytest

from appliance.cli.replay import replayed
from appliance.config.model import Supervisor
from appliance.engine.verdict import Ending, verdict_of
from appliance.policy.aftermath import ACTIONS
from appliance.policy.failure import EXITED, KILLED, Exit
from appliance.policy.judgement import Judgement
from appliance.quantity import UNKNOWN
from appliance.samples import Nvml, OomKill, Xid
from appliance.wire import timeline, timelinewrite
from appliance.wire.vllmlog import Reader
from tests.support.timelines import Scene, start_lines
from tests.unit.policy.test_failure_catalogue import CONFIG, CORPUS, FLIGHT, GPU, HOST, START, UNIT, Case

CASES = [*START, *FLIGHT, *GPU, *HOST, *CONFIG]
# The ladder answers these at once with a change; what the classifier alone would do is another test's.
CHANGED = {"no room for any KV block", "a corrupt compile cache"}
# Nothing of a run but its end is known, so its phase is not either: it counts as a start.
UNKNOWN_PHASE = {"systemd-oomd", "systemd saw the kill"}


def recording(case: Case) -> list[bytes]:
    """The recording of a case: a start or some service, the evidence, the last words, the end."""
    owner = case.evidence.owner.gpus
    pci = [] if owner is UNKNOWN else sorted(owner)
    scene = Scene(2, gpus=len(pci), gateway=False, nvml=False)
    scene.lines[0]["config"].update(engine_gpu_pci=pci, learned={}, engine="chat")
    if owner is UNKNOWN:
        del scene.lines[0]["config"]["gpus"]
    scene.put("systemd", msg="Starting llm-engine@chat.service - vLLM engine chat...", boot="a")
    for line in start_lines():
        scene.say(line, unit=UNIT)
    scene.processes = {1: {"name": "VLLM::APIServer"}, 7: {"name": "VLLM::EngineCore"}, 8: {"name": "VLLM::Worker_TP1"}}
    scene.put("cgroup", **{"memory.events": {"oom_kill": 0}})
    if case.served:
        scene.say("(APIServer pid=1) INFO:     Application startup complete.", unit=UNIT)
        scene.serve(20)
    _evidence(scene, case)
    raw = (CORPUS / f"{case.log}.txt").read_text().splitlines() if isinstance(case.log, str) else case.log
    for line in raw:
        scene.say(line, unit=UNIT)
    scene.processes.clear()
    scene.metrics = False
    _end(scene, case)
    for _ in range(25):
        for process in case.evidence.unkillable:
            scene.put("proc", pid=process.pid, name=process.name, state=process.state)
        scene.put("health", error="connection refused")
        scene.skip(2)
    return scene.text()


def _evidence(scene: Scene, case: Case) -> None:
    """What was found around the end, as the raw samples that it was found in."""
    evidence = case.evidence
    for xid in evidence.xids:
        scene.put("kernel", msg=_kernel_line(xid))
    for kill in evidence.oom_kills:
        src, msg = _kill_line(kill)
        scene.put(src, msg=msg)
    for path in evidence.shm_removed:
        scene.put("fs", path=path, removed=True)
    if evidence.oom_kills_counted is not UNKNOWN:
        scene.put("cgroup", **{"memory.events": {"oom_kill": evidence.oom_kills_counted}})
    if evidence.gpus:
        record = timelinewrite.record_of(Nvml(t=scene.t, gpus=tuple(evidence.gpus)))
        assert record is not None
        scene.lines.append(record)
    if evidence.nvml_code is not UNKNOWN:
        scene.put("nvml", error="an error", code=evidence.nvml_code)
    for _ in range(3 if evidence.nvml_silent else 0):
        scene.put("nvml", error="no answer within 3 s")
        scene.skip(10)
    if evidence.holders is not UNKNOWN:
        for holder in evidence.holders:
            unit = f"llm-engine@{holder.engine}.service" if holder.engine else "user.slice"
            scene.put("proc", pid=holder.pid, ppid=1 if holder.leftover else 2, name=holder.name, cgroup=f"/{unit}")
        pids = [holder.pid for holder in evidence.holders]
        scene.put("nvml", gpus=[{"pci": pci, "pids": pids} for pci in scene.lines[0]["config"]["engine_gpu_pci"]])


def _end(scene: Scene, case: Case) -> None:
    """The last samples of processes, and systemd's words."""
    if case.evidence.unclean_boot:
        scene.put("kernel", msg="Linux version 6.1", boot="b")
        return
    for process in case.evidence.exits:
        scene.put("proc", pid=process.pid, name=process.name, event="exit", exit_code=process.exit_code)
    if case.end is None and case.status is not None:
        code = case.status >> 8 if case.status >= 256 or not case.status else -case.status
        scene.put("proc", pid=1, name="VLLM::APIServer", event="exit", exit_code=code)
    end = case.end
    if end is None:
        reader = Reader()
        raw = (CORPUS / f"{case.log}.txt").read_text().splitlines() if isinstance(case.log, str) else case.log
        made = verdict_of(Ending(case.status, False, case.served), [reader.read(line) for line in raw])
        end = Exit("exit-code", EXITED, made.exit_status)
    if end.code:
        how = "killed" if end.code == KILLED else "exited"
        scene.say(f"{UNIT}: Main process exited, code={how}, status={end.status}/x", src="systemd", unit=UNIT)
    scene.say(f"{UNIT}: Failed with result '{end.result}'.", src="systemd", unit=UNIT)


def _kernel_line(xid: Xid) -> str:
    if xid.switch:
        return f"nvidia-nvswitch1: SXid (PCI:{xid.pci}.0): {xid.number}, {xid.detail}"
    if xid.recovery_action is not UNKNOWN:
        return f"NVRM: GPU recovery action changed from 0x0 (None) to 0x{xid.recovery_action:x} (x)"
    pid = "" if xid.pid is UNKNOWN else f", pid={xid.pid}"
    name = f", name={xid.process}" if xid.process else ""
    return f"NVRM: Xid (PCI:{xid.pci}): {xid.number}{pid}{name}, {xid.detail}"


def _kill_line(kill: OomKill) -> tuple[str, str]:
    if kill.unit:
        words = "systemd-oomd killed 3 process(es) in this unit." if kill.scope == "oomd" else ""
        return "systemd", f"{kill.unit}: {words or 'A process of this unit has been killed by the OOM killer.'}"
    head = "Memory cgroup out of memory" if kill.scope == "cgroup" else "Out of memory"
    return "kernel", f"{head}: Killed process {kill.pid} ({kill.process}) total-vm:1kB"


def last(case: Case) -> Judgement:
    read = timeline.read(recording(case), case.what)
    return list(replayed(read.samples, read.setting, Supervisor()))[-1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_a_recording_of_it_is_judged_as_the_classifier_does(case: Case) -> None:
    found = last(case)
    action = "restart-changed" if case.what in CHANGED else ACTIONS[case.remedy]
    assert (found.verdict, found.cause, found.action) == ("failed", case.cause, action)
    assert found.reason and found.evidence
