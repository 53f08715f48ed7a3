from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.policy.causes import CAUSES
from appliance.wire.vllmcauses import Cause, cause_of
from appliance.wire.vllmlog import Line, Reader
from appliance.wire.vllmsignatures import SIGNATURES

CORPUS = Path(__file__).resolve().parents[2] / "corpus/vllmlog"


def read(lines: list[str]) -> list[Line]:
    reader = Reader()
    return [reader.read(line) for line in lines]


def told(*lines: str, served: bool = False) -> Cause | None:
    return cause_of(read(list(lines)), served=served)


@pytest.mark.parametrize(
    ("name", "served", "cause", "message"),
    [
        ("core-killed", True, "engine-died", "the engine core is gone"),
        ("worker-killed", True, "worker-died", "a worker died (SIGKILL)"),
        ("worker-stopped", True, "hang-collective", "the ranks waited for each other until a time limit"),
        ("worker-stopped-one-rank", True, "hang-collective", "the ranks waited for each other until a time limit"),
        ("worker-out-of-memory", True, "worker-died", "a worker died (its exit status is not known)"),
        ("shm-filled", True, "engine-died", "the engine core is gone"),
        ("worker-killed-at-start", False, "worker-died", "a worker died (SIGKILL)"),
        ("unknown-argument", False, "config-error",
         "vLLM refuses its arguments: unrecognized arguments: --no-such-flag"),
        ("unknown-model-type", False, "config-error", "this vLLM does not know the model type foo"),
        ("context-too-long", False, "config-error",
         "max_model_len 100000 is more than the model's context length 8192"),
        ("kv-too-small", False, "kv-too-small",
         "one request of 4096 tokens needs 0.09 GiB of KV cache and there are 0.01 GiB"),
        ("no-such-model", False, "model-not-found", "a file of the model is missing, and engines download nothing"),
        ("no-weights", False, "model-not-found", "no weights lie in /models/noweights"),
        ("broken-weights", False, "model-unreadable",
         "a weight file is broken: incomplete metadata, file not fully covered"),
    ],
)  # fmt: skip
def test_real_faults(name: str, served: bool, cause: str, message: str) -> None:
    found = cause_of(read((CORPUS / f"{name}.txt").read_text().splitlines()), served=served)
    assert found is not None
    assert (found.cause, found.message) == (cause, message)


@pytest.mark.parametrize(
    ("line", "cause", "words"),
    [
        ("FileNotFoundError: Weight files referenced in index but missing: {'/m/b.safetensors', '/m/c.safetensors'}",
         "model-not-found", "/m/b.safetensors among them"),
        ("ValueError: Couldn't instantiate the backend tokenizer from one of: ", "model-not-found", "no tokenizer"),
        ("OSError: Can't load tokenizer for '/m'. If you were trying to load it", "model-not-found", "no tokenizer"),
        ("ValueError: Following weights were not initialized from checkpoint: {'model.layers.1.w'}",
         "model-unreadable", "{'model.layers.1.w'}"),
    ],
)  # fmt: skip
def test_a_model_that_is_not_whole(line: str, cause: str, words: str) -> None:
    found = told(f"{ERROR}{line}", "RuntimeError: Engine core initialization failed. See root cause above.")
    assert found is not None and found.cause == cause and words in found.message


@pytest.mark.parametrize(("code", "hint"), [("-9", "killed"), ("-11", ""), ("None", ""), ("1", "")])
def test_a_kill_is_told_from_a_crash(code: str, hint: str) -> None:
    worker = f"Worker proc VllmWorker-1 died unexpectedly (exit code: {code}), shutting down executor."
    found = told(f"{ERROR}{worker}", GONE, served=True)
    assert found is not None and (found.cause, found.hint) == ("worker-died", hint)


def test_what_would_fit_is_a_hint() -> None:
    found = cause_of(read((CORPUS / "kv-too-small.txt").read_text().splitlines()), served=False)
    assert found is not None
    told = re.search(r"estimated maximum model length is (\d+)", (CORPUS / "kv-too-small.txt").read_text())
    assert told is not None and found.hint == f"max-model-len={told[1]}"


@pytest.mark.parametrize("name", ["healthy", "stopped-as-asked"])
def test_nothing_is_the_matter(name: str) -> None:
    assert cause_of(read((CORPUS / f"{name}.txt").read_text().splitlines()), served=True) is None


SEGFAULT = (
    "Fatal Python error: Segmentation fault",
    "",
    "Current thread 0x00007f63baaa3b80 (most recent call first):",
    '  File "/opt/vllm/v1/sample/ops/logprobs.py", line 31 in gather',
    "",
    "Extension modules: numpy._core._multiarray_umath (total: 1)",
)
GONE = "(APIServer pid=1) WARNING 11-29 11:49:17 [c.py:817] [shutdown] MPClient: engine core exited unexpectedly; x"


def test_a_process_that_crashes_by_itself_is_told_from_one_that_is_killed() -> None:
    found = told(*SEGFAULT, GONE, served=True)
    assert found is not None
    assert (found.cause, found.message) == ("engine-exception", "a process of the engine crashed: Segmentation fault")
    killed = told(GONE, served=True)
    assert killed is not None and killed.cause == "engine-died"
    start = told(*SEGFAULT)
    assert start is not None and start.cause == "start-failed"
    worker = "Worker proc VllmWorker-1 died unexpectedly (exit code: -11), shutting down executor."
    rank = told(*SEGFAULT, f"{ERROR}{worker}", GONE, served=True)
    assert rank is not None and (rank.cause, rank.message) == ("worker-died", "a worker died (SIGSEGV)")


