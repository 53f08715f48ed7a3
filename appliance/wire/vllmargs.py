"""How an engine is started: vLLM's arguments and environment for one instance of the configuration.

Defaults come first, the operator's `[engine.vllm]` and `env` win over them, and what would open or blind the appliance
is not theirs to set. Nothing secret is ever an argument: arguments show in the process list.

On a CPU vLLM runs eager with `TORCH_COMPILE_DISABLE=1`: compiled it has answered wrongly there, and without a compiler
on the host one request with logprobs ends the engine. The KV cache gets a size in bytes, for `gpu_memory_utilization`
is a share of the host's whole memory there and two engines with its default do not fit.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from appliance import names
from appliance.config.model import Config, Engine
from appliance.wire import vllmflags, vllmmodels

SHUTDOWN_S = (
    30  # vLLM lets running requests finish for so long after SIGTERM, unless `shutdown_timeout` says more or less
)
SOCKET_PATH_MAX = 107  # sockaddr_un holds 108 bytes with the final NUL
_IPC_NAME = 37  # "/" and the uuid that vLLM names its inner sockets by

BUILTIN_FLAGS: Mapping[str, Mapping[str, object]] = {
    "builtin:smollm2-135m": {"max_model_len": 4096},
    "builtin:minilm-l6-v2": {"runner": "pooling", "dtype": "float32"},
}
_CPU_FLAGS: Mapping[str, object] = {"enforce_eager": True, "gpu_memory_utilization": 0.05}
_CPU_KV_BUILTIN = 512 << 20  # 23,000 tokens of SmolLM2
_CPU_KV = 2 << 30

# Environment that an operator's `env` cannot change: the launcher, the supervisor or the gateway rely on it.
KEPT = frozenset(
    {
        "VLLM_SERVER_DEV_MODE",  # opens control routes that ask for no key
        "VLLM_API_KEY",  # the gateway would be refused
        "VLLM_RPC_BASE_PATH",
        "VLLM_CONFIGURE_LOGGING",
        "VLLM_LOGGING_CONFIG_PATH",
        "VLLM_LOGGING_PREFIX",
        "VLLM_LOGGING_COLOR",
        "NOTIFY_SOCKET",
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """What one start does differently from its configuration: flags and environment over the operator's."""

    flags: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What to run. `directories` must exist before, for the engine's user alone; `env` is laid over the launcher's.

    `flags` are the flags of `argv` in vLLM's own names.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    socket: str
    directories: tuple[str, ...]
    flags: Mapping[str, object] = field(default_factory=dict)


def launch_plan(
    config: Config,
    instance: str,
    *,
    device: Literal["cuda", "cpu"],
    cpus: int,
    runtime: str = names.CURRENT_RUNTIME,
    run: str = names.RUN,
    cache: str = names.CACHE,
    compiled: str = "",
    cores: Sequence[int] = (),
    gpus: Sequence[str] = (),
    change: Change = Change(),
) -> LaunchPlan:
    """The start of one instance. KeyError when the configuration has no such instance.

    `cores` are the CPUs that this machine lets us use (all of 0..cpus-1 when empty), `gpus` the GPUs of this instance
    as CUDA_VISIBLE_DEVICES takes them (empty: whatever CUDA finds). `compiled` is the directory among the instance's
    compile caches that is this start's own.
    """
    engine = config.engine_of(instance)
    if engine is None:
        raise KeyError(instance)
    socket = names.engine_socket(instance, run)
    inner = _inner_sockets(instance, run)
    flags = vllmmodels.placed(
        _flags(engine, device, gpus) | dict(change.flags), lambda reference: _directory(config, reference)
    )
    argv = (
        f"{runtime}/bin/vllm",
        "serve",
        _directory(config, vllmmodels.own(engine)),
        *("--served-model-name", *engine.served),
        *("--uds", socket),
        *vllmflags.arguments(flags),
    )
    own = f"{cache}/{instance}"
    env = _environment(own, f"{own}/{names.COMPILED}/{compiled}".rstrip("/"), runtime, inner)
    env |= _cuda(gpus) if device == "cuda" else _cpu(config, instance, flags, tuple(cores) or tuple(range(cpus)))
    env |= {key: value for key, value in {**engine.env, **change.env}.items() if key not in KEPT}
    return LaunchPlan(argv, env, socket, (own, inner), flags)


def _directory(config: Config, reference: str) -> str:
    return names.model_directory(reference, config.models.directory, config.models.source)


def shutdown_s(engine: Engine) -> float:
    """vLLM's own grace for running requests after SIGTERM; the launcher and the unit wait longer than that."""
    given = engine.vllm.get("shutdown_timeout", SHUTDOWN_S)
    return float(given) if isinstance(given, (int, float)) else float(SHUTDOWN_S)


