"""The stories that a hang detector is held to: each a function that makes a `Scene`.

`HANGS` says what is to be found and how long after the first silent moment, `trapstories.TRAPS` what an engine that is
not hung is called meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from appliance.cli.replay import replayed
from appliance.config.model import Supervisor
from appliance.policy.judgement import Judgement
from appliance.samples import Setting
from appliance.wire import timeline
from appliance.wire.timeline import Recorded
from tests.support.timelines import (
    BUSY_MEM,
    BUSY_W,
    IDLE_W,
    SHM_WAIT,
    SPIN_W,
    Scene,
    asked_first,
    livelock_with_grammar,
    start_lines,
    starting,
    stuck,
)
from tests.support.trapstories import TRAPS, stopped_client

Story = Callable[[], Scene]
CONFIRM, IDLE_GPU, BLIND, LONG, COMPILE, GRAMMAR = 90.0, 120.0, 240.0, 600.0, 900.0, 180.0


class Hang(NamedTuple):
    """A story that ends in a hang: its cause, and the limit that finds it."""

    story: Story
    cause: str
    after_s: float


def rank_absent() -> Scene:
    scene = stuck(4, seconds=0)
    scene.gpus(util=0, power=IDLE_W, mem=0, only=2)
    scene.run(200)
    return scene


def livelock() -> Scene:
    scene = stuck(util=1, power=IDLE_W, seconds=0)
    scene.process(scene.core, state="R", cpu_pct=100.0)
    scene.run(200)
    return scene


def ranks_never_meet() -> Scene:
    scene = Scene(2, gateway=False)
    scene.scrape = {"error": "connection refused"}
    scene.gpus(util=100, power=SPIN_W, mem=0)
    scene.run(10)
    for line in start_lines():
        scene.say(line)
    for _ in range(5):
        scene.run(60)
        scene.say(f"(EngineCore pid=100) INFO 11-29 11:50:00 [shm_broadcast.py:1] {SHM_WAIT}")
    return scene


def first_step_after_idle() -> Scene:
    scene = Scene(2)
    scene.serve(60)
    scene.idle(600)
    scene.inflight, scene.silent_since = 3, scene.t
    scene.gpus(util=100, power=SPIN_W, mem=0)
    scene.run(200)
    return scene


def unanswered_canary() -> Scene:
    """Nobody calls; our own request is out, and hangs in the engine's first step after the rest."""
    scene = Scene(2, gateway=False)
    scene.serve(60)
    scene.idle(310)
    scene.silent_since = scene.t
    scene.put("canary", outstanding=True)
    scene.gpus(util=100, power=SPIN_W, mem=0)
    scene.run(200)
    return scene


def learnt_alone() -> Scene:
    """No baseline is given: it is learnt from the engine's own work and rest."""
    scene = Scene(2, learned={})
    scene.idle(400)
    scene.serve(200)
    scene.freeze()
    scene.gpus(util=100, power=SPIN_W, mem=0)
    scene.run(200)
    return scene


def learnt_around_a_sleep() -> Scene:
    """Requests wait for a sleeping engine: what its cards show then is not what work looks like."""
    scene = Scene(2, learned={})
    scene.idle(400)
    scene.serve(200)
    scene.rest()
    scene.values['vllm:engine_sleep_state{sleep_state="awake"}'] = 0.0
    scene.inflight, scene.silent_since = 2, scene.t
    scene.gpus(util=40, power=IDLE_W, mem=0)
    scene.run(1600)
    scene.values['vllm:engine_sleep_state{sleep_state="awake"}'] = 1.0
    scene.serve(20)
    scene.freeze()
    scene.gpus(util=100, power=SPIN_W, mem=0)
    scene.run(200)
    return scene


def stopped_worker() -> Scene:
    scene = Scene(2, gpus=0, nvml=False)
    scene.serve(120)
    scene.freeze()
    scene.process(scene.workers[1], state="T", cpu_pct=0.0)
    scene.run(200)
    return scene


def notices() -> Scene:
    """vLLM notes twice that it waits, and the GPUs show half of their power: two witnesses, at the second notice."""
    scene = stuck(2, power=180, mem=10, seconds=0)
    scene.process(scene.workers[1], state="D")
    for _ in range(4):
        scene.run(60)
        scene.say(f"(EngineCore pid=100) INFO 11-29 11:50:00 [shm_broadcast.py:1] {SHM_WAIT}")
    return scene


def clients_give_up() -> Scene:
    """Clients end their requests after 40 s and send them again: the silence is one."""
    scene = stuck(2, seconds=0)
    for _ in range(5):
        scene.run(40)
        scene.inflight = 0
        scene.run(4)
        scene.inflight = 2
    return scene


def first_step_beside_a_stopped_client() -> Scene:
    """One answer is not read by its client; the next request hangs in its first step."""
    scene = stopped_client()
    scene.inflight, scene.silent_since = 2, scene.t
    scene.run(300)
    return scene


def without_gateway() -> Scene:
    return stuck(2, gateway=False, running=2)


