"""Ends in a timeline: what is concluded of them, when, and what follows from several."""

from __future__ import annotations

import pytest

from appliance.cli.replay import replayed
from appliance.config.model import Restart, Supervisor
from appliance.policy.judgement import Judgement
from appliance.wire import timeline
from tests.support.timelines import IDLE_W, SPIN_W, Scene, starting, stuck

CORE = "(EngineCore pid=100) ERROR 11-29 11:49:17 [c.py:1] "
GONE = "(APIServer pid=99) WARNING 11-29 11:49:17 [c.py:1] [shutdown] MPClient: engine core exited unexpectedly; x"
FATAL = f"{CORE}EngineCore encountered a fatal error."
WORKER = f"{CORE}Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor."
EXITED = "llm-engine@default.service: Main process exited, code=exited, status={}/n/a"
FAILED = "llm-engine@default.service: Failed with result 'exit-code'."
ILLEGAL = f"{CORE}torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


def changes(scene: Scene, budget: int = 5) -> list[Judgement]:
    recording = timeline.read(scene.text(), "story")
    limits = Supervisor(restart=Restart(budget=budget))
    return list(replayed(recording.samples, recording.setting, limits))


def last(scene: Scene) -> tuple[str, str, str]:
    found = changes(scene)[-1]
    assert found.reason
    return found.verdict, found.cause, found.action


def ended(scene: Scene, status: int = 71, *lines: str) -> Scene:
    """The unit ends, with last words; then nothing of it is there any more."""
    for line in lines:
        scene.say(line)
    scene.scrape = {"error": "connection refused"}
    scene.processes.clear()
    scene.rest()
    scene.say(EXITED.format(status), src="systemd")
    scene.say(FAILED, src="systemd")
    scene.run(20)
    return scene


def serving(tp: int = 2) -> Scene:
    scene = Scene(tp)
    scene.serve(60)
    return scene


def test_an_engine_that_dies_and_exits_with_zero_has_failed() -> None:
    scene = serving()
    scene.say(GONE)
    scene.put("proc", pid=99, name="VLLM::APIServer", event="exit", exit_code=0)
    scene.processes.clear()
    scene.rest()
    scene.run(20)
    assert last(scene) == ("failed", "engine-died", "restart")


def test_systemd_alone_tells_of_an_end() -> None:
    scene = serving()
    scene.say("llm-engine@default.service: Deactivated successfully.", src="systemd")
    scene.run(20)
    assert last(scene) == ("failed", "engine-died", "restart")


def test_the_log_alone_tells_of_an_end() -> None:
    scene = serving()
    scene.say(FATAL)
    scene.say(f"{CORE}KeyError: 'x'")
    assert last(scene) == ("failed", "engine-exception", "restart")
    assert changes(scene)[-1].t == scene.t + 5.0


def test_a_request_that_was_in_flight_at_an_earlier_crash_is_the_cause() -> None:
    """The gateway's ledger tells; of a run that begins afterwards it has told nothing yet."""
    scene = serving()
    scene.put("ledger", inflight=1, suspects=1)
    ended(scene, 71, FATAL, f"{CORE}KeyError: 'x'")
    assert last(scene) == ("failed", "poison-request", "restart")
    scene.put("state_file", path="state.json", value='{"phase": "serving", "start": "again"}')
    ended(scene, 71, WORKER)
    assert last(scene)[1] == "worker-died"


def test_a_signal_to_stop_is_no_death() -> None:
    scene = serving()
    scene.say("(APIServer pid=99) INFO 11-29 12:16:22 [launcher.py:254] [shutdown] API server: shutdown triggered")
    scene.freeze()
    scene.run(10)
    scene.put("proc", pid=99, name="VLLM::APIServer", event="exit", exit_code=0)
    assert [(found.verdict, found.cause) for found in changes(scene)] == [("ok", "idle"), ("ok", "draining")]


def test_a_stop_that_was_asked_for_is_no_failure() -> None:
    scene = serving()
    scene.say("Stopping llm-engine@default.service - vLLM engine default...", src="systemd")
    scene.run(10)
    assert {judgement.verdict for judgement in changes(ended(scene, 0))} == {"ok"}