def _flags(engine: Engine, device: Literal["cuda", "cpu"], gpus: Sequence[str]) -> dict[str, object]:
    """Defaults, then the operator's flags over them."""
    flags: dict[str, object] = {
        "enable_server_load_tracking": True,  # /load is what sees requests that a hung engine never counted
        "shutdown_timeout": SHUTDOWN_S,
        "disable_uvicorn_access_log": True,  # the gateway has that line, and here it costs a line for each request
        **BUILTIN_FLAGS.get(engine.model, {}),
    }
    if device == "cpu":
        flags |= _CPU_FLAGS
        if "gpu_memory_utilization" not in engine.vllm:
            flags["kv_cache_memory_bytes"] = _CPU_KV_BUILTIN if names.is_builtin(engine.model) else _CPU_KV
    elif (ranks := _own_ranks(engine, len(gpus))) > 1:
        flags["tensor_parallel_size"] = ranks
    return flags | dict(engine.vllm)


def ranks_of(engine: Engine, gpus: int) -> tuple[int, int]:
    """Tensor and pipeline parallel size of a start on so many GPUs (none: on a CPU)."""
    given = "tensor_parallel_size" in engine.vllm or not gpus
    tensor = _size(engine, "tensor_parallel_size") if given else max(_own_ranks(engine, gpus), 1)
    return tensor, _size(engine, "pipeline_parallel_size")


def _own_ranks(engine: Engine, gpus: int) -> int:
    """The tensor parallel size that uses all GPUs of an engine."""
    return gpus // math.prod(_size(engine, flag) for flag in _OTHER_PARALLEL)


_OTHER_PARALLEL = ("pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size")


def _size(engine: Engine, flag: str) -> int:
    value = engine.vllm.get(flag, 1)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def _inner_sockets(instance: str, run: str) -> str:
    """Where vLLM's processes meet: in the engine's own directory when the path is short enough for a socket."""
    own = f"{names.engine_directory(instance, run)}/rpc"
    if len(own) + _IPC_NAME <= SOCKET_PATH_MAX:
        return own
    return f"/tmp/llm-rpc-{hashlib.blake2s(own.encode(), digest_size=8).hexdigest()}"


def _environment(cache: str, compiled: str, runtime: str, inner: str) -> dict[str, str]:
    """What every engine gets: offline, silent, telling, and with caches that outlive it."""
    return {
        "PATH": f"{runtime}/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": cache,
        "XDG_CACHE_HOME": f"{cache}/xdg",
        "XDG_CONFIG_HOME": f"{cache}/config",
        "HF_HOME": f"{cache}/huggingface",
        "VLLM_CACHE_ROOT": f"{compiled}/vllm",
        "VLLM_CONFIG_ROOT": f"{cache}/config/vllm",
        "TRITON_CACHE_DIR": f"{compiled}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{compiled}/inductor",
        "TORCH_EXTENSIONS_DIR": f"{compiled}/extensions",
        "FLASHINFER_WORKSPACE_BASE": compiled,
        "CUDA_CACHE_PATH": f"{compiled}/cuda",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_RPC_BASE_PATH": inner,
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # One machine: its ranks meet on loopback, which the unit's address filter leaves open, and on nothing else.
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _cuda(gpus: Sequence[str]) -> dict[str, str]:
    """The order of NVML and of PCI, so that a number means the same GPU everywhere."""
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return order | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})


def _cpu(config: Config, instance: str, flags: Mapping[str, object], cores: Sequence[int]) -> dict[str, str]:
    """Threads bound to cores: vLLM's own choice for a single engine, a part of the cores for each of several.

    Left to itself each engine would bind to the same cores. Ranks of one engine need a list each.
    """
    env = {"TORCH_COMPILE_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    ranks = 1
    for flag in ("tensor_parallel_size", "pipeline_parallel_size"):
        value = flags.get(flag, 1)
        ranks *= value if isinstance(value, int) else 1
    neighbours = config.local_instances
    if len(neighbours) == 1 and ranks == 1:
        return env
    own = part(cores, neighbours.index(instance), len(neighbours))
    lists = [part(own, rank, ranks) for rank in range(ranks)]
    # A part of several cores leaves one for the engine core and the HTTP server.
    lists = [cores[:-1] if len(cores) > 2 else cores for cores in lists]
    return env | {"VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, cores)) for cores in lists)}


def part(cores: Sequence[int], index: int, count: int) -> Sequence[int]:
    """The share of one of `count`: disjoint where the cores suffice, else one core each in turn."""
    if count > len(cores):
        return (cores[index % len(cores)],)
    return cores[len(cores) * index // count : len(cores) * (index + 1) // count]
