"""What really happens to vLLM boxes, from the log's lines and the machine's evidence to a cause and a remedy.

One row at least for each kind of trouble that is known from the field; those in which no engine ends expect no failure.
The lines are the real ones: of vLLM 0.32, PyTorch, NCCL, the kernel, systemd.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from appliance import names
from appliance.engine.verdict import Ending, verdict_of
from appliance.policy.causes import CAUSES, Remedy
from appliance.policy.failure import EXITED, KILLED, Evidence, Exit, Failure, Holder, Verdict, failure_of
from appliance.policy.hardware import Owner, Past
from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Gpu, Line, OomKill, Proc, Xid
from appliance.wire.kernellog import finding_of
from appliance.wire.vllmlog import Reader

CORPUS = Path(__file__).resolve().parents[2] / "corpus/vllmlog"
RESTART, WAIT, HOLD, FIX, REBOOT = Remedy.RESTART, Remedy.WAIT, Remedy.HOLD, Remedy.FIX_HOST, Remedy.REBOOT
OURS, PEER = "0000:65:00", "0000:66:00"
BOTH = Owner(gpus=frozenset({OURS, PEER}))
UNIT = "llm-engine@chat.service"
ERROR = "(EngineCore pid=7) ERROR 11-29 11:48:57 [x.py:1] "
KV = "(EngineCore pid=7) INFO 11-29 11:48:57 [k.py:1] Available KV cache memory: 3.1 GiB"
OOM = ERROR + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ENVELOPE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
API = "(APIServer pid=1) WARNING 11-29 11:49:17 [c.py:1] "
GONE = API + "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
FATAL = ERROR + "EngineCore encountered a fatal error."
RPC = ERROR + "TimeoutError: RPC call to sample_tokens timed out."
TAKEN = "ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization"
ILLEGAL = ERROR + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


def worker_died(code: str) -> str:
    return ERROR + f"Worker proc VllmWorker-1 died unexpectedly (exit code: {code}), shutting down executor."


def kernel(*lines: str, owner: Owner = BOTH) -> Evidence:
    found = [finding_of(Line(t=float(t), src="kernel", msg=line)) for t, line in enumerate(lines)]
    assert None not in found
    return Evidence(
        unit=UNIT,
        owner=owner,
        xids=[x for x in found if isinstance(x, Xid)],
        oom_kills=[x for x in found if isinstance(x, OomKill)],
    )


def xid(number: int, text: str = "", pci: str = OURS) -> str:
    return f"NVRM: Xid (PCI:{pci}): {number}{', ' + text if text else ''}"


def systemd(line: str) -> Evidence:
    found = finding_of(Line(t=0.0, src="systemd", msg=line))
    assert isinstance(found, OomKill)
    return Evidence(unit=UNIT, owner=BOTH, oom_kills=[found])


def held_by(*holders: Holder) -> Evidence:
    return Evidence(owner=BOTH, holders=holders)


def nvml(**more: object) -> Evidence:
    return Evidence(owner=BOTH, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """A run that ends: its lines (or a file of the corpus), vLLM's wait status, what else is seen."""

    what: str
    log: tuple[str, ...] | str
    cause: str
    remedy: Remedy = RESTART
    served: bool = False
    status: int | None = 256
    evidence: Evidence = field(default_factory=Evidence)
    end: Exit | None = None  # where systemd, not the launcher, had the last word

    def failure(self) -> Failure:
        raw = (CORPUS / f"{self.log}.txt").read_text().splitlines() if isinstance(self.log, str) else self.log
        reader = Reader()
        made = verdict_of(Ending(self.status, False, self.served), [reader.read(line) for line in raw])
        told = Verdict(made.cause or "", made.message, "serving" if self.served else "starting", hint=made.hint)
        if self.end is not None:
            failure = failure_of(self.end, None if self.end.code == KILLED else told, self.evidence)
        else:
            failure = failure_of(Exit("exit-code", EXITED, made.exit_status), told, self.evidence)
        assert failure is not None
        return failure