def test_kernel_lines_that_come_late_are_waited_for() -> None:
    scene = serving()
    begin = scene.t
    ended(scene, 71, WORKER)
    oom = "Out of memory: Killed process 201 (VLLM::Worker_TP) total-vm:1kB, anon-rss:1kB, file-rss:0kB"
    scene.lines.append({"t": begin + 3.0, "src": "kernel", "msg": oom})
    scene.lines[1:] = sorted(scene.lines[1:], key=lambda line: float(line["t"]))
    found = changes(scene)
    assert ("failed", "worker-died") not in {(judgement.verdict, judgement.cause) for judgement in found}
    assert (found[-1].verdict, found[-1].cause, found[-1].action) == ("failed", "host-oom-global", "wait-retry")


@pytest.mark.parametrize("pci", ["0000:01:00", "0000:7f:00"])
def test_a_gpu_that_fell_off_the_bus_asks_for_a_reboot_if_it_is_ours(pci: str) -> None:
    scene = serving()
    scene.put("kernel", msg=f"NVRM: Xid (PCI:{pci}): 79, pid=201, name=VLLM::Worker, GPU has fallen off the bus.")
    ours = pci == "0000:01:00"
    cause, action = ("gpu-lost", "reboot") if ours else ("cuda-fault", "restart")
    assert last(ended(scene, 71, ILLEGAL, FATAL)) == ("failed", cause, action)


def test_a_faulty_gpu_is_the_cause_behind_a_silence() -> None:
    scene = stuck(2, seconds=20)
    scene.put("kernel", msg="NVRM: Xid (PCI:0000:01:00): 48, pid=200, name=VLLM::Worker, DBE")
    scene.run(200)
    found = changes(scene)
    assert (found[-1].verdict, found[-1].cause, found[-1].action) == ("failed", "gpu-ecc", "fix-host")
    assert "hung" not in {judgement.verdict for judgement in found}


def test_an_engine_that_has_moved_since_is_not_ended_for_an_old_report() -> None:
    scene = serving()
    scene.put("kernel", msg="NVRM: Xid (PCI:0000:01:00): 62, pid=200, name=VLLM::Worker, PMU halt")
    scene.serve(120)
    scene.freeze()
    scene.gpus(util=0, power=IDLE_W, mem=0)
    scene.run(110)
    scene.serve(20)
    assert {judgement.action for judgement in changes(scene)} == {"none", "evidence"}


def test_a_serving_engine_is_left_alone_whatever_is_told_of_its_driver() -> None:
    scene = serving()
    for more in ({"error": "Driver/library version mismatch", "code": 18}, {"error": "no answer within 3 s"}):
        scene.nvml = False
        for _ in range(10):
            scene.put("nvml", gpus=[], **more)
            scene.run(2)
    scene.put("kernel", msg="NVRM: Xid (PCI:0000:01:00): 62, pid=200, name=VLLM::Worker, PMU halt")
    scene.run(20)
    found = changes(scene)
    assert {judgement.verdict for judgement in found} == {"ok"}
    assert {judgement.action for judgement in found} == {"none"}
    assert [judgement.cause for judgement in found] == [
        "idle", "driver-mismatch", "idle", "driver-unresponsive", "gpu-hardware-suspect",
    ]  # fmt: skip


def test_a_start_that_cannot_succeed_is_held() -> None:
    scene = starting()
    scene.run(10)
    usage = "vllm: error: unrecognized arguments: --swap-space 4"
    assert last(ended(scene, 78, usage)) == ("failed", "config-error", "hold")


def test_the_next_run_begins_anew() -> None:
    scene = ended(serving(), 71, GONE)
    scene.say("Starting llm-engine@default.service - vLLM engine default...", src="systemd")
    scene.run(10)
    found = changes(scene)
    assert (found[-1].verdict, found[-1].cause) == ("ok", "starting")


def test_an_end_that_is_overtaken_by_the_next_run_is_told() -> None:
    """The unit is started again within the time in which the kernel's lines are waited for."""
    scene = serving()
    scene.say(GONE)
    scene.say(EXITED.format(71), src="systemd")
    scene.skip(1)
    scene.say("Starting llm-engine@default.service - vLLM engine default...", src="systemd")
    scene.scrape = {"error": "connection refused"}
    scene.run(20)
    found = [(judgement.verdict, judgement.cause, judgement.action) for judgement in changes(scene)]
    assert ("failed", "engine-died", "restart") in found
    assert found[-1][:2] == ("ok", "starting")


