"""What only looks like a hang: stories that no detector may take for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.support.timelines import (
    IDLE_W,
    JIT,
    SHM_WAIT,
    SPIN_W,
    Scene,
    asked_first,
    livelock_with_grammar,
    starting,
    stuck,
)


class Trap(NamedTuple):
    """A story that ends well: what the engine is called on the way, if it is called anything but idle."""

    story: Callable[[], Scene]
    cause: str = ""


def long_load() -> Scene:
    """Weights from a slow disk for half an hour, the log silent, bytes read; then graphs, with notices."""
    scene = starting()
    scene.say("(Worker_TP0 pid=200) INFO 11-29 11:49:30 [x.py:1] Starting to load model m...")
    for number in range(180):
        scene.put("cgroup", read_bytes=number * 400_000_000)
        scene.run(10)
    scene.say(f"(EngineCore pid=100) INFO 11-29 11:50:00 [shm_broadcast.py:1] {SHM_WAIT}")
    scene.say("(Worker_TP0 pid=200) INFO 11-29 12:20:00 [x.py:1] Loading weights took 1800.00 seconds")
    for number in range(60):
        scene.say(f"(Worker_TP0 pid=200) Capturing CUDA graphs (decode): 50%|### | {number}/60")
        scene.run(4)
    scene.say("(APIServer pid=99) INFO:     Application startup complete.")
    scene.scrape = {"http": 200}
    scene.run(20)
    return scene


def cold_compile() -> Scene:
    """Kernels are built for fifty minutes before the first request can be."""
    scene = starting(interval=10.0)
    scene.say("(EngineCore pid=100) INFO 11-29 11:49:30 [x.py:1] Available KV cache memory: 20.1 GiB")
    scene.process(900, name="ninja", state="S", cpu_pct=0.0)
    scene.run(3000)
    scene.processes.pop(900)
    scene.say("(APIServer pid=99) INFO:     Application startup complete.")
    scene.scrape = {"http": 200}
    scene.serve(60)
    return scene


def jit() -> Scene:
    """Three kernels are compiled while requests wait; the last takes longer than a hang with a witness would."""
    scene = Scene(2)
    for util, seconds in ((0, 70), (100, 70), (100, 110)):
        scene.serve(60)
        scene.freeze()
        scene.say(f"(Worker_TP0 pid=200) WARNING 11-29 12:00:00 [jit_monitor.py:1] {JIT}")
        scene.gpus(util=util, power=IDLE_W, mem=0)
        scene.run(seconds)
    scene.serve(30)
    return scene


def slow_first_request() -> Scene:
    scene = asked_first()
    scene.gpus(util=100, power=120, mem=1)
    scene.run(100)
    scene.serve(60)
    return scene


def chunked_prefill() -> Scene:
    """157,000 tokens of prompt for nine minutes: no token counter moves, the KV cache fills."""
    scene = Scene(2)
    scene.serve(60)
    scene.rest()
    scene.work(1)
    scene.rates = {"vllm:kv_cache_usage_perc": 0.001}
    scene.silent_since = scene.t
    scene.run(540)
    scene.serve(30)
    return scene


def whole_prefill() -> Scene:
    """The same without chunks: nothing moves at all for five minutes, the GPUs work."""
    scene = Scene(2)
    scene.serve(60)
    scene.freeze(running=1)
    scene.ledger_more = {"largest_prompt_tokens": 900_000}
    scene.run(300)
    scene.ledger_more = {}
    scene.serve(30)
    return scene


def grammar() -> Scene:
    scene = livelock_with_grammar()
    scene.run(160)
    scene.serve(30)
    return scene


def transfer() -> Scene:
    """A KV cache comes from the disk for three minutes: GPUs idle, requests wait."""
    scene = Scene(2)
    scene.serve(60)
    scene.freeze(running=0, waiting=3)
    scene.gpus(util=0, power=IDLE_W, mem=0)
    for number in range(90):
        scene.put("cgroup", read_bytes=number * 4_000_000_000)
        scene.run(2)
    scene.serve(30)
    return scene


def preemptions() -> Scene:
    scene = Scene()
    scene.serve(60)
    scene.rates = {"vllm:num_preemptions_total": 2.0, "vllm:generation_tokens_total": 0.3}
    scene.values["vllm:kv_cache_usage_perc"] = 0.99
    scene.run(600)
    return scene


def asleep() -> Scene:
    scene = Scene(interval=10.0)
    scene.serve(60)
    scene.freeze(running=0, waiting=4)
    scene.values['vllm:engine_sleep_state{sleep_state="awake"}'] = 0.0
    scene.gpus(util=0, power=IDLE_W, mem=0)
    scene.run(1800)
    return scene


def saturated() -> Scene:
    """The API process is too busy to answer, forty seconds at a time; the GPUs work on."""
    scene = Scene(2)
    scene.process(99, state="R", cpu_pct=100.0)
    for _ in range(6):
        scene.serve(20)
        scene.scrape, scene.silent_since = {"error": "timeout after 10 s"}, scene.t
        scene.run(40)
        scene.scrape = {"http": 200}
    return scene


def saturated_for_long() -> Scene:
    """No scrape is answered for ten minutes while bytes come."""
    scene = Scene()
    scene.serve(60)
    scene.scrape = {"error": "timeout after 10 s"}
    scene.run(600)
    return scene


def scrapes_fail() -> Scene:
    """No scrape is answered and nobody keeps a ledger: nothing is known."""
    scene = Scene(gateway=False)
    scene.serve(60)
    scene.scrape = {"http": 500}
    scene.gpus(util=100, power=SPIN_W, mem=0)
    scene.run(600)
    return scene


def slow_client() -> Scene:
    """One stream is silent for ten minutes since its client reads nothing; the others flow."""
    scene = Scene()
    scene.serve(30)
    for second in range(0, 600, 2):
        scene.ledger_more = {"oldest_silent_s": float(second)}
        scene.run(2)
    return scene


def stopped_client() -> Scene:
    """The only client stops reading: the engine has long ended its answer, the gateway still holds it."""
    scene = Scene()
    scene.serve(60, 1)
    scene.freeze(running=0)
    scene.values["vllm:request_success_total"] += 1.0
    scene.gpus(util=0, power=IDLE_W, mem=0)
    scene.run(1500)
    return scene


def idle_night() -> Scene:
    scene = Scene(2, interval=10.0)
    scene.serve(60)
    scene.idle(8 * 3600)
    scene.serve(60)
    return scene


def shared_gpu() -> Scene:
    """Another program has the GPU as well and shows full utilisation at low power; the engine is silent for 150 s."""
    scene = stuck(seconds=0)
    scene.cards[0]["pids"] = [scene.core, 4711]
    scene.run(150)
    scene.serve(30)
    return scene


def mig_step() -> Scene:
    """Nothing is told of the GPU, and a step takes 200 s."""
    scene = stuck(util=None, power=None, mem=None, seconds=200)
    scene.serve(30)
    return scene


def stalled_supervisor() -> Scene:
    """Nobody looks for ten minutes, three times; the gateway's ages are large when somebody does again."""
    scene = Scene(2)
    for _ in range(3):
        scene.serve(60)
        scene.freeze()
        scene.gpus(util=100, power=SPIN_W, mem=0)
        scene.run(20)
        scene.skip(600)
        scene.run(40)
    scene.serve(60)
    return scene