START = (
    Case("only the envelope", (ENVELOPE,), "start-failed"),
    Case("the cause is above the envelope", (OOM, ENVELOPE), "cuda-oom-load", HOLD),
    Case("GPU memory is taken by a program", (TAKEN,), "gpu-memory-taken", WAIT,
         evidence=held_by(Holder(99, "python3"))),
    Case("nobody looked who holds the memory", (TAKEN,), "gpu-memory-taken", WAIT),
    Case("GPU memory is held by an earlier run", (TAKEN,), "gpu-memory-leaked", WAIT,
         evidence=held_by(Holder(99, "VLLM::EngineCore", leftover=True), Holder(98, "python3"))),
    Case("GPU memory is held by nobody", (TAKEN,), "gpu-memory-leaked", WAIT, evidence=held_by()),
    Case("two engines of ours on one GPU", (TAKEN,), "gpu-memory-taken", HOLD,
         evidence=held_by(Holder(99, "VLLM::EngineCore", engine="embed"))),
    Case("a neighbour disturbs the memory profile",
         ("AssertionError: Error in memory profiling. Initial free memory 1",), "start-contention", WAIT),
    Case("no room for any KV block", ("ValueError: No available memory for the cache blocks. Try increasing",),
         "kv-none", HOLD),
    Case("the context does not fit", "kv-too-small", "kv-too-small", HOLD),
    Case("out of memory in the warm-up",
         ("RuntimeError: CUDA out of memory occurred when warming up sampler with 256",), "cuda-oom-warmup"),
    Case("out of memory in graph capture", (KV, OOM), "cuda-oom-warmup"),
    Case("the weights do not fit", (OOM,), "cuda-oom-load", HOLD),
    Case("the weights do not fit beside a neighbour", (OOM,), "gpu-memory-taken", WAIT,
         evidence=held_by(Holder(99, "python3"))),
    Case("no such model", "no-such-model", "model-not-found", HOLD),
    Case("no weights in the directory", "no-weights", "model-not-found", HOLD),
    Case("a gated repository", ("huggingface_hub.errors.GatedRepoError: 403 Client Error.",), "hub-denied", HOLD),
    Case("a broken weight file", "broken-weights", "model-unreadable", HOLD),
    Case("an unknown architecture", "unknown-model-type", "config-error", HOLD),
    Case("an architecture that vLLM dropped",
         ("ValueError: Model architectures ['X'] was supported in vLLM until v0.9",), "config-error", HOLD),
    Case("an architecture that cannot be looked into",
         ("ValueError: Model architectures ['X'] failed to be inspected.",), "config-error", HOLD),
    Case("no compiler", ("RuntimeError: Failed to find C compiler.",), "toolchain-missing", FIX),
    Case("ninja stops", ("ninja: build stopped: subcommand failed.",), "toolchain-missing", FIX),
    Case("a corrupt compile cache", ("RuntimeError: vLLM failed to compile the model. The most likely reason",),
         "start-failed"),
    Case("a user without an entry", ("KeyError: 'getpwuid(): uid not found: 998'",), "start-failed"),
    Case("an unusable cache directory", ("PermissionError: [Errno 13] Permission denied: '/.cache'",), "start-failed"),
    Case("systemd's limit of the start", (), "start-timeout", end=Exit("timeout", KILLED, 15)),
    Case("vLLM's own limit of the start", ("TimeoutError: Timed out waiting for engine core processes to start",),
         "start-timeout"),
    Case("the port is in use", ("OSError: [Errno 98] Address already in use",), "start-failed"),
    Case("the disk is full", ("OSError: [Errno 28] No space left on device: '/var/cache/llm-appliance/x'",),
         "disk-full", FIX),
    Case("vLLM is killed before it says anything", (), "start-failed", status=9),
)  # fmt: skip

FLIGHT = (
    Case("out of memory while serving", (KV, OOM, FATAL), "cuda-oom-serving", served=True),
    Case("illegal access", (ILLEGAL, FATAL), "cuda-fault", served=True),
    Case("illegal access with its Xid", (ILLEGAL, FATAL), "cuda-fault", served=True,
         evidence=kernel(xid(31, "pid=7, name=VLLM::EngineCor, Ch 00000008, MMU Fault"))),
    Case("cuBLAS fails", (ERROR + "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling",),
         "cuda-fault", served=True),
    Case("a Python error in the core", (FATAL, ERROR + "KeyError: 'x'"), "engine-exception", served=True),
    Case("the core is killed from outside", "core-killed", "engine-died", served=True, status=0),
    Case("the core is killed by the kernel", "core-killed", "host-oom-global", WAIT, served=True, status=0,
         evidence=kernel("Out of memory: Killed process 7 (VLLM::EngineCor) total-vm:1kB, anon-rss:1kB")),
    Case("a worker is killed", "worker-killed", "worker-died", served=True),
    Case("a worker aborts in NCCL's watchdog",
         ("[rank0]:[E1129 11:48:51.518000 p.cpp:1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
          worker_died("-6")), "hang-collective", served=True),
    Case("a worker dies in native code", (worker_died("-11"),), "worker-died", served=True),
    Case("the engine dies and vLLM exits 0", (GONE,), "engine-died", served=True, status=0),
    Case("workers do not answer", "worker-stopped", "hang-collective", served=True),
    Case("workers do not answer, for a GPU is failing", (RPC,), "gpu-ecc", FIX, served=True,
         evidence=kernel(xid(48), xid(63), xid(94))),
    Case("vLLM's monitor misjudges a worker", (worker_died("None"),), "worker-died", served=True),
)  # fmt: skip

