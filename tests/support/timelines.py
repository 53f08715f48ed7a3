"""Recordings of engines that do not exist: what a supervisor would have seen of one, a line a sample.

A `Scene` is an engine with knobs; `run(seconds)` lets time go by at the default interval and writes what each source
says meanwhile. Turning a knob between two runs is the story:

    scene = Scene(tp=2)
    scene.serve(120)                      # tokens flow, two requests at work
    scene.freeze()                        # nothing moves any more
    scene.gpus(util=100, power=90, mem=0)
    scene.run(120)

Figures are those of a machine in the reports: 350 W cards that draw 55 W idle, 300 W at work, 95 W in a spin.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

IDLE_W, BUSY_W, SPIN_W, BUSY_MEM = 55.0, 300.0, 95.0, 45.0
LEARNED = {"idle_power_w": IDLE_W, "busy_power_w": BUSY_W, "busy_mem_util": BUSY_MEM, "prefill_rate": 8000.0}
SHM_WAIT = "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes"
JIT = "Triton kernel JIT compilation during inference: _fwd_kernel. This causes a latency spike; consider warm-up."
UNIT = "llm-engine@default.service"


class Scene:
    """One engine. `gateway` False: nobody keeps a ledger. `nvml` False: no GPU can be read."""

    def __init__(
        self,
        tp: int = 1,
        *,
        gpus: int | None = None,
        learned: dict[str, Any] | None = None,
        gateway: bool = True,
        nvml: bool = True,
        interval: float = 2.0,
        start: float = 1000.0,
    ) -> None:
        self.tp = tp
        self.count = tp if gpus is None else gpus
        self.pci = [f"0000:{index + 1:02x}:00" for index in range(self.count)]
        self.interval, self.t = interval, start
        self.gateway, self.nvml, self.metrics = gateway, nvml, True
        learned = LEARNED if learned is None else learned
        config = {"tp": tp, "pp": 1, "gpus": self.count, "engine_gpu_pci": self.pci, "learned": learned}
        self.lines: list[dict[str, Any]] = [{"config": config}]
        self.values: dict[str, float] = {
            "vllm:generation_tokens_total": 5000.0,
            "vllm:prompt_tokens_total": 90000.0,
            "vllm:request_success_total": 40.0,
            "vllm:num_preemptions_total": 0.0,
            "vllm:kv_cache_usage_perc": 0.1,
            "vllm:num_requests_running": 0.0,
            "vllm:num_requests_waiting": 0.0,
            'vllm:engine_sleep_state{sleep_state="awake"}': 1.0,
        }
        self.scrape: dict[str, Any] = {"http": 200, "latency_ms": 4.0}
        self.rates: dict[str, float] = {}  # metric -> growth a second
        self.inflight = 0
        self.silent_since: float | None = None  # of the engine's last byte; None: bytes flow
        self.ledger_more: dict[str, Any] = {}
        self.cards: list[dict[str, Any]] = [{} for _ in self.pci]
        self.processes: dict[int, dict[str, Any]] = {}
        self.core, self.workers = 100, [200 + rank for rank in range(tp)] if tp > 1 else []
        self.process(99, name="VLLM::APIServer", state="S", cpu_pct=5.0)
        self.process(self.core, name="VLLM::EngineCore", state="S", cpu_pct=20.0)
        for rank, pid in enumerate(self.workers):
            self.process(pid, name=f"VLLM::Worker_TP{rank}", state="R", cpu_pct=80.0)
        self.gpus(util=0, power=IDLE_W, mem=0)

    # --- knobs ---------------------------------------------------------------------------------------------------

    def gpus(self, *, util: float | None = None, power: float | None = None, mem: float | None = None,
             only: int | None = None) -> None:  # fmt: skip
        """Set what the cards show; None: the card does not tell."""
        for index, card in enumerate(self.cards):
            if only in (None, index):
                card.update({"util": util, "power_w": power, "mem_util": mem, "temp_c": 60.0, "mem_used_mib": 70000.0})

    def process(self, pid: int, **more: Any) -> None:
        """Set what /proc shows of a process."""
        self.processes.setdefault(pid, {}).update(more)

    def say(self, msg: str, src: str = "journal", **more: Any) -> None:
        """A line of a log, now."""
        self.lines.append({"t": self.t, "src": src, "unit": UNIT, "msg": msg, **more})

    def put(self, src: str, **more: Any) -> None:
        """Any sample, now."""
        self.lines.append({"t": self.t, "src": src, **more})

    def freeze(self, running: float | None = None, waiting: float | None = None) -> None:
        """Nothing moves from now on."""
        self.rates = {}
        self.silent_since = self.t
        if running is not None:
            self.values["vllm:num_requests_running"] = running
        if waiting is not None:
            self.values["vllm:num_requests_waiting"] = waiting

    def work(self, requests: int = 2) -> None:
        """Tokens flow from now on."""
        self.inflight, self.silent_since = requests, None
        self.values["vllm:num_requests_running"] = float(requests)
        self.rates = {"vllm:generation_tokens_total": 400.0, "vllm:request_success_total": 0.1,
                      "vllm:prompt_tokens_total": 200.0}  # fmt: skip
        self.gpus(util=98, power=BUSY_W, mem=BUSY_MEM)

    def rest(self) -> None:
        """No request from now on."""
        self.inflight, self.rates = 0, {}
        self.values["vllm:num_requests_running"] = self.values["vllm:num_requests_waiting"] = 0.0
        self.gpus(util=0, power=IDLE_W, mem=0)

    # --- time ----------------------------------------------------------------------------------------------------

    def serve(self, seconds: float, requests: int = 2) -> None:
        """Tokens flow for a while."""
        self.work(requests)
        self.run(seconds)

    def idle(self, seconds: float) -> None:
        """Nothing to do for a while."""
        self.rest()
        self.run(seconds)

    def run(self, seconds: float) -> None:
        """Time goes by, seen by all sources."""
        for _ in range(round(seconds / self.interval)):
            self.sample()
            self.skip(self.interval)

    def skip(self, seconds: float) -> None:
        """Time goes by and nobody looks."""
        for name, rate in self.rates.items():
            self.values[name] = round(self.values.get(name, 0.0) + rate * seconds, 6)
        self.t += seconds

    def sample(self) -> None:
        """One look of every source."""
        if self.metrics:
            values = {} if "error" in self.scrape else {"values": dict(self.values)}
            self.put("metrics", **self.scrape, **values)
        if self.gateway:
            since = 0.1 if self.silent_since is None else self.t - self.silent_since
            told = {"oldest_silent_s": since, "since_any_byte_s": since} if self.inflight else {}
            self.put("ledger", inflight=self.inflight, **{**told, **self.ledger_more})
        if self.nvml:
            self.put("nvml", gpus=[{"idx": n, "pci": pci, **self.cards[n]} for n, pci in enumerate(self.pci)])
        for pid, seen in self.processes.items():
            self.put("proc", pid=pid, **{"ppid": 98, **seen})

    def text(self, leave_out: Iterable[str] = ()) -> list[bytes]:
        """The recording's lines, without the sources that are left out."""
        out = set(leave_out)
        return [json.dumps(line).encode() + b"\n" for line in self.lines if line.get("src") not in out]