def draining() -> Scene:
    scene = Scene()
    scene.serve(60)
    scene.say("Stopping llm-engine@default.service - vLLM engine default...", src="systemd")
    scene.freeze()
    scene.gpus(util=0, power=IDLE_W, mem=0)
    scene.run(400)
    return scene


def restarted() -> Scene:
    """A restart that the log does not show: the counters begin anew."""
    scene = Scene()
    scene.serve(100)
    scene.freeze()
    scene.run(80)
    scene.values.update({"vllm:generation_tokens_total": 0.0, "vllm:request_success_total": 1.0})
    scene.run(80)
    scene.serve(60)
    return scene


def cancelled_calls() -> Scene:
    """Calls that are refused at once, every ten seconds for twenty minutes, on an engine with nothing else to do."""
    scene = Scene()
    scene.serve(60)
    scene.rest()
    for _ in range(120):
        scene.run(8)
        scene.inflight, scene.silent_since = 1, None
        scene.run(2)
        scene.inflight = 0
    return scene


TRAPS: dict[str, Trap] = {
    "long load": Trap(long_load, "starting"),
    "cold compile": Trap(cold_compile, "compiling"),
    "JIT while serving": Trap(jit, "compiling"),
    "slow first request": Trap(slow_first_request),
    "chunked prefill": Trap(chunked_prefill, "busy-prefill"),
    "prefill in one step": Trap(whole_prefill, "busy-prefill"),
    "grammar": Trap(grammar, "compiling"),
    "KV cache on its way": Trap(transfer, "slow"),
    "preemption storm": Trap(preemptions, "slow"),
    "asleep": Trap(asleep, "asleep"),
    "API process saturated": Trap(saturated),
    "API process saturated for long": Trap(saturated_for_long, "slow"),
    "scrapes fail": Trap(scrapes_fail, "unknown"),
    "slow client": Trap(slow_client),
    "client stopped": Trap(stopped_client, "slow"),
    "idle night": Trap(idle_night),
    "GPU shared": Trap(shared_gpu, "slow"),
    "MIG, long step": Trap(mig_step, "slow"),
    "supervisor stalled": Trap(stalled_supervisor),
    "draining": Trap(draining, "draining"),
    "restarted": Trap(restarted),
    "calls refused": Trap(cancelled_calls),
}