GPU = (
    Case("a GPU fell off the bus", (ILLEGAL, FATAL), "gpu-lost", REBOOT, served=True,
         evidence=kernel(xid(79, "pid=7, name=VLLM::Worker, GPU has fallen off the bus."))),
    Case("NVML has lost a GPU", (FATAL,), "gpu-lost", REBOOT, served=True, evidence=nvml(nvml_code=15)),
    Case("a GPU is missing",
         ("ValueError: World size (2) is larger than the number of available GPUs (1) in this node.",),
         "gpu-lost", REBOOT, evidence=nvml(gpus=(Gpu(pci=OURS),))),
    Case("GSP does not answer", (RPC,), "driver-unresponsive", REBOOT, served=True,
         evidence=kernel(xid(119, "pid='<unknown>', name=<unknown>, Timeout waiting for RPC from GSP!"))),
    Case("contained memory error", (ERROR + "RuntimeError: CUDA error: uncorrectable ECC error encountered",),
         "gpu-ecc", served=True, evidence=kernel(xid(94, "pid=7, name=VLLM::Worker, Contained"))),
    Case("uncontained memory error", (FATAL,), "gpu-ecc", FIX, served=True, evidence=kernel(xid(95))),
    Case("memory error without a kernel log", (ERROR + "CUDA error: uncorrectable ECC error encountered",), "gpu-ecc",
         served=True),
    Case("the driver asks for a reboot", (FATAL,), "gpu-ecc", REBOOT, served=True, evidence=kernel(
         xid(48), "NVRM: GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")),
    Case("NVLink", (RPC,), "nvlink-fault", FIX, served=True, evidence=kernel(xid(74))),
    Case("NVSwitch", (RPC,), "nvlink-fault", REBOOT, served=True,
         evidence=kernel("nvidia-nvswitch1: SXid (PCI:0000:aa:00.0): 24007, Severity 1", xid(62), xid(45), xid(119))),
    Case("NCCL meets a link error", (ERROR + "RuntimeError: NCCL error: NVLS multicast failed",), "nvlink-fault",
         served=True),
    Case("the library was upgraded under a start", ("RuntimeError: Failed to infer device type",), "driver-mismatch",
         REBOOT, evidence=nvml(nvml_code=18)),
    Case("no driver after a kernel upgrade", ("RuntimeError: Failed to infer device type",), "driver-mismatch", FIX,
         evidence=nvml(nvml_code=9)),
    Case("the driver is too old", ("RuntimeError: The NVIDIA driver on your system is too old (found version 1)",),
         "driver-mismatch", REBOOT),
    Case("no kernel image", ("RuntimeError: CUDA error: no kernel image is available for execution on the device",),
         "config-error", HOLD),
    Case("no fabric manager", ("RuntimeError: CUDA error 802: system not yet initialized",), "nvlink-fault", WAIT),
    Case("no device nodes at boot", ("RuntimeError: CUDA unknown error - this may be due to (999)",), "gpu-lost", WAIT),
    Case("no GPU visible at boot", ("RuntimeError: No CUDA GPUs are available",), "gpu-lost", WAIT),
    Case("NVML does not answer, and the engine is gone", (GONE,), "driver-unresponsive", REBOOT, served=True,
         evidence=nvml(nvml_silent=True)),
    Case("NVML does not answer, and the configuration is wrong", "unknown-argument", "config-error", HOLD, status=512,
         evidence=nvml(nvml_silent=True)),
    Case("a process that cannot be killed", (), "driver-unresponsive", REBOOT, served=True, status=None,
         evidence=Evidence(unkillable=[Proc(t=0.0, pid=7, name="VLLM::Worker_TP0", state="D")])),
    Case("readings that are not supported say nothing", (FATAL,), "engine-exception", served=True,
         evidence=nvml(gpus=(Gpu(pci=OURS), Gpu(pci=PEER)), nvml_code=3)),
    Case("the machine lost power", (), "unclean-reset", end=Exit("success"), evidence=Evidence(unclean_boot=True)),
    Case("a row that could not be remapped", (FATAL,), "gpu-hardware-suspect", FIX, served=True,
         evidence=nvml(gpus=(Gpu(pci=OURS, remapped_rows=(0, 9, False, True)), Gpu(pci=PEER)))),
    Case("a CPU engine is none of the GPUs' business", (FATAL,), "engine-exception", served=True,
         evidence=kernel(xid(79), owner=Owner(gpus=frozenset()))),
)  # fmt: skip

