"""Each GPU: its memory's errors, its clocks, and who else uses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from appliance import names
from appliance.config.model import Config
from appliance.gpufacts import GpuProcess, SmiGpu
from appliance.hostfacts import HostFacts, NotKnown, Placed
from appliance.quantity import UNKNOWN

from .check import Said, good, listed, skipped, unknown, warning, wrong
from .driver import has_gpus

LEAKED_MIB = 1024.0  # in use though no process shows; drivers keep some hundreds for themselves
WARM_C = 90.0
RESET = "stop what uses the GPU, nvidia-smi --gpu-reset -i {}, then llm-appliance resume the engine"


def memory_errors(facts: HostFacts, config: Config) -> Iterable[Said]:
    """ECC, remapped rows, and what the driver itself asks for."""
    if not has_gpus(facts):
        return []
    if isinstance(facts.smi, NotKnown):
        return [unknown(facts.smi)]
    faults = [said for gpu in facts.smi.gpus for said in _ill(gpu)]
    if faults:
        return faults
    if all(gpu.uncorrected is UNKNOWN and gpu.remapped is UNKNOWN for gpu in facts.smi.gpus):
        return [skipped("these GPUs count no memory errors")]
    off = [gpu.pci for gpu in facts.smi.gpus if gpu.ecc is False]
    return [good("no uncorrectable error, no row to be remapped" + (f"; ECC is off on {listed(off)}" if off else ""))]


def _ill(gpu: SmiGpu) -> Iterator[Said]:
    if gpu.error:
        yield wrong(f"GPU {gpu.pci}: {gpu.error}", "journalctl -k -g Xid; reset the GPU or reboot the machine")
    if gpu.recovery:
        remedy = "reboot the machine" if "reboot" in gpu.recovery.lower() else RESET.format(gpu.pci)
        yield wrong(f"GPU {gpu.pci}: the driver asks for: {gpu.recovery}", remedy)
    if gpu.remapped is not UNKNOWN and gpu.remapped[3]:
        yield wrong(f"GPU {gpu.pci}: rows of its memory cannot be remapped", "have it replaced; take it out of gpus")
    elif gpu.remapped is not UNKNOWN and gpu.remapped[2]:
        yield warning(f"GPU {gpu.pci} remaps rows of its memory at its next reset", RESET.format(gpu.pci))
    if gpu.uncorrected is not UNKNOWN and gpu.uncorrected > 0:
        yield warning(
            f"GPU {gpu.pci}: {gpu.uncorrected} uncorrectable memory errors since the driver was loaded",
            "journalctl -k -g Xid; if it repeats, have the GPU checked",
        )


def clocks(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Whether heat or the power supply holds a GPU back."""
    if not has_gpus(facts):
        return []
    if isinstance(facts.smi, NotKnown):
        return [unknown(facts.smi)]
    hot = []
    for gpu in facts.smi.gpus:
        heat = "" if gpu.temperature is UNKNOWN else f" at {gpu.temperature:.0f} C"
        if gpu.slowed:
            hot.append(
                warning(
                    f"GPU {gpu.pci} is held back{heat} by {listed(dict.fromkeys(gpu.slowed))}",
                    "look at fans, airflow, power cables and supply; nvidia-smi -pl WATTS lowers what it draws",
                )
            )
        elif gpu.temperature is not UNKNOWN and gpu.temperature >= WARM_C:
            hot.append(warning(f"GPU {gpu.pci} is at {gpu.temperature:.0f} C", "look at fans and airflow"))
    return hot or [good("nothing holds a GPU back now")]


def users(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Somebody else's processes on our GPUs, ours outside their units, and memory that nobody has."""
    if not has_gpus(facts):
        return []
    if isinstance(facts.smi, NotKnown):
        return [unknown(facts.smi)]
    found = [said for number, gpu in enumerate(facts.smi.gpus) for said in _users(number, gpu, facts)]
    if found:
        return found
    if all(gpu.processes is UNKNOWN for gpu in facts.smi.gpus):
        return [unknown(f"{facts.smi.source} does not list processes", "install nvidia-smi")]
    return [good("nobody but our engines")]


def _users(number: int, gpu: SmiGpu, facts: HostFacts) -> Iterator[Said]:
    if gpu.compute_mode == "Prohibited":
        yield wrong(f"GPU {gpu.pci} is closed to computing (compute mode Prohibited)", f"nvidia-smi -i {gpu.pci} -c 0")
    sharing = [each.instance for each in _placed(facts) if number in each.gpus]
    if gpu.compute_mode == "Exclusive_Process" and len(sharing) > 1:
        yield wrong(
            f"GPU {gpu.pci} takes one process (Exclusive_Process), and {listed(sharing)} share it",
            f"nvidia-smi -i {gpu.pci} -c 0",
        )
    if gpu.processes is UNKNOWN:
        return
    ours = sharing or not _placed(facts)
    for process in gpu.processes:
        if _is_engine(process):
            continue
        told = f"{process.name} (pid {process.pid}{', user ' + process.user if process.user else ''})"
        memory = "" if process.mib is UNKNOWN else f", {process.mib / 1024:.1f} GiB"
        if process.user == names.ENGINE_USER:
            yield wrong(
                f"GPU {gpu.pci}: {told}{memory} is left of an engine, outside its unit", f"kill -9 {process.pid}"
            )
        elif ours:
            yield warning(
                f"GPU {gpu.pci} is used by {told}{memory}",
                "end it, or give the engine another GPU or a smaller gpu_memory_utilization",
            )
    if not gpu.processes and gpu.used_mib is not UNKNOWN and gpu.used_mib > LEAKED_MIB:
        yield warning(
            f"GPU {gpu.pci}: {gpu.used_mib / 1024:.1f} GiB are in use, and no process has them",
            f"nvidia-smi --gpu-reset -i {gpu.pci}, else reboot (in a container processes of the host do not show)",
        )


def _is_engine(process: GpuProcess) -> bool:
    return names.instance_of(process.unit) is not None or process.unit == names.RUNTIME_UNIT


def _placed(facts: HostFacts) -> tuple[Placed, ...]:
    return () if isinstance(facts.placed, NotKnown) else facts.placed


def placement(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Whether the GPUs that the configuration names are here."""
    if not has_gpus(facts):
        named = [engine.name for engine in config.engines if engine.gpus not in ("auto", ()) and not engine.remote]
        if named and config.runtime.device != "cpu":
            return [wrong(f"{listed(named)} name GPUs, and this machine has none", "remove gpus, or set it to []")]
        return []
    if isinstance(facts.placed, NotKnown):
        return [unknown(facts.placed)]
    missing = [
        wrong(f"{each.instance} is to run on GPU {listed(each.missing)}, which is not here", "nvidia-smi -L; mend gpus")
        for each in facts.placed
        if each.missing
    ]
    none = [each.instance for each in facts.placed if not each.gpus and not each.missing]
    told = listed(f"{each.instance} on {listed(map(str, each.gpus))}" for each in facts.placed if each.gpus)
    if missing or none == [each.instance for each in facts.placed]:
        return missing or [good("no engine uses a GPU")]
    return [good(told)]