def test_the_budget_ends_in_a_hold() -> None:
    scene = Scene(1)
    for _ in range(4):
        scene.say("Starting llm-engine@default.service - vLLM engine default...", src="systemd")
        scene.say("(APIServer pid=99) INFO:     Application startup complete.")
        scene.scrape = {"http": 200}
        scene.serve(20)
        ended(scene, 71, GONE)
    found = changes(scene, budget=3)
    ends = [(judgement.verdict, judgement.action) for judgement in found if judgement.verdict in ("failed", "held")]
    assert ends == [("failed", "restart")] * 3 + [("held", "hold")]


def test_a_hang_after_a_hang_at_the_meeting_of_the_ranks_asks_for_a_reboot() -> None:
    scene = stuck(2, seconds=120)
    ended(scene, 71)
    scene.say("Starting llm-engine@default.service - vLLM engine default...", src="systemd")
    for line in starting().lines:
        if line.get("src") == "journal":
            scene.say(line["msg"])
    scene.lines.pop()  # the line after which the ranks have met
    scene.gpus(util=100, power=SPIN_W, mem=0)
    scene.run(200)
    found = [judgement for judgement in changes(scene) if judgement.verdict == "hung"]
    assert [(judgement.cause, judgement.action) for judgement in found] == [
        ("hang-collective", "restart"), ("hang-init", "reboot"),
    ]  # fmt: skip


def test_hangs_within_an_hour_climb_down_the_ladder() -> None:
    scene = Scene(2)
    for _ in range(4):
        scene.say("Starting llm-engine@default.service - vLLM engine default...", src="systemd")
        scene.say("(APIServer pid=99) INFO:     Application startup complete.")
        scene.values["vllm:request_success_total"] = 1.0
        scene.scrape = {"http": 200}
        scene.serve(20)
        scene.freeze()
        scene.gpus(util=100, power=SPIN_W, mem=0)
        scene.run(100)
        ended(scene, 71)
    found = [judgement for judgement in changes(scene) if judgement.verdict == "hung"]
    assert [judgement.action for judgement in found] == ["restart", "restart-changed", "restart-changed", "hold"]


def test_the_end_of_a_hung_engine_is_the_hangs() -> None:
    scene = stuck(2, seconds=120)
    timeout = f"{CORE}TimeoutError: RPC call to sample_tokens timed out."
    found = changes(ended(scene, 71, timeout))
    assert (found[-1].verdict, found[-1].cause) == ("hung", "hang-collective")


@pytest.mark.parametrize(
    ("state", "ppid", "cause", "action"),
    [("D", 98, "driver-unresponsive", "reboot"), ("S", 1, "gpu-memory-leaked", "wait-retry")],
)
def test_what_is_left_of_an_ended_engine_is_named(state: str, ppid: int, cause: str, action: str) -> None:
    scene = serving()
    ended(scene, 71, GONE)
    scene.processes[201] = {"name": "VLLM::Worker_TP1", "state": state, "ppid": ppid}
    scene.run(60)
    assert last(scene) == ("failed", cause, action)


def test_another_programs_process_is_no_witness_and_no_end() -> None:
    """It lies beside the engine's in the recording, in a control group of its own, on the same GPU."""
    scene = stuck(1, seconds=0)
    scene.processes[4711] = {"name": "vllm", "state": "T", "ppid": 1, "cgroup": "/llm-engine@other.service"}
    scene.cards[0]["pids"] = [scene.core, 4711]
    scene.run(200)
    scene.put("proc", pid=4711, name="vllm", event="exit", exit_code=1, cgroup="/llm-engine@other.service")
    scene.put("kernel", msg="NVRM: Xid (PCI:0000:01:00): 31, pid=4711, name=python3, MMU Fault")
    assert last(scene) == ("suspect", "slow", "evidence")


def test_an_unclean_boot_is_told_from_a_shutdown() -> None:
    for words, verdict in ((None, ("failed", "unclean-reset", "restart")), ("Reached target Reboot.", None)):
        scene = serving()
        scene.put("systemd", msg="Started something", boot="a")
        if words:
            scene.put("systemd", msg=words, boot="a")
        scene.skip(90)
        scene.put("kernel", msg="Linux version 6.1", boot="b")
        scene.scrape = {"error": "connection refused"}
        scene.rest()
        scene.run(20)
        found = [(judgement.verdict, judgement.cause, judgement.action) for judgement in changes(scene)]
        assert (found[-1] == verdict) if verdict else all(each[0] == "ok" for each in found)


