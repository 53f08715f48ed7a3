from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire.vllmlog import (
    CRIT,
    ERR,
    INFO,
    PHASES,
    WARNING,
    Progress,
    Reader,
    advance,
    announces_death,
    is_trivia,
    notice,
    waits_for_clients,
)

CORPUS = Path(__file__).resolve().parents[2] / "corpus/vllmlog"
LOGS = sorted(path.stem for path in CORPUS.glob("*.txt"))
START = Progress("starting", "starting vLLM")


def corpus(name: str) -> list[str]:
    return (CORPUS / f"{name}.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("raw", "process", "pid", "priority", "text"),
    [
        ("(EngineCore pid=7) INFO 11-29 11:48:57 [core.py:133] Initializing", "EngineCore", 7, INFO, "Initializing"),
        ("(Worker_TP0 pid=9) WARNING 11-29 11:48:57 [u.py:1] x", "Worker_TP0", 9, WARNING, "x"),
        ("(EngineCore_DP1 pid=9) ERROR 11-29 11:48:57 [u.py:1]     x", "EngineCore_DP1", 9, ERR, "    x"),
        ("ERROR 11-29 11:48:57 [u.py:1] x", "", None, ERR, "x"),
        ("INFO:     Application startup complete.", "", None, INFO, "Application startup complete."),
        ("\x1b[32mINFO\x1b[0m:     Started", "", None, INFO, "Started"),
        ("W1129 11:48:51.518000 23325 torch/x.py:53] Triton", "", None, WARNING,
         "W1129 11:48:51.518000 23325 torch/x.py:53] Triton"),
        ("[rank0]:[E1129 11:48:51.518000 x.cpp:1] Watchdog", "", None, ERR,
         "[rank0]:[E1129 11:48:51.518000 x.cpp:1] Watchdog"),
        ("/runtime/x.py:138: FutureWarning: old", "", None, WARNING, "/runtime/x.py:138: FutureWarning: old"),
        ("vllm: error: unrecognized arguments: --x", "", None, ERR, "vllm: error: unrecognized arguments: --x"),
        ("Loading safetensors checkpoint shards:  50% Completed | 1/2", "", None, INFO,
         "Loading safetensors checkpoint shards:  50% Completed | 1/2"),
        ("", "", None, INFO, ""),
    ],
)  # fmt: skip
def test_a_line(raw: str, process: str, pid: int | None, priority: int, text: str) -> None:
    line = Reader().read(raw)
    assert (line.process, line.pid, line.priority, line.text) == (process, pid, priority, text)


def test_a_traceback_keeps_its_priority_until_its_exception() -> None:
    reader = Reader()
    raw = ["fine", "Traceback (most recent call last):", '  File "x.py", line 1, in f', "    raise KeyError(1)",
           "KeyError: 1", "fine again", "(Worker pid=2) Fatal Python error: Aborted", "other writer",
           "(Worker pid=2)   File x"]  # fmt: skip
    assert [reader.read(line).priority for line in raw] == [INFO, ERR, ERR, ERR, ERR, INFO, ERR, INFO, ERR]


def test_a_line_with_a_level_ends_a_traceback() -> None:
    reader = Reader()
    reader.read("Traceback (most recent call last):")
    assert reader.read("INFO:     on").priority == INFO
    assert reader.read("  indented").priority == INFO


def test_a_healthy_start_passes_the_milestones_in_order() -> None:
    reader, now, told = Reader(), START, [START]
    for raw in corpus("healthy"):
        now = advance(now, reader.read(raw).text)
        if now != told[-1]:
            told.append(now)
    assert told == [
        START,
        Progress("starting", "reading the model's configuration"),
        Progress("starting", "reading the model's configuration (LlamaForCausalLM)"),
        Progress("starting", "starting the engine's processes"),
        Progress("loading", "loading weights"),
        Progress("loading", "loading weights 1 of 1 shards"),
        Progress("loading", "weights are loaded"),
        Progress("compiling", "making a KV cache of 0.5 GiB"),
        Progress("compiling", "KV cache of 23,296 tokens"),
        Progress("compiling", "engine initialised"),
        Progress("compiling", "starting the HTTP server"),
        Progress("compiling", "HTTP server is up"),
    ]