HOST = (
    Case("killed at the unit's limit", "core-killed", "host-oom-cgroup", WAIT, served=True,
         evidence=kernel("Memory cgroup out of memory: Killed process 7 (VLLM::EngineCor) total-vm:1kB")),
    Case("the control group counted a kill", (GONE,), "host-oom-cgroup", WAIT, served=True,
         evidence=Evidence(oom_kills_counted=1)),
    Case("systemd saw the kill", (), "host-oom-cgroup", WAIT, end=Exit("oom-kill", KILLED, 9)),
    Case("systemd's line about the kill", (GONE,), "host-oom-cgroup", WAIT, served=True,
         evidence=systemd(f"{UNIT}: A process of this unit has been killed by the OOM killer.")),
    Case("a neighbour was killed", (GONE,), "engine-died", served=True,
         evidence=systemd("nginx.service: A process of this unit has been killed by the OOM killer.")),
    Case("systemd-oomd", (), "host-oom-oomd", WAIT, end=Exit("signal", KILLED, 9),
         evidence=systemd(f"{UNIT}: systemd-oomd killed 3 process(es) in this unit.")),
    Case("/dev/shm is too small",
         ("RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 1 MiB free",),
         "shm-full", WAIT),
    Case("NCCL finds /dev/shm full", (ERROR + "Error while creating shared memory segment /dev/shm/nccl-Xq (size 9), "
         "error: No space left on device (28)",), "shm-full", WAIT),
    Case("SIGBUS of a worker", (worker_died("-7"),), "shm-full", WAIT, served=True),
    Case("SIGBUS that the log does not know", (GONE,), "shm-full", WAIT, served=True,
         evidence=Evidence(exits=[Proc(t=0.0, pid=8, name="VLLM::Worker_TP1", event="exit", exit_code=-7)])),
    Case("somebody removed shared memory", (worker_died("-7"),), "shm-removed", WAIT, served=True,
         evidence=Evidence(shm_removed=["/dev/shm/psm_1234"])),
    Case("shared memory is gone at the next use",
         (ERROR + "FileNotFoundError: [Errno 2] No such file or directory: '/psm_1'",),
         "shm-removed", WAIT, served=True),
    Case("systemd's limit of starts", (), "start-failed", end=Exit("start-limit-hit")),
    Case("a sandbox that forbids executable memory", ("RuntimeError: could not create a primitive",), "start-failed"),
    Case("too many open files", (ERROR + "OSError: [Errno 24] Too many open files",), "engine-exception", served=True),
    Case("the log is lost, the worker's exit is known", (), "worker-died", served=True,
         end=Exit("exit-code", EXITED, 1),
         evidence=Evidence(exits=[Proc(t=0.0, pid=8, name="VLLM::Worker_TP1", event="exit", exit_code=-9)])),
    Case("the stop took too long", (), "engine-died", served=True, end=Exit("timeout", EXITED, 71)),
    Case("the launcher itself was killed", (), "engine-died", served=True, end=Exit("signal", KILLED, 9)),
    Case("the launcher could not be executed", (), "start-failed", end=Exit("exit-code", EXITED, 203)),
)  # fmt: skip

CONFIG = (
    Case("an unknown flag", "unknown-argument", "config-error", HOLD, status=512),
    Case("a flag that is refused, and the line is lost", (), "config-error", HOLD, status=512),
    Case("a context longer than the model's", "context-too-long", "config-error", HOLD),
    Case("heads that do not divide", ("ValueError: Total number of attention heads (9) must be divisible by tensor "
         "parallel size (2).",), "config-error", HOLD),
    Case("more GPUs than there are",
         ("ValueError: World size (4) is larger than the number of available GPUs (2) in this node.",),
         "config-error", HOLD, evidence=nvml(gpus=(Gpu(pci=OURS), Gpu(pci=PEER)))),
    Case("a rank beyond the devices", ("AssertionError: DP adjusted local rank 3 is out of bounds for 2 devices.",),
         "config-error", HOLD),
    Case("a quantization that the GPU lacks",
         ("ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: 89.",),
         "config-error", HOLD),
    Case("tool calling half configured", ("TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser",),
         "config-error", HOLD),
    Case("a short GPU name", ("vllm.third_party.pynvml.NVMLError_NotFound: Not Found",), "config-error", HOLD),
    Case("a MIG name", ("ValueError: invalid literal for int() with base 10: 'MIG-1234'",), "config-error", HOLD),
)  # fmt: skip