KV = "(EngineCore pid=1) INFO 11-29 11:48:57 [k.py:1] Available KV cache memory: 3.1 GiB"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ERROR = "(EngineCore pid=1) ERROR 11-29 11:48:57 [x.py:1] "


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory",
         "gpu-memory-taken"),
        ("AssertionError: Error in memory profiling. Initial free memory 1 GiB, current free memory 2 GiB.",
         "start-contention"),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "kv-none"),
        ("RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
         "cuda-oom-warmup"),
        ("RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 1 MiB free",
         "shm-full"),
        ("OSError: [Errno 28] No space left on device: '/psm_1234'", "shm-full"),
        ("OSError: [Errno 28] No space left on device: '/var/cache/x'", "disk-full"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("OSError: [Errno 98] Address already in use", "start-failed"),
        ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable.", "toolchain-missing"),
        ("main.c:4:10: fatal error: Python.h: No such file or directory", "toolchain-missing"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'g++'", "toolchain-missing"),
        ("ImportError: libnuma.so.1: cannot open shared object file: No such file or directory", "toolchain-missing"),
        ("huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1)", "hub-denied"),
        ("OSError: Invalid repository ID or local directory specified: '/models/x'.", "model-not-found"),
        ("PermissionError: [Errno 13] Permission denied: '/models/x/model.safetensors'", "model-unreadable"),
        ("PermissionError: [Errno 13] Permission denied: '/.cache'", "start-failed"),
        ("ValueError: Model architectures ['FooForCausalLM'] are not supported for now.", "config-error"),
        ("ValueError: Total number of attention heads (9) must be divisible by tensor parallel size (2).",
         "config-error"),
        ("KeyError: 'invalid tool call parser: x (chose from { a,b })'", "config-error"),
        ("RuntimeError: Failed to infer device type", "config-error"),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "cuda-fault"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-ecc"),
        ("RuntimeError: No CUDA GPUs are available", "gpu-lost"),
        ("TimeoutError: RPC call to sample_tokens timed out.", "hang-collective"),
        ("[rank0]:[E1129 11:48:51.518000 p.cpp:1] Watchdog caught collective operation timeout: WorkNCCL",
         "hang-collective"),
        ("TimeoutError: Timed out waiting for engine core processes to start.", "start-timeout"),
        ("NVML: Driver/library version mismatch", "driver-mismatch"),
    ],
)  # fmt: skip
def test_signatures_as_raised_and_as_logged(line: str, cause: str) -> None:
    for text in (line, ERROR + line):
        found = told(text)
        assert found is not None and found.cause == cause


def test_when_memory_ran_out_decides() -> None:
    assert [found and found.cause for found in (told(OOM), told(KV, OOM), told(KV, OOM, served=True))] == [
        "cuda-oom-load", "cuda-oom-warmup", "cuda-oom-serving",
    ]  # fmt: skip


def test_the_carrier_is_not_the_cause_wherever_it_stands() -> None:
    failed = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    carriers = [ERROR + "EngineCore encountered a fatal error.", failed]
    for lines in ([*carriers, OOM], [OOM, *carriers]):
        found = told(*lines)
        assert found is not None and found.cause == "cuda-oom-load"


def test_the_first_of_equals_wins() -> None:
    found = told(ERROR + "ValueError: No available memory for the cache blocks.", OOM)
    assert found is not None and (found.cause, found.line) == ("kv-none", 0)


def test_an_exception_of_the_core_is_told_by_its_name_alone() -> None:
    texts = ("EngineCore encountered a fatal error.", "Traceback (most recent call last):",
             "    raise KeyError(marked)", "builtins.KeyError: 'a marked prompt'")  # fmt: skip
    found = told(*(ERROR + text for text in texts), served=True)
    assert found is not None
    assert (found.cause, found.message) == ("engine-exception", "the engine core stopped at an exception (KeyError)")


def test_a_bus_error_of_a_worker_is_a_full_shm() -> None:
    found = told(ERROR + "Worker proc VllmWorker-1 died unexpectedly (exit code: -7), shutting down executor.")
    assert found is not None and found.cause == "shm-full"


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) WARNING 11-29 11:48:51 [x.py:1] errors like `OSError: [Errno 28] No space left on device`",
        "(APIServer pid=1) INFO 11-29 11:48:51 [x.py:1] CUDA out of memory",
        "    raise RuntimeError('CUDA out of memory')",
        '  File "x.py", line 1, in OutOfMemoryError',
    ],
)
def test_words_that_are_only_quoted_do_not_count(line: str) -> None:
    assert told(line) is None


def test_an_old_error_of_one_request_does_not_explain_a_death() -> None:
    quiet = ["(APIServer pid=1) INFO 11-29 11:48:51 [x.py:1] on"] * 300
    gone = "(APIServer pid=1) WARNING 11-29 11:49:17 [c.py:1] [shutdown] MPClient: engine core exited unexpectedly"
    found = told(OOM, *quiet, gone, served=True)
    assert found is not None and found.cause == "engine-died"


def test_every_cause_is_a_word_of_the_contract() -> None:
    assert {row.cause for row in SIGNATURES} - {"cuda-oom", "fatal-signal"} <= CAUSES.keys()  # which are always refined