@pytest.mark.parametrize(
    ("text", "phase", "message"),
    [
        ("vLLM is using nccl==2.27.5", "starting", "joining the GPUs"),
        ("Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01]", "loading",
         "loading weights 2 of 4 shards"),
        ("Model loading took 8.9 GiB memory and 3.1 seconds", "loading", "weights are loaded"),
        ("Dynamo bytecode transform time: 5.1 s", "compiling", "compiling"),
        ("torch.compile took 33.08 s in total", "compiling", "compiled"),
        ("Available KV cache memory: 51.2 GiB", "compiling", "51.2 GiB are left for the KV cache"),
        ("GPU KV cache size: 1,048,576 tokens", "compiling", "KV cache of 1,048,576 tokens"),
        ("Capturing CUDA graphs (decode, FULL):  43%|####      | 29/67 [00:02<00:03]", "compiling",
         "capturing CUDA graphs 29 of 67"),
    ],
)  # fmt: skip
def test_milestones_of_a_gpu(text: str, phase: str, message: str) -> None:
    assert advance(START, text) == Progress(phase, message)


@given(st.lists(st.sampled_from([line for name in LOGS for line in corpus(name)]), max_size=60),
       st.sampled_from(PHASES))  # fmt: skip
def test_the_phase_never_goes_back(lines: list[str], first: str) -> None:
    reader, now = Reader(), Progress(first, "")
    for raw in lines:
        after = advance(now, reader.read(raw).text)
        assert PHASES.index(after.phase) >= PHASES.index(now.phase)
        now = after


@given(st.text())
def test_any_line_can_be_read(raw: str) -> None:
    line = Reader().read(raw)
    assert CRIT <= line.priority <= INFO + 1
    announces_death(line), is_trivia(line), advance(START, line.text)


@pytest.mark.parametrize("name", LOGS)
def test_who_dies_says_so_and_who_lives_does_not(name: str) -> None:
    reader = Reader()
    dead = any(announces_death(reader.read(raw)) for raw in corpus(name))
    # A refused argument or model is told before there is an engine; a stop is no death up to its signal.
    quiet = {"healthy", "unknown-argument", "unknown-model-type", "no-such-model", "context-too-long"}
    assert dead == (name not in quiet), name


def test_the_banner_and_the_routes_are_trivia() -> None:
    reader = Reader()
    raw = [
        "(APIServer pid=1) INFO 11-29 11:48:51 [api_utils.py:347] ",
        "(APIServer pid=1) INFO 11-29 11:48:51 [api_utils.py:347]        █     █     █▄   ▄█",
        "(APIServer pid=1) INFO 11-29 11:48:51 [launcher.py:195] Route: /health, Methods: GET",
        "(APIServer pid=1) INFO 11-29 11:48:51 [api_utils.py:347]  ▄▄ ▄█ █ version 0.32.0",
        "(APIServer pid=1) ERROR 11-29 11:48:51 [x.py:1] ",
    ]
    assert [is_trivia(reader.read(line)) for line in raw] == [True, True, True, False, False]


def test_a_server_that_waits_for_its_clients() -> None:
    reader = Reader()
    assert waits_for_clients(reader.read("INFO:     Waiting for connections to close. (CTRL+C to force quit)"))
    assert not waits_for_clients(reader.read("INFO:     Waiting for application startup."))


@pytest.mark.parametrize(
    ("text", "before", "kind"),
    [
        ("No available shared memory broadcast block found in 60 seconds. This typically happens when", "", "shm-wait"),
        ("Triton kernel JIT compilation during inference: fused_moe_kernel", "", "jit"),
        ("Kernel JIT compilation during inference: x", "Kernel JIT compilation during inference: x", "jit"),
        ("Loading weights took 3.2 seconds", "Starting to load model", "line"),
        ("Loading weights took 3.2 seconds", "Loading weights took 3.2 seconds", ""),
        ("Waiting for 1 local, 0 remote core engine proc(s) to start.", "", ""),
        ("Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 1 reqs", "", ""),
        ("", "x", ""),
    ],
)
def test_notices(text: str, before: str, kind: str) -> None:
    assert notice(text, before) == kind