def start_lines() -> list[str]:
    """What a healthy start says up to the collective's setup."""
    return [
        "(APIServer pid=99) INFO 11-29 11:48:57 [api_server.py:1] vLLM API server version 0.32.0",
        "(APIServer pid=99) INFO 11-29 11:48:57 [utils.py:1] non-default args: {'model': 'm'}",
        "(EngineCore pid=100) INFO 11-29 11:48:59 [core.py:1] Initializing a V1 LLM engine (v0.32.0)",
        "(Worker_TP0 pid=200) INFO 11-29 11:49:01 [pynccl.py:1] vLLM is using nccl==2.28.9",
    ]


def stuck(tp: int = 1, *, util: float | None = 100, power: float | None = SPIN_W, mem: float | None = 0,
          running: float | None = None, waiting: float | None = None, seconds: float = 270.0, nvml: bool = True,
          gateway: bool = True) -> Scene:  # fmt: skip
    """Serves, then nothing moves; the cards show what they are told to."""
    scene = Scene(tp, nvml=nvml, gateway=gateway)
    scene.serve(120)
    scene.freeze(running, waiting)
    scene.gpus(util=util, power=power, mem=mem)
    scene.run(seconds)
    return scene


def starting(tp: int = 2, interval: float = 2.0) -> Scene:
    scene = Scene(tp, interval=interval)
    scene.scrape = {"error": "connection refused"}
    for line in start_lines():
        scene.say(line)
    scene.say("(Worker_TP0 pid=200) INFO 11-29 11:49:02 [x.py:1] rank 0 in world size 2 is assigned")
    return scene


def asked_first() -> Scene:
    """The first request since the start is in the engine."""
    scene = starting()
    scene.values["vllm:generation_tokens_total"] = scene.values["vllm:request_success_total"] = 0.0
    scene.say("(APIServer pid=99) INFO:     Application startup complete.")
    scene.scrape = {"http": 200}
    scene.run(20)
    scene.inflight, scene.silent_since = 1, scene.t
    return scene


def livelock_with_grammar() -> Scene:
    scene = Scene()
    scene.serve(60)
    scene.freeze(running=0, waiting=1)
    scene.ledger_more = {"structured": 1}
    scene.gpus(util=0, power=IDLE_W, mem=0)
    scene.values["vllm:num_requests_running"] = 1.0
    scene.process(scene.core, state="R", cpu_pct=100.0)
    return scene
