"""The causes: one word for each thing that can be the matter with an engine, what it means, and what is done about it.

The word stands in the journal (`LLM_CAUSE`), in `status`, in incidents and in metrics; `message` is its MESSAGE_ID, by
which `journalctl -x` finds the text of its row. A word or an id, once released, is never used for anything else.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Remedy(enum.Enum):
    """The classes of answer to a failure."""

    NONE = "none"  # not a fault
    RESTART = "restart"  # the same configuration again, within the budget
    WAIT = "wait-retry"  # again after a pause; the second time within the window it is held
    HOLD = "hold"  # no restart until the configuration or the files change
    FIX_HOST = "fix-host"  # no restart until the host changes
    REBOOT = "reboot"  # no restart; the machine or its driver needs one


NONE, RESTART, WAIT, HOLD, FIX_HOST, REBOOT = Remedy
UNKNOWN_CAUSE = "unknown"


@dataclass(frozen=True, slots=True)
class Cause:
    """One row: the remedy's class, the MESSAGE_ID, what happened, what an operator can do."""

    remedy: Remedy
    message: str
    meaning: str
    advice: str


# fmt: off
CAUSES: dict[str, Cause] = {
    # not a fault
    "idle": Cause(NONE, "515b68a2dc695aa0bd98edda6013059b",
        "The engine serves and has nothing to do.", "Nothing to do."),
    "starting": Cause(NONE, "cb052024e33f5a06b98ee963bbcce6b1",
        "The engine is starting.",
        "Wait; `llm-appliance status` shows the phase and how long the last start took."),
    "compiling": Cause(NONE, "cb9fd79d7f585b7a922a32bb18f5239c",
        "The engine compiles kernels or captures graphs.",
        "Wait; this happens at a start and at the first request of a new shape."),
    "busy-prefill": Cause(NONE, "e6200e9fe67b52c5968d22fd9edb7d80",
        "The engine reads long prompts and sends no tokens meanwhile.",
        "Nothing to do; a smaller max_num_batched_tokens makes the pauses shorter."),
    "slow": Cause(NONE, "f31c656e33e75224a73c3bd3116f30c3",
        "The engine makes progress, below its usual speed.",
        "Look for throttled GPUs and for more load than usual."),
    "asleep": Cause(NONE, "9688620da8715400a322a966811c8776",
        "The engine was put to sleep or paused.", "Wake it the way it was put to sleep."),
    "draining": Cause(NONE, "f4ce7ece7dc952968f8c62fb4c60adec",
        "The engine finishes its streams and takes no new calls.", "Wait."),
    # hang
    "hang-collective": Cause(RESTART, "ebf155f7cc78524690e1a84a73aef61c",
        "The GPUs wait for one another in a collective operation; no token comes.",
        "It is restarted. If it repeats, look at the links between the GPUs and at NCCL settings in the engine's env."),
    "hang-rank-absent": Cause(RESTART, "48c2cb8cef725af2a263a5cf2af92020",
        "One of the engine's workers is gone or stopped; the others wait for it.",
        "It is restarted. Look for what killed or stopped the worker."),
    "hang-scheduler": Cause(RESTART, "1639a1abac875ded9fa459782c826e0b",
        "Requests wait while the GPU is idle: the engine's scheduler is stuck.",
        "It is restarted. A newer vLLM may have the cure."),
    "hang-livelock": Cause(RESTART, "de30826911115409bd26d3af2919a0b8",
        "A process of the engine turns in a loop without progress.",
        "It is restarted. A newer vLLM may have the cure."),
    "hang-kernel": Cause(RESTART, "4e26ef968f7f5973abb61f629df9b6dd",
        "A GPU kernel does not end.",
        "It is restarted. If it repeats, look at the kernel log for Xid lines."),
    "hang-init": Cause(RESTART, "316b7e2582d355469dcf48153525c85d",
        "The engine's workers do not find one another at the start.",
        "It is restarted. Look at NCCL settings and at the links between the GPUs."),
    "hang-startup": Cause(RESTART, "eff9ffd0ba5f5c3d90e1ee3803b08d4f",
        "The start makes no progress.",
        "It is restarted. Look at the disk that the model lies on and at the engine's last lines."),
    # memory of the GPU
    "cuda-oom-serving": Cause(RESTART, "4e5f0a7721375e3bb8b0b9568d4a2545",
        "The GPU ran out of memory while serving.",
        "It is restarted. If it repeats, lower max_num_batched_tokens or gpu_memory_utilization."),
    "cuda-oom-warmup": Cause(RESTART, "b4a977adb38d577eb935fa66ee27b251",
        "The GPU ran out of memory in the warm-up.",
        "It is restarted. If it repeats, lower max_num_seqs, then gpu_memory_utilization."),
    "cuda-oom-load": Cause(HOLD, "700263b1040657fa97b1e213f6bb168a",
        "The model's weights do not fit into the GPU's memory.",
        "Use more GPUs (tensor_parallel_size), a quantised model or a smaller one, then `llm-appliance apply`."),
    "kv-none": Cause(HOLD, "e9022553f38e5befbc76406b7e935fef",
        "Nothing is left for the KV cache after the weights.",
        "Raise gpu_memory_utilization, or use more GPUs or a smaller model, then `llm-appliance apply`."),
    "kv-too-small": Cause(HOLD, "231bb2d77e36533fb6aecdabc49d2410",
        "The KV cache cannot hold one request of the model's full length.",
        "Lower max_model_len to the length that the message names, then `llm-appliance apply`."),
    "gpu-memory-leaked": Cause(WAIT, "4c0133d5e91953c8baa25fab30094103",
        "GPU memory of an earlier run is still in use.",
        "It is tried again. If it stays, end the process that nvidia-smi shows, or reset the GPU."),
    "gpu-memory-taken": Cause(WAIT, "7d8d4a3301b45aebb1a2453a9e81ca56",
        "Another program uses the GPU's memory.",
        "End that program or give the engine another GPU."),
    "start-contention": Cause(WAIT, "9350cb483ed15bc3a71fd0dfb3048a86",
        "Two programs changed the same GPU's memory while the engine measured it.",
        "It is tried again by itself."),
    # memory of the host
    "host-oom-cgroup": Cause(WAIT, "26b53f2045605f9aa6a14e942e3983a9",
        "The kernel killed a process of the engine at the engine's own memory limit.",
        "Raise memory_max of the engine, or lower what it needs on the host."),
    "host-oom-global": Cause(WAIT, "9b017e2b63b25aea915332d9fdef2330",
        "The host ran out of memory and the kernel killed a process of the engine.",
        "Find what uses the memory; add memory or run fewer engines."),
    "host-oom-oomd": Cause(WAIT, "106d66d187875479b104f21e72c683dd",
        "systemd-oomd killed the engine under memory pressure.",
        "Find what uses the memory; add memory or run fewer engines."),
    "shm-full": Cause(WAIT, "0bfc71d54306520d84e45f38dfab9e15",
        "The engine's /dev/shm is full.",
        "Raise shm_size of the engine, then `llm-appliance apply`."),
    "shm-removed": Cause(WAIT, "53d0e48845255343a051736ae5cbfaa1",
        "Shared memory of the engine was removed while it ran.",
        "Look for a job that cleans /dev/shm."),
    # died
    "engine-died": Cause(RESTART, "32b50bd873935a74a856d223a12cfcc7",
        "The engine's main process ended while it served.",
        "It is restarted. The engine's last lines in the journal say more."),
    "worker-died": Cause(RESTART, "b3f332de9845567c8279de3f354da076",
        "A worker process of the engine ended.",
        "It is restarted. The engine's last lines in the journal say more."),
    "engine-exception": Cause(RESTART, "3532e87db5945d4f985f772f00e27216",
        "vLLM stopped at an error of its own.",
        "It is restarted. If it repeats, report it to the vLLM project with the engine's last lines."),
    "cuda-fault": Cause(RESTART, "aef817f661215d07b6a1b9842653454a",
        "A GPU program failed (illegal access, assertion).",
        "It is restarted. Look at the kernel log for Xid lines."),
    "poison-request": Cause(RESTART, "bf62486938f85ea6a34e6e6022fa7366",
        "The same request was in flight at more than one death of the engine.",
        "It is restarted. Find the client by the request id."),
    "start-timeout": Cause(RESTART, "1afadfc36495568c9251efc0e7a9ae5c",
        "The engine was not ready within its start time.",
        "It is tried again. Raise startup_timeout if the model is large or its disk slow."),
    "start-failed": Cause(RESTART, "f0d5bc3cdbe756e8ad2f7109fae7962c",
        "The engine ended before it served.",
        "It is tried again. The first error in the engine's lines is the cause."),
    # hardware and driver
    "gpu-lost": Cause(REBOOT, "22467dd3b5215bf99a4aa062d7f2c716",
        "A GPU does not answer any more.",
        "Reboot the machine; then have the GPU and its power checked."),
    "gpu-ecc": Cause(RESTART, "f76805a4970e537997d334ec6307be31",
        "A GPU had a memory error that it could not correct.",
        "It is restarted. If it repeats, have the GPU checked."),
    "gpu-hardware-suspect": Cause(FIX_HOST, "ccc81f95ddcf51f88c2453f12593eae6",
        "A GPU behaves as if its hardware were broken.",
        "Run the vendor's diagnosis, or take the GPU out of the configuration."),
    "nvlink-fault": Cause(RESTART, "375fb8e227835b3c98e8307acfee1377",
        "A link between GPUs failed.",
        "It is restarted. If it repeats, have the link checked."),
    "driver-unresponsive": Cause(REBOOT, "7fce2d3f65e450199af04734bb72a686",
        "The NVIDIA driver does not answer.", "Reboot the machine."),
    "driver-mismatch": Cause(REBOOT, "572f9ed26ca057fab9fd459255832dce",
        "The NVIDIA driver in the kernel and its library differ in version.",
        "Reboot the machine."),
    "unclean-reset": Cause(WAIT, "ed193a616d9c569a90fe55a5056ef79c",
        "A GPU was reset while it was in use.", "It is tried again."),
    # will not get better by itself
    "config-error": Cause(HOLD, "a1ab7b30826f5566ac53049a28dfba72",
        "The engine cannot start with its configuration.",
        "Correct what the message names, then `llm-appliance apply`."),
    "model-not-found": Cause(HOLD, "2cc554b1a89e580c8418c3584a65e49e",
        "The model is not on this machine.",
        "Check the model's name and `llm-appliance models list`, then `llm-appliance apply`."),
    "model-unreadable": Cause(HOLD, "a878ae4048b95af387859d92f551e27b",
        "The model's files are damaged or may not be read.",
        "Remove and fetch the model again, or make its files readable for the user llm-engine."),
    "hub-denied": Cause(HOLD, "053c2e7e0780582c8f65957be6f5355e",
        "The model hub refused the download.",
        "Accept the model's terms at the hub and set token_file under [models], then `llm-appliance apply`."),
    "disk-full": Cause(FIX_HOST, "73a4bed9aa3751b0a3443c6c56788055",
        "A disk that the engine needs is full.",
        "Make room, then `llm-appliance resume` the engine."),
    "toolchain-missing": Cause(FIX_HOST, "18374ac8d3aa560c83ce2dd44208f627",
        "A compiler or library that vLLM needs is missing.",
        "Install what the message names, then `llm-appliance resume` the engine."),
    UNKNOWN_CAUSE: Cause(RESTART, "cada6bae0ec3592394842dc9f4fff271",
        "The engine ended and nothing says why.",
        "It is restarted. Look at the engine's last lines in the journal."),
}
# fmt: on

# Carriers: true, but the launcher may know what is behind them.
ENVELOPES = frozenset({"engine-died", "start-failed", UNKNOWN_CAUSE})
