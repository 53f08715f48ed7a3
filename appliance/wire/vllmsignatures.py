"""Signatures of failures in vLLM's log: a pattern, the cause it means, a sentence and a remedy for the operator.

A pattern is searched in the text of errors and of lines without a level; `{0}` is its first group. Text moves between
releases, file names and line numbers move in each: a pattern holds only words that people would notice missing.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Signature(NamedTuple):
    """One row. `rank` 0 names a cause, 1 a kind of trouble, 2 is a carrier. `{0}` is the first group."""

    rank: int
    cause: str
    pattern: re.Pattern[str]
    message: str
    remedy: str
    hint: str = ""


_FEWER_GPU_BYTES = "lower gpu_memory_utilization, max_num_seqs or max_num_batched_tokens"
_CACHE_BROKEN = "the compile cache is broken"
_HINTS = {_CACHE_BROKEN: "compile-cache"}  # what a word that says little would need
_COMPILER = "install gcc, g++ and python3-dev"
_FETCH = "llm-appliance models list shows what is here; llm-appliance models pull fetches a model"
_ROWS: tuple[tuple[int, str, str, str, str], ...] = (
    # what the configuration asks for and vLLM cannot give
    (0, "config-error", r"^vllm\b[^:]*: error: (.+)", "vLLM refuses its arguments: {0}", "correct [engine.vllm]"),
    (
        0,
        "config-error",
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \([^)]*?(\d+)",
        "max_model_len {0} is more than the model's context length {1}",
        "lower max_model_len",
    ),
    (
        0,
        "config-error",
        r"Total number of attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
        "{0} attention heads cannot be split over {1} GPUs",
        "choose a number of GPUs that divides the heads",
    ),
    (
        0,
        "config-error",
        r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
        "{0} GPUs are asked for and {1} are visible",
        "correct gpus and tensor_parallel_size, or find out why a GPU is missing",
    ),
    (
        0,
        "config-error",
        r"(?:The quantization method (\S+) is not supported|Quantization scheme is not supported|Unknown quantization)",
        "this model's quantization does not run on this GPU",
        "use another checkpoint of the model",
    ),
    (
        0,
        "config-error",
        r"(?:--enable-auto-tool-choice requires --tool-call-parser|invalid tool call parser: (\S+))",
        "tool calling needs a tool_call_parser that this vLLM knows",
        "set tool_call_parser beside enable_auto_tool_choice",
    ),
    (
        0,
        "config-error",
        r"Model architectures? (\[.*?\]|\S+) (?:are|is|was) (?:not supported|supported in vLLM until)",
        "this vLLM does not know the architecture {0}",
        "use another model or another vLLM version",
    ),
    (
        0,
        "config-error",
        r"has model type `([^`]+)` but Transformers does not recognize",
        "this vLLM does not know the model type {0}",
        "use another model or another vLLM version",
    ),
    (
        0,
        "config-error",
        r"(?:requires you to execute the \w+ file|contains custom code which must be|trust_remote_code=True)",
        "the model brings code of its own",
        "read that code, then set trust_remote_code = true in [engine.vllm]",
    ),
    (
        0,
        "config-error",
        r"DP adjusted local rank (\d+) is out of bounds for (\d+) devices",
        "the engine wants more GPUs than the {1} that are visible",
        "correct gpus and the parallel sizes, or find out why a GPU is missing",
    ),
    (
        0,
        "config-error",
        r"(?:NVMLError_NotFound|invalid literal for int\(\) with base 10: '((?:MIG|GPU)-[^']*))",
        "no GPU has the name {0}",
        "write whole UUIDs as nvidia-smi -L shows them, or numbers",
    ),
    (
        0,
        "config-error",
        r"no kernel image is available for execution",
        "this vLLM has no program for this GPU",
        "the GPU is too old for this build: llm-appliance runtime list",
    ),
    (
        0,
        "config-error",
        r"Failed to infer device type",
        "vLLM finds no device to run on",
        "the runtime's device and the machine's do not match: llm-appliance runtime list",
    ),
    # the model's files
    (
        0,
        "model-not-found",
        r"Invalid repository ID or local directory specified: ?'?([^'\n]*)",
        "there is no model at {0}",
        _FETCH,
    ),
    (0, "model-not-found", r"Cannot find any model weights with `?([^`\n]*)", "no weights lie in {0}", _FETCH),
    (
        0,
        "model-not-found",
        r"(?:OfflineModeIsEnabled|LocalEntryNotFoundError|couldn't connect to 'https://|Repo id must )",
        "a file of the model is missing, and engines download nothing",
        _FETCH,
    ),
    (0, "model-not-found", r"does not appear to have a file named (\S+?)\.? ", "the model lacks {0}", _FETCH),
    (
        0,
        "model-not-found",
        r"Weight files referenced in index but missing: \{?'([^'\n]*)'",
        "weights are missing that the model's index names, {0} among them",
        _FETCH,
    ),
    (
        0,
        "model-not-found",
        r"(?:Couldn't instantiate the backend tokenizer|Can't load tokenizer for ')",
        "the model has no tokenizer",
        "put its tokenizer.json beside config.json, or name another one: tokenizer",
    ),
    (
        0,
        "model-unreadable",
        r"Following weights were not initialized from checkpoint: (.+)",
        "weights are missing in the model's files: {0}",
        "fetch the model again; if it is whole, this vLLM does not know it well enough",
    ),
    (
        0,
        "hub-denied",
        r"(?:GatedRepoError|40[13] Client Error|Cannot access gated repo)",
        "the model hub refuses access",
        "accept the model's terms on the hub and set models.token_file",
    ),
    (
        0,
        "model-unreadable",
        r"PermissionError: \[Errno 13\] Permission denied: '([^']*\.(?:safetensors|json|bin|model|gguf|jinja|txt|pt))'",
        "the engine's user may not read {0}",
        "make the model's files readable for everybody (chmod a+rX)",
    ),
    (
        0,
        "model-unreadable",
        r"(?:SafetensorError|safetensors_rust)\S*: (?:Error while deserializing header: )?(.+)",
        "a weight file is broken: {0}",
        "fetch the model again",
    ),
    (
        0,
        "model-unreadable",
        r"(?:config file at '([^']*)' is not a valid JSON)",
        "{0} is not JSON",
        "fetch the model again",
    ),
    # the host
    (
        0,
        "toolchain-missing",
        r"(?:Failed to find C compiler|InvalidCxxCompiler|No working C\+\+ compiler found|nvcc not found"
        r"|Could not find nvcc|No such file or directory: '(?:g\+\+|gcc|cc|c\+\+|nvcc|ninja)')",
        "vLLM wants to compile and finds no compiler",
        _COMPILER,
    ),
    (0, "toolchain-missing", r"fatal error: Python\.h", "vLLM wants to compile and Python.h is missing", _COMPILER),
    (
        0,
        "toolchain-missing",
        r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "the library {0} is missing",
        "install the package that has it",
    ),
    (
        0,
        "shm-full",
        r"Insufficient space in (\S+) for .*?: (\S+ \w+) required, (\S+ \w+) free",
        "{0} is too small: {1} needed, {2} free",
        "raise shm_size",
    ),
    (
        0,
        "shm-full",
        r"(?:No space left on device: '?/?(?:dev/shm|psm_)|/dev/shm/\S+ .*No space left on device)",
        "/dev/shm is full",
        "raise shm_size",
    ),
    (
        0,
        "shm-removed",
        r"FileNotFoundError: .*No such file or directory: '/?(?:dev/shm/)?(?:psm_|nccl-|sem\.|vllm_)",
        "shared memory of the engine was removed",
        "look for a job that cleans /dev/shm, and for RemoveIPC=",
    ),
    (
        0,
        "disk-full",
        r"\[Errno 28\] No space left on device(?:: '?([^'\n]*))?",
        "the disk is full {0}",
        "free some space; llm-appliance runtime list shows old runtimes",
    ),
    (
        0,
        "driver-mismatch",
        r"(?:Driver/library version mismatch|driver on your system is too old|unsupported display driver"
        r"|forward compatibility was attempted on non supported HW)",
        "the NVIDIA driver does not fit its library or this CUDA",
        "reboot after a driver upgrade, or install a newer driver",
    ),
    (
        0,
        "gpu-lost",
        r"(?:No CUDA GPUs are available|GPU is lost|CUDA unknown error)",
        "no GPU can be reached",
        "nvidia-smi and dmesg; device nodes that are missing come with nvidia-modprobe -u -c=0",
    ),
    (
        0,
        "nvlink-fault",
        r"system not yet initialized",
        "the GPUs' links are not set up",
        "systemctl status nvidia-fabricmanager: it must run, in the driver's version",
    ),
    # memory
    (
        0,
        "gpu-memory-taken",
        r"Free memory on device (\S+) \(([\d.]+)/([\d.]+) GiB\) on startup is less than desired",
        "{1} of {2} GiB are free on {0}, less than the engine wants",
        "see with nvidia-smi who holds the memory",
    ),
    (
        0,
        "start-contention",
        r"Available memory on node \S+ \(([\d.]+)/([\d.]+) GiB\).*",
        "{0} of {1} GiB of host memory are free, less than the engine wants",
        "lower gpu_memory_utilization (on a CPU it is the share of host memory)",
    ),
    (
        0,
        "start-contention",
        r"Error in memory profiling",
        "another process freed GPU memory while vLLM measured it",
        "engines of one GPU must start one after the other",
    ),
    (
        0,
        "kv-none",
        r"No available memory for the cache blocks",
        "the weights leave no memory for a KV cache",
        "raise gpu_memory_utilization, use more GPUs, or a smaller or quantized model",
    ),
    (
        0,
        "kv-too-small",
        r"max seq len \((\d+)\), \(?([\d.]+ GiB) KV cache is needed.*?available KV cache memory \(([\d.]+ GiB)\)"
        r"(?:.*estimated maximum model length is (\d+))?",
        "one request of {0} tokens needs {1} of KV cache and there are {2}",
        "set max_model_len to at most {3}",
    ),
    (
        0,
        "cuda-oom-warmup",
        r"CUDA out of memory occurred when warming up",
        "GPU memory ran out while vLLM warmed up",
        _FEWER_GPU_BYTES,
    ),
    (0, "cuda-oom", r"(?:OutOfMemoryError|CUDA out of memory)", "GPU memory ran out {when}", _FEWER_GPU_BYTES),
    # the GPU and the collective
    (0, "gpu-ecc", r"uncorrectable ECC error", "a GPU has an uncorrectable memory error", "dmesg names the GPU"),
    (
        0,
        "cuda-fault",
        r"CUDA error: (an illegal memory access was encountered|device-side assert triggered"
        r"|unspecified launch failure|misaligned address|CUBLAS_STATUS_EXECUTION_FAILED)",
        "the GPU stopped: {0}",
        "when it comes again with other requests, look for Xid lines in the kernel log",
    ),
    (
        0,
        "hang-collective",
        r"(?:Watchdog caught collective operation timeout|RPC call to (\w+) timed out)",
        "the ranks waited for each other until a time limit",
        "look for Xid lines in the kernel log; NCCL_P2P_DISABLE=1 tells whether the links are at fault",
    ),
    (
        0,
        "start-timeout",
        r"(?:Timed out waiting for engine core processes|Did not receive response from front-end)",
        "vLLM's processes waited for each other until a time limit",
        "",
    ),
    # kinds of trouble
    (
        1,
        "start-failed",
        r"(?:\[Errno 98\]|EADDRINUSE)",
        "an address is in use",
        "a left-over process of an earlier start, or a foreign one, has it: ss -ltnpx",
    ),
    (
        1,
        "start-failed",
        r"PermissionError: \[Errno 13\] Permission denied: '([^']*)'",
        "the engine's user may not use {0}",
        "",
    ),
    (
        1,
        "start-failed",
        r"vLLM failed to compile the model",
        _CACHE_BROKEN,
        "remove the engine's directory below the cache directory",
    ),
    (
        1,
        "start-failed",
        r"getpwuid\(\): uid not found",
        "the engine's user is not in the user database",
        "getent passwd llm-engine",
    ),
    (
        1,
        "start-failed",
        r"could not create a primitive",
        "the unit's sandbox forbids what a CPU kernel needs",
        "a drop-in with MemoryDenyWriteExecute= does that",
    ),
    (
        1,
        "engine-exception",
        r"\[Errno 24\] Too many open files",
        "too many open files",
        "raise LimitNOFILE= of the unit",
    ),
    (1, "toolchain-missing", r"ninja: build stopped", "a kernel could not be compiled", _COMPILER),
    (1, "config-error", r"Model architectures? .* failed to be inspected", "vLLM could not look into the model", ""),
    (1, "shm-full", r"^(?:Fatal Python error: )?Bus error", "a process was ended by SIGBUS: /dev/shm is full", ""),
    (
        1,
        "nvlink-fault",
        r"(?:NVLS|NVLink|NVSwitch)\b.*(?:[Ee]rror|[Ff]ail)",
        "NCCL met an error of the GPUs' links",
        "look for Xid 74 and SXid lines in the kernel log",
    ),
    (1, "cuda-fault", r"CUDA error: (.+)", "the GPU stopped: {0}", "look for Xid lines in the kernel log"),
    (1, "config-error", r"^\s*Value error, (.+?)(?: \[type=.*)?$", "vLLM refuses its configuration: {0}", ""),
    (
        1,
        "worker-died",
        r"Worker proc (\S+) died unexpectedly \(exit code: (-?\w+)\)",
        "a worker died ({1})",
        "the kernel log tells whether the host ran out of memory",
    ),
    # carriers
    (
        2,
        "engine-exception",
        r"EngineCore encountered a fatal error",
        "the engine core stopped at an exception{exception}",
        "",
    ),
    # A kill from outside prints nothing; `Aborted` is what the launcher itself makes of a start that it gives up.
    (2, "fatal-signal", r"^Fatal Python error: (?!Bus|Aborted)(\w[\w ]*)", "a process of the engine crashed: {0}", ""),
    (2, "engine-died", r"engine core exited unexpectedly", "the engine core is gone", ""),
)
SIGNATURES: tuple[Signature, ...] = tuple(
    Signature(rank, cause, re.compile(pattern), message, remedy, _HINTS.get(message, ""))
    for rank, cause, pattern, message, remedy in _ROWS
)
