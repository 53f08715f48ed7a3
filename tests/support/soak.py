"""Simulated days of a busy, healthy engine: everything that looks like a hang and is none, in any order.

A day is made from its number, so it is the same in every run. Rest is skipped: nobody looks meanwhile, which is what a
machine that sleeps looks like to a supervisor.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.support.timelines import BUSY_MEM, BUSY_W, IDLE_W, JIT, Scene, start_lines

DAY_S = 86400.0
BUSY_SHARE = 0.05  # of a day; a supervisor's every look at it is simulated
AWAKE = 'vllm:engine_sleep_state{sleep_state="awake"}'
Episode = Callable[[random.Random, Scene], None]


def day(number: int) -> Scene:
    """One day: episodes with pauses between them, until it is over."""
    chance = random.Random(number)
    scene = Scene(
        chance.choice([1, 2, 4]), gateway=chance.random() < 0.8, nvml=chance.random() < 0.8,
        learned=None if chance.random() < 0.5 else {},
    )  # fmt: skip
    end = scene.t + DAY_S
    while scene.t < end:
        began = scene.t
        chance.choice(EPISODES)(chance, scene)
        scene.serve(20)
        scene.idle(chance.choice([2, 10, 40]))
        scene.skip((scene.t - began) * (1 / BUSY_SHARE - 1) * chance.uniform(0.5, 1.5))
    return scene


def load(chance: random.Random, scene: Scene) -> None:
    for _ in range(chance.randrange(3, 20)):
        scene.serve(chance.choice([4, 20, 60]), chance.randrange(1, 30))
        if chance.random() < 0.3:
            scene.idle(chance.choice([2, 8, 30]))


def long_prefill(chance: random.Random, scene: Scene) -> None:
    scene.work(1)
    scene.rates = {"vllm:kv_cache_usage_perc": 0.0005}
    scene.silent_since = scene.t
    scene.run(chance.uniform(60, 600))
    scene.values["vllm:kv_cache_usage_perc"] = 0.1


def compiled_kernels(chance: random.Random, scene: Scene) -> None:
    for _ in range(chance.randrange(1, 4)):
        scene.freeze()
        scene.say(f"(Worker_TP0 pid=200) WARNING 11-29 12:00:00 [jit_monitor.py:1] {JIT} {chance.random()}")
        scene.gpus(util=chance.choice([0, 100]), power=IDLE_W, mem=0)
        scene.run(chance.uniform(14, 70))
        scene.serve(10)


def grammar(chance: random.Random, scene: Scene) -> None:
    scene.work(1)
    scene.freeze()
    scene.ledger_more = {"structured": 1}
    scene.gpus(util=0, power=IDLE_W, mem=0)
    scene.process(scene.core, state="R", cpu_pct=100.0)
    scene.run(chance.uniform(10, 170) if scene.gateway else chance.uniform(10, 110))
    scene.ledger_more = {}
    scene.process(scene.core, state="S", cpu_pct=20.0)


def sleep(chance: random.Random, scene: Scene) -> None:
    scene.rest()
    scene.values[AWAKE] = 0.0
    scene.inflight, scene.silent_since = 2, scene.t
    scene.run(chance.uniform(100, 900))
    scene.values[AWAKE] = 1.0


def slow_client(chance: random.Random, scene: Scene) -> None:
    scene.work(1)
    scene.run(20)
    scene.freeze(running=0)
    scene.values["vllm:request_success_total"] += 1
    scene.gpus(util=0, power=IDLE_W, mem=0)
    scene.run(chance.uniform(60, 900) if scene.gateway else 10)


def failing_scrapes(chance: random.Random, scene: Scene) -> None:
    scene.work(8)
    for _ in range(chance.randrange(1, 6)):
        scene.scrape = chance.choice([{"error": "timeout"}, {"http": 500}, {"error": "connection reset"}])
        if scene.gateway and chance.random() < 0.5:
            scene.silent_since = scene.t
        scene.run(chance.uniform(2, 40))
        scene.scrape, scene.silent_since = {"http": 200}, None
        scene.run(chance.uniform(4, 40))


def clock_step(chance: random.Random, scene: Scene) -> None:
    """The supervisor is stopped, or the clock is set forward, in the middle of a silence."""
    scene.work(4)
    scene.freeze()
    scene.gpus(util=100, power=chance.choice([IDLE_W, BUSY_W]), mem=0)
    scene.run(chance.uniform(2, 40))
    scene.skip(chance.choice([10, 60, 3600]))
    scene.run(chance.uniform(2, 40))


def preemptions(chance: random.Random, scene: Scene) -> None:
    scene.work(60)
    scene.rates = {"vllm:num_preemptions_total": 0.2, "vllm:generation_tokens_total": 0.1}
    scene.values["vllm:kv_cache_usage_perc"] = 0.995
    scene.run(chance.uniform(60, 300))
    scene.values["vllm:kv_cache_usage_perc"] = 0.1


def restart(chance: random.Random, scene: Scene) -> None:
    """Stopped as asked, started again with a long load."""
    scene.say("Stopping llm-engine@default.service - vLLM engine default...", src="systemd")
    scene.freeze()
    scene.run(chance.uniform(2, 60))
    scene.say("llm-engine@default.service: Deactivated successfully.", src="systemd")
    scene.rest()
    scene.scrape = {"error": "connection refused"}
    scene.run(4)
    scene.say("Starting llm-engine@default.service - vLLM engine default...", src="systemd")
    for line in start_lines():
        scene.say(line)
        scene.run(chance.uniform(2, 60))
    scene.say("(Worker_TP0 pid=200) INFO 11-29 11:49:30 [x.py:1] Starting to load model m...")
    scene.gpus(util=chance.choice([0, 100]), power=IDLE_W, mem=0)
    scene.run(chance.uniform(30, 600))
    scene.say("(APIServer pid=99) INFO:     Application startup complete.")
    for name in ("generation_tokens", "prompt_tokens", "request_success", "num_preemptions"):
        scene.values[f"vllm:{name}_total"] = 0.0
    scene.scrape = {"http": 200}
    scene.idle(6)
    scene.inflight, scene.silent_since = 1, scene.t
    scene.gpus(util=100, power=120, mem=1)
    scene.run(chance.uniform(10, 100))  # the first request


def neighbour(chance: random.Random, scene: Scene) -> None:
    """Another program on the first GPU while the engine rests."""
    scene.rest()
    scene.gpus(util=100, power=BUSY_W, mem=BUSY_MEM, only=0)
    scene.run(chance.uniform(60, 400))


EPISODES: tuple[Episode, ...] = (
    load, load, load, long_prefill, compiled_kernels, grammar, sleep, slow_client, failing_scrapes, clock_step,
    preemptions, restart, neighbour,
)  # fmt: skip