def gateway_alone() -> Scene:
    """The API process is stuck as well: no scrape is answered, the gateway hears nothing."""
    scene = stuck(2, seconds=0)
    scene.scrape = {"error": "timeout after 5 s"}
    scene.run(200)
    return scene


def runaway_step() -> Scene:
    """A kernel that works at full power for ever; no prompt explains it."""
    return stuck(util=100, power=BUSY_W, mem=BUSY_MEM, seconds=700)


def no_prompt_explains() -> Scene:
    """Work at full power, but the gateway knows of no unstarted prompt: only decode steps are open."""
    scene = stuck(util=100, power=BUSY_W, mem=BUSY_MEM, seconds=0)
    scene.ledger_more = {"largest_prompt_tokens": 0}
    scene.run(300)
    return scene


def endless_compile() -> Scene:
    scene = stuck(2, util=0, power=IDLE_W, seconds=0)
    scene.process(900, name="cicc", state="R", cpu_pct=100.0)
    scene.run(1000)
    return scene


def endless_grammar() -> Scene:
    scene = livelock_with_grammar()
    scene.run(200)
    return scene


def first_request() -> Scene:
    """The first request since the start hangs: all limits are three times as long."""
    scene = asked_first()
    scene.gpus(util=100, power=SPIN_W, mem=0)
    scene.run(320)
    return scene


def silent_start() -> Scene:
    scene = starting()
    scene.say("(EngineCore pid=100) INFO 11-29 11:49:30 [x.py:1] Starting to load model m...")
    scene.run(1900)
    return scene


def endless_start() -> Scene:
    """Always a sign of life, never ready."""
    scene = starting(interval=10.0)
    for number in range(62):
        scene.say(f"(EngineCore pid=100) INFO 11-29 11:49:30 [x.py:1] still at it {number}")
        scene.run(60)
    return scene


HANGS: dict[str, Hang] = {
    "collective": Hang(lambda: stuck(2), "hang-collective", CONFIRM),
    "collective by memory alone": Hang(lambda: stuck(2, power=None), "hang-collective", CONFIRM),
    "rank absent": Hang(rank_absent, "hang-rank-absent", CONFIRM),
    "scheduler": Hang(lambda: stuck(util=0, power=IDLE_W, running=0, waiting=5), "hang-scheduler", IDLE_GPU),
    "livelock": Hang(livelock, "hang-livelock", IDLE_GPU),
    "ranks never meet": Hang(ranks_never_meet, "hang-init", 180.0),
    "first step after idle": Hang(first_step_after_idle, "hang-collective", CONFIRM),
    "one kernel": Hang(lambda: stuck(), "hang-kernel", CONFIRM),
    "one kernel at medium power": Hang(lambda: stuck(power=180, mem=10), "hang-kernel", BLIND),
    "canary unanswered": Hang(unanswered_canary, "hang-collective", CONFIRM),
    "baseline learnt": Hang(learnt_alone, "hang-collective", CONFIRM),
    "baseline learnt, and a sleep": Hang(learnt_around_a_sleep, "hang-collective", CONFIRM),
    "worker stopped, no GPU": Hang(stopped_worker, "hang-rank-absent", CONFIRM),
    "notices and a worker that waits": Hang(notices, "hang-rank-absent", IDLE_GPU),
    "clients give up": Hang(clients_give_up, "hang-collective", CONFIRM + 2 * 4.0),
    "beside a stopped client": Hang(first_step_beside_a_stopped_client, "hang-scheduler", IDLE_GPU),
    "without a gateway": Hang(without_gateway, "hang-collective", CONFIRM),
    "API process stuck too": Hang(gateway_alone, "hang-collective", CONFIRM),
    "no NVML": Hang(lambda: stuck(2, nvml=False), "hang-collective", BLIND),
    "MIG: nothing told": Hang(lambda: stuck(util=None, power=None, mem=None), "hang-kernel", BLIND),
    "GB10: no power, no memory": Hang(lambda: stuck(power=None, mem=None), "hang-kernel", BLIND),
    "runaway step": Hang(runaway_step, "hang-kernel", LONG),
    "no prompt explains the step": Hang(no_prompt_explains, "hang-kernel", BLIND),
    "endless compile": Hang(endless_compile, "hang-scheduler", COMPILE),
    "endless grammar": Hang(endless_grammar, "hang-livelock", GRAMMAR),
    "first request": Hang(first_request, "hang-collective", 3 * CONFIRM),
    "silent start": Hang(silent_start, "hang-startup", 2 * COMPILE),
    "endless start": Hang(endless_start, "hang-startup", 3600.0),
}  # fmt: skip


@cache
def told(name: str) -> tuple[Scene, Setting, tuple[Recorded, ...]]:
    """A story by its name: the scene at its end, and its recording read back; made once."""
    scene = (HANGS[name].story if name in HANGS else TRAPS[name].story)()
    recording = timeline.read(scene.text(), name)
    return scene, recording.setting, tuple(recording.samples)


def judged(name: str, *leave_out: type) -> Iterator[Judgement]:
    """Every change in a story, told without the samples of some types."""
    _, setting, samples = told(name)
    left = (recorded for recorded in samples if not isinstance(recorded.sample, leave_out))
    return replayed(left, setting, Supervisor())