def test_removed_shared_memory_is_the_cause() -> None:
    scene = serving()
    scene.put("fs", path="/dev/shm/psm_1234", removed=True)
    died = WORKER.replace("-9", "-7")
    assert last(ended(scene, 71, died)) == ("failed", "shm-removed", "wait-retry")


def test_an_oom_kill_that_only_the_control_group_counted() -> None:
    scene = serving()
    scene.put("cgroup", **{"memory.events": {"oom_kill": 0}})
    scene.run(2)
    scene.put("cgroup", **{"memory.events": {"oom_kill": 1}})
    scene.gpus(util=0, power=IDLE_W, mem=0)
    assert last(ended(scene, 71, WORKER)) == ("failed", "host-oom-cgroup", "wait-retry")


def test_systemd_may_tell_first_of_an_end_that_was_asked_for() -> None:
    """The launcher's file is looked at every two seconds; systemd's lines come at once."""
    scene = serving()
    scene.say("llm-engine@default.service: Deactivated successfully.", src="systemd")
    scene.skip(1)
    for phase in ("stopping", "exited"):
        state(scene, phase, "")
    exits(scene)
    scene.scrape = {"error": "connection refused"}
    scene.rest()
    scene.run(20)
    found = [(each.verdict, each.cause) for each in changes(scene)]
    assert found == [("ok", "idle"), ("suspect", "engine-died"), ("ok", "draining")]


def state(scene: Scene, phase: str, start: str) -> None:
    scene.put("state_file", path="state.json", value=f'{{"phase": "{phase}", "start": "{start}"}}')


def exits(scene: Scene) -> None:
    """A look finds that the processes which it found last time are gone."""
    for pid, seen in scene.processes.items():
        scene.put("proc", pid=pid, ppid=98, name=seen["name"], event="exit")
    scene.processes.clear()


def renewed(told: str, *, before: str = "", first: str = "starting") -> Scene:
    """An engine is restarted between two looks: the next one finds another run, and only then the last one's ends."""
    scene = serving()
    state(scene, "serving", "one")
    scene.serve(20)
    if before:
        state(scene, before, "one")
        scene.run(2)
    if told == "systemd":
        scene.say("Starting llm-engine@default.service - vLLM engine default...", src="systemd")
        scene.skip(1)
    else:
        state(scene, first, "two")
    exits(scene)
    scene.rest()
    scene.process(300, name="VLLM::APIServer", state="S")
    scene.process(301, name="VLLM::EngineCore", state="S", ppid=300)
    scene.scrape = {"error": "connection refused"}
    return scene


@pytest.mark.parametrize("told", ["state file", "systemd"])
@pytest.mark.parametrize("before", ["", "stopping"])
def test_an_end_that_is_seen_after_the_next_run_began_is_not_that_runs(told: str, before: str) -> None:
    scene = renewed(told, before=before)
    scene.run(20)
    state(scene, "serving", "two")
    scene.scrape = {"http": 200}
    scene.serve(20)
    assert {(found.verdict, found.action) for found in changes(scene)} == {("ok", "none")}


@pytest.mark.parametrize("pid", [300, 301])
@pytest.mark.parametrize("told", ["state file", "systemd"])
@pytest.mark.parametrize("lived", [2, 20])
def test_a_death_of_the_run_that_began_is_seen(told: str, pid: int, lived: float) -> None:
    scene = renewed(told)
    scene.run(lived)
    seen = scene.processes.pop(pid)
    scene.put("proc", pid=pid, ppid=98, name=seen["name"], event="exit")
    scene.run(20)
    assert last(scene) == ("failed", "start-failed", "restart")


def test_a_hang_is_seen_of_a_run_that_serves_before_its_predecessors_end_is_settled() -> None:
    scene = renewed("state file")
    scene.run(2)
    state(scene, "serving", "two")
    scene.scrape = {"http": 200}
    scene.serve(20)
    scene.freeze()
    scene.gpus(util=100, power=SPIN_W, mem=0)
    scene.run(200)
    assert last(scene) == ("hung", "hang-collective", "restart")
