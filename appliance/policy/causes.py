"""The causes: one word for each thing that can be the matter with an engine, what it means, and what is done about it.

The word stands in the journal (`LLM_CAUSE`), in `status`, in incidents and in metrics; its MESSAGE_ID is
derived from it, and `journalctl -x` shows the text of its row. A word, once released, is never used for anything else.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Remedy(enum.Enum):
    """The classes of answer to a failure."""

    NONE = "none"  # not a fault
    RESTART = "restart"  # the same configuration again, within the budget
    RESTART_CHANGED = "restart-changed"  # again with the change that the ladder names, within the budget
    WAIT = "wait-retry"  # again after a pause; the second time within the window it is held
    HOLD = "hold"  # no restart until the configuration or the files change
    FIX_HOST = "fix-host"  # no restart until the host changes
    REBOOT = "reboot"  # no restart; the machine or its driver needs one


NONE, RESTART, RESTART_CHANGED, WAIT, HOLD, FIX_HOST, REBOOT = Remedy
UNKNOWN_CAUSE = "unknown"


@dataclass(frozen=True, slots=True)
class Cause:
    """One row: the remedy's class, what happened, what an operator can do."""

    remedy: Remedy
    meaning: str
    advice: str


# fmt: off
CAUSES: dict[str, Cause] = {
    # not a fault
    "idle": Cause(NONE, "The engine serves and has nothing to do.", "Nothing to do."),
    "starting": Cause(NONE, "The engine is starting.",
        "Wait; `llm-appliance status` shows the phase and how long the last start took."),
    "compiling": Cause(NONE, "The engine compiles kernels or captures graphs.",
        "Wait; this happens at a start and at the first request of a new shape."),
    "busy-prefill": Cause(NONE, "The engine reads long prompts and sends no tokens meanwhile.",
        "Nothing to do; a smaller max_num_batched_tokens makes the pauses shorter."),
    "slow": Cause(NONE, "The engine makes progress, below its usual speed.",
        "Look for throttled GPUs and for more load than usual."),
    "asleep": Cause(NONE, "The engine was put to sleep or paused.", "Wake it the way it was put to sleep."),
    "draining": Cause(NONE, "The engine finishes its streams and takes no new calls.", "Wait."),
    # hang
    "hang-collective": Cause(RESTART, "The GPUs wait for one another in a collective operation; no token comes.",
        "It is restarted. If it repeats, look at the links between the GPUs and at NCCL settings in the engine's env."),
    "hang-rank-absent": Cause(RESTART, "One of the engine's workers is gone or stopped; the others wait for it.",
        "It is restarted. Look for what killed or stopped the worker."),
    "hang-scheduler": Cause(RESTART, "Requests wait while the GPU is idle: the engine's scheduler is stuck.",
        "It is restarted. A newer vLLM may have the cure."),
    "hang-livelock": Cause(RESTART, "A process of the engine turns in a loop without progress.",
        "It is restarted. A newer vLLM may have the cure."),
    "hang-kernel": Cause(RESTART, "A GPU kernel does not end.",
        "It is restarted. If it repeats, look at the kernel log for Xid lines."),
    "hang-init": Cause(RESTART, "The engine's workers do not find one another at the start.",
        "It is restarted. Look at NCCL settings and at the links between the GPUs."),
    "hang-startup": Cause(RESTART, "The start makes no progress.",
        "It is restarted. Look at the disk that the model lies on and at the engine's last lines."),
    # memory of the GPU
    "cuda-oom-serving": Cause(RESTART, "The GPU ran out of memory while serving.",
        "It is restarted. If it repeats, lower max_num_batched_tokens or gpu_memory_utilization."),
    "cuda-oom-warmup": Cause(RESTART, "The GPU ran out of memory in the warm-up.",
        "It is restarted. If it repeats, lower max_num_seqs, then gpu_memory_utilization."),
    "cuda-oom-load": Cause(HOLD, "The model's weights do not fit into the GPU's memory.",
        "Use more GPUs (tensor_parallel_size), a quantised model or a smaller one, then `llm-appliance apply`."),
    "kv-none": Cause(HOLD, "Nothing is left for the KV cache after the weights.",
        "Raise gpu_memory_utilization, or use more GPUs or a smaller model, then `llm-appliance apply`."),
    "kv-too-small": Cause(HOLD, "The KV cache cannot hold one request of the model's full length.",
        'Lower max_model_len as the message says, or write "auto" to leave it to vLLM; then `llm-appliance apply`. '
        "With min_model_len it is lowered by itself."),
    "gpu-memory-leaked": Cause(WAIT, "GPU memory of an earlier run is still in use.",
        "It is tried again. If it stays, end the process that nvidia-smi shows, or reset the GPU."),
    "gpu-memory-taken": Cause(WAIT, "Another program uses the GPU's memory.",
        "End that program or give the engine another GPU."),
    "start-contention": Cause(WAIT, "Two programs changed the same GPU's memory while the engine measured it.",
        "It is tried again by itself."),
    # memory of the host
    "host-oom-cgroup": Cause(WAIT, "The kernel killed a process of the engine at the engine's own memory limit.",
        "Raise memory_max of the engine, or lower what it needs on the host."),
    "host-oom-global": Cause(WAIT, "The host ran out of memory and the kernel killed a process of the engine.",
        "Find what uses the memory; add memory or run fewer engines."),
    "host-oom-oomd": Cause(WAIT, "systemd-oomd killed the engine under memory pressure.",
        "Find what uses the memory; add memory or run fewer engines."),
    "shm-full": Cause(WAIT, "The engine's /dev/shm is full.",
        "Raise shm_size of the engine, then `llm-appliance apply`."),
    "shm-removed": Cause(WAIT, "Shared memory of the engine was removed while it ran.",
        "Look for a job that cleans /dev/shm."),
    # died
    "engine-died": Cause(RESTART, "The engine's main process ended while it served.",
        "It is restarted. The engine's last lines in the journal say more."),
    "worker-died": Cause(RESTART, "A worker process of the engine ended.",
        "It is restarted. The engine's last lines in the journal say more."),
    "engine-exception": Cause(RESTART, "vLLM stopped at an error of its own.",
        "It is restarted. If it repeats, report it to the vLLM project with the engine's last lines."),
    "cuda-fault": Cause(RESTART, "A GPU program failed (illegal access, assertion).",
        "It is restarted. Look at the kernel log for Xid lines."),
    "poison-request": Cause(RESTART, "The same request was in flight at more than one death of the engine.",
        "It is restarted. Find the client by the request id."),
    "start-timeout": Cause(RESTART, "The engine was not ready within its start time.",
        "It is tried again. Raise startup_timeout if the model is large or its disk slow."),
    "start-failed": Cause(RESTART, "The engine ended before it served.",
        "It is tried again. The first error in the engine's lines is the cause."),
    # hardware and driver
    "gpu-lost": Cause(REBOOT, "A GPU does not answer any more.",
        "Reboot the machine; then have the GPU and its power checked."),
    "gpu-ecc": Cause(RESTART, "A GPU had a memory error that it could not correct.",
        "It is restarted. If it repeats, have the GPU checked."),
    "gpu-hardware-suspect": Cause(FIX_HOST, "A GPU behaves as if its hardware were broken.",
        "Run the vendor's diagnosis, or take the GPU out of the configuration."),
    "nvlink-fault": Cause(RESTART, "A link between GPUs failed.",
        "It is restarted. If it repeats, have the link checked."),
    "driver-unresponsive": Cause(REBOOT, "The NVIDIA driver does not answer.", "Reboot the machine."),
    "driver-mismatch": Cause(REBOOT, "The NVIDIA driver in the kernel and its library differ in version.",
        "Reboot the machine."),
    "unclean-reset": Cause(RESTART, "The machine stopped without a shutdown while the engine used its GPUs.",
        "It is started again. If it repeats, look at the power supply, its cables and circuit, and at temperatures."),
    # will not get better by itself
    "config-error": Cause(HOLD, "The engine cannot start with its configuration.",
        "Correct what the message names, then `llm-appliance apply`."),
    "model-not-found": Cause(HOLD, "The model is not on this machine.",
        "Check the model's name and `llm-appliance models list`, then `llm-appliance apply`."),
    "model-unreadable": Cause(HOLD, "The model's files are damaged or may not be read.",
        "Remove and fetch the model again, or make its files readable for the user llm-engine."),
    "hub-denied": Cause(HOLD, "The model hub refused the download.",
        "Accept the model's terms at the hub and set token_file under [models], then `llm-appliance apply`."),
    "disk-full": Cause(FIX_HOST, "A disk that the engine needs is full.",
        "Make room, then `llm-appliance resume` the engine."),
    "toolchain-missing": Cause(FIX_HOST, "A compiler or library that vLLM needs is missing.",
        "Install what the message names, then `llm-appliance resume` the engine."),
    UNKNOWN_CAUSE: Cause(RESTART, "The engine ended and nothing says why.",
        "It is restarted. Look at the engine's last lines in the journal."),
}
# fmt: on

# Carriers: true, but the launcher may know what is behind them.
ENVELOPES = frozenset({"engine-died", "start-failed", UNKNOWN_CAUSE})
# What may have another cause behind it, which the kernel tells.
CARRIERS = ENVELOPES | {"worker-died", "engine-exception", "cuda-fault"}