@pytest.mark.parametrize("case", [*START, *FLIGHT, *GPU, *HOST, *CONFIG], ids=lambda case: case.what)
def test_what_happens_gets_its_cause_and_remedy(case: Case) -> None:
    failure = case.failure()
    assert (failure.cause, failure.remedy) == (case.cause, case.remedy)
    assert failure.reason and failure.evidence
    assert CAUSES[failure.cause].advice


def test_a_driver_that_was_upgraded_under_an_engine_ends_nothing() -> None:
    assert failure_of(Exit("success", EXITED, 0), Verdict(requested=True), nvml(nvml_code=18)) is None
    assert failure_of(Exit("success"), None, nvml(nvml_code=18)) is None


# Lines that look like trouble and end nothing: no cause is found in them, whatever ends the engine later.
@pytest.mark.parametrize(
    "line",
    [
        "WARNING 11-29 11:48:51 [x.py:1] Sequence group 7 is preempted because there is not enough KV cache space.",
        "WARNING 11-29 11:48:51 [x.py:1] Triton kernel JIT compilation during inference: k. This causes a latency",
        "WARNING 11-29 11:48:51 [x.py:1] Compile cache file corrupted.",
        "WARNING 11-29 11:48:51 [x.py:1] Your device V100 doesn't support torch.bfloat16. Falling back to float16",
        "WARNING 11-29 11:48:51 [x.py:1] Unknown vLLM environment variable detected: VLLM_FOO",
        "WARNING 11-29 11:48:51 [x.py:1] Found ulimit of 1024 and failed to automatically increase",
        "INFO 11-29 11:48:51 [x.py:1] No available shared memory broadcast block found in 60 seconds.",
        "INFO 11-29 11:48:51 [x.py:1] [shutdown] API server: stopping engine client mode=abort",
        "ERROR 11-29 11:48:51 [x.py:1] The model `x` does not exist.",
        "ERROR 11-29 11:48:51 [x.py:1] This model's maximum context length is 4096 tokens.",
        "ERROR 11-29 11:48:51 [x.py:1] As of transformers v4.44, default chat template is no longer allowed",
        "ERROR 11-29 11:48:51 [x.py:1] The engine is currently busy and cannot accept new requests.",
    ],
)
def test_what_ends_nothing_is_no_cause(line: str) -> None:
    made = verdict_of(Ending(0, False, True), [Reader().read(f"(APIServer pid=1) {line}")])
    assert made.cause == "engine-died"


def test_the_machines_word_is_in_the_reason() -> None:
    failure = GPU[0].failure()
    assert "Xid 79 on 0000:65:00 of VLLM::Worker (7)" in failure.reason
    assert failure.pci == OURS


def test_who_holds_the_memory_is_named() -> None:
    failure = Case("", (TAKEN,), "", evidence=held_by(Holder(99, "python3"))).failure()
    assert "python3 (99)" in failure.reason


def test_a_status_of_the_launcher_does_not_outvote_the_machine() -> None:
    """A start that ran out of memory says 78, which would hold the engine; a neighbour's memory is no reason to."""
    told = Verdict("cuda-oom-load", "no room", "loading")
    failure = failure_of(Exit("exit-code", EXITED, names.LAUNCHER_CONFIG), told, held_by(Holder(1, "x")))
    assert failure is not None and failure.remedy is WAIT


@pytest.mark.parametrize(
    ("ended", "counts"), [(UNKNOWN, True), (100.0, True), (107.0, False), (96.0, True), (90.0, False)]
)
def test_a_programs_xid_counts_near_the_end_alone(ended: Maybe[float], counts: bool) -> None:
    near = Evidence(ended=ended, owner=BOTH, xids=[Xid(t=100.0, number=31, pci=OURS)])
    failure = failure_of(Exit("exit-code", EXITED, 71), Verdict("engine-died", phase="serving"), near)
    assert failure is not None and failure.cause == ("cuda-fault" if counts else "engine-died")


def test_what_stops_a_gpu_counts_however_old_it_is() -> None:
    old = Evidence(ended=5000.0, owner=BOTH, xids=[Xid(t=100.0, number=48, pci=OURS)], past=Past())
    failure = failure_of(Exit("exit-code", EXITED, 71), Verdict("engine-died", phase="serving"), old)
    assert failure is not None and failure.cause == "gpu-ecc"
