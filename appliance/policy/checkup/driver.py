"""NVIDIA's driver: whether it is there, whole, one version, awake and answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from appliance.config.model import Config
from appliance.gpufacts import Bus, Driver, Smi
from appliance.hostfacts import HostFacts, NotKnown
from appliance.quantity import UNKNOWN

from .check import Said, good, listed, skipped, unknown, warning, wrong

FABRIC_UNIT, PERSISTENCE_UNIT = "nvidia-fabricmanager.service", "nvidia-persistenced.service"
REBOOT = "reboot in a maintenance window; engines that serve go on until then"
_FOREIGN = {"nouveau": "nouveau", "nova_core": "nova", "vfio-pci": "a virtual machine"}


def has_gpus(facts: HostFacts) -> bool:
    """Whether the checks of GPUs mean anything here; true also where nobody could look."""
    if isinstance(facts.bus, NotKnown) or facts.bus.gpus:
        return True
    return not isinstance(facts.driver, NotKnown) and bool(facts.driver.loaded)


def gpus(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Which GPUs the machine has, and whether the driver sees as many."""
    if isinstance(facts.bus, NotKnown):
        return [unknown(facts.bus)]
    if not facts.bus.gpus and not has_gpus(facts):
        built = not isinstance(facts.runtime, NotKnown) and facts.runtime.device == "cuda"
        if config.runtime.device == "cuda" or built:
            return [
                wrong(
                    "no NVIDIA device on the PCI bus, and the engines are to run on CUDA",
                    'seat the card and its power cable, or set [runtime] device = "cpu"',
                )
            ]
        return [skipped("no NVIDIA device on the PCI bus: engines run on the CPU")]
    return list(_seen(facts.bus, facts))


def _seen(bus: Bus, facts: HostFacts) -> Iterator[Said]:
    for gpu in bus.gpus:
        if gpu.bound in _FOREIGN:
            yield wrong(
                f"{gpu.address} belongs to {_FOREIGN[gpu.bound]} instead of NVIDIA's driver",
                "blacklist that driver, install NVIDIA's, rebuild the initramfs and reboot",
            )
    smi = facts.smi
    if not isinstance(smi, NotKnown) and not smi.error and len(smi.gpus) < len(bus.gpus):
        known = {gpu.pci for gpu in smi.gpus}
        lost = [gpu.address for gpu in bus.gpus if gpu.address.partition(".")[0] not in known]
        yield wrong(
            f"{len(bus.gpus)} GPUs on the PCI bus, {len(smi.gpus)} in the driver; missing: {listed(lost)}",
            "journalctl -k -g Xid says why; reboot, then look at power, cable and riser",
        )
    elif bus.gpus and not isinstance(smi, NotKnown) and smi.gpus:
        yield good(f"{len(bus.gpus)}: {listed(dict.fromkeys(gpu.name for gpu in smi.gpus))}")
    elif bus.gpus:
        yield good(f"{len(bus.gpus)} on the PCI bus")


def driver(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Module, libraries and their versions; whether the driver answers."""
    if not has_gpus(facts):
        return []
    if isinstance(facts.driver, NotKnown):
        return [unknown(facts.driver)]
    found = facts.driver
    return [_missing(found)] if not found.loaded else list(_loaded(found, facts))


def _missing(found: Driver) -> Said:
    if "nouveau" in found.modules:
        return wrong(
            "nouveau is loaded instead of NVIDIA's driver",
            "install NVIDIA's driver, blacklist nouveau, update-initramfs -u, reboot",
        )
    if found.on_disk == "":
        return wrong(
            f"no NVIDIA module for the running kernel {found.kernel}",
            f"dkms status; apt install linux-headers-{found.kernel} && dkms autoinstall",
        )
    version = "" if found.on_disk is UNKNOWN else f" {found.on_disk}"
    return wrong(
        f"NVIDIA's module{version} is not loaded",
        "modprobe nvidia; dmesg says why not (Secure Boot refuses unsigned modules)",
    )


def _loaded(found: Driver, facts: HostFacts) -> Iterator[Said]:
    count = 0
    for said in _faults(found, facts):
        count += 1
        yield said
    if not count:
        cuda = "" if isinstance(facts.smi, NotKnown) else facts.smi.cuda
        yield good(f"{found.loaded} for kernel {found.kernel}" + (f", runs CUDA {cuda}" if cuda else ""))


def _faults(found: Driver, facts: HostFacts) -> Iterator[Said]:
    smi = facts.smi
    if "libcuda.so.1" not in found.libraries:
        yield wrong(
            "libcuda.so.1 is not installed: CUDA cannot start",
            "apt install libcuda1 (Debian), libnvidia-compute-VERSION (Ubuntu), of the module's version",
        )
    others = {name: version for name, version in found.libraries.items() if version != found.loaded}
    if others or (not isinstance(smi, NotKnown) and smi.code == 18):
        told = listed(f"{name} {version}" for name, version in others.items()) or "the library another"
        yield wrong(f"the loaded module is {found.loaded}, {told}: no engine can start", REBOOT)
    elif found.on_disk is not UNKNOWN and found.on_disk not in ("", found.loaded):
        yield warning(f"{found.loaded} is loaded, {found.on_disk} lies on the disk: an upgrade waits", REBOOT)
    elif found.on_disk == "":
        yield warning(
            f"{found.loaded} is loaded, and no module lies on the disk for kernel {found.kernel}",
            f"apt install linux-headers-{found.kernel} && dkms autoinstall, before the next boot",
        )
    yield from _answers(smi)
    yield from _cuda(smi, facts)


def _answers(smi: Smi | NotKnown) -> Iterator[Said]:
    if isinstance(smi, NotKnown):
        if smi.state == "D":
            yield wrong(
                "nvidia-smi waits in the driver and cannot be killed: the driver does not answer",
                "journalctl -k -g Xid; reboot the machine",
            )
        elif smi.late:
            yield warning(
                f"{smi.why}: the driver is slow, or GPUs without persistence take long to wake",
                "systemctl enable --now nvidia-persistenced; time nvidia-smi",
            )
    elif smi.error and smi.code not in (18,):
        yield wrong(f"the driver does not answer: {smi.error}", "journalctl -k -g 'NVRM|Xid'; reboot the machine")


def _cuda(smi: Smi | NotKnown, facts: HostFacts) -> Iterator[Said]:
    """Within one major version older drivers run newer CUDA."""
    runtime = facts.runtime
    if isinstance(smi, NotKnown) or isinstance(runtime, NotKnown):
        return
    runs, built = (text.partition(".")[0] for text in (smi.cuda, runtime.cuda))
    if runs.isdigit() and built.isdigit() and int(runs) < int(built):
        yield wrong(
            f"driver {smi.driver} runs CUDA {smi.cuda}, the runtime {runtime.name} needs CUDA {runtime.cuda}",
            "install a newer driver",
        )


def nodes(facts: HostFacts, config: Config) -> Iterable[Said]:
    """/dev/nvidia*: there, and open to the engines' user."""
    found = facts.driver
    if not has_gpus(facts) or isinstance(found, NotKnown) or not found.loaded:
        return []
    if found.unreadable:
        return [
            wrong(
                f"the engines' user may not open {listed(f'/dev/{name}' for name in found.unreadable)}",
                "set NVreg_DeviceFileMode=0666 for the module nvidia, or mend the udev rule that changed it",
            )
        ]
    count = 0 if isinstance(facts.bus, NotKnown) else len(facts.bus.gpus)
    here = sum(name[len("nvidia") :].isdigit() for name in found.nodes)
    if "nvidiactl" in found.nodes and here >= count:
        return [good(f"/dev/nvidiactl and {here} GPU{'s' * (here != 1)}, open to the engines' user")]
    made = "made by nvidia-modprobe at an engine's start" if found.modprobe else "nvidia-modprobe is not installed"
    said = (
        f"/dev/nvidiactl {'is there' if 'nvidiactl' in found.nodes else 'is missing'}, {here} of {count} GPUs; {made}"
    )
    return [good(said)] if found.modprobe else [wrong(said, "apt install nvidia-modprobe; nvidia-modprobe -c0 -u")]


def uvm(facts: HostFacts, config: Config) -> Iterable[Said]:
    """nvidia-uvm, without which nvidia-smi works and CUDA does not."""
    found = facts.driver
    if not has_gpus(facts) or isinstance(found, NotKnown) or not found.loaded:
        return []
    if "nvidia_uvm" in found.modules and "nvidia-uvm" in found.nodes:
        return [good("nvidia-uvm is loaded, /dev/nvidia-uvm is there")]
    if found.modprobe:
        return [good("nvidia-uvm is loaded by nvidia-modprobe at an engine's start")]
    return [
        wrong(
            "nvidia-uvm is not loaded and nvidia-modprobe not installed: CUDA cannot start",
            "apt install nvidia-modprobe; nvidia-modprobe -c0 -u",
        )
    ]


def persistence(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Without it the driver lets each GPU go when nobody uses it: starts take seconds longer, settings are lost."""
    if not has_gpus(facts):
        return []
    if isinstance(facts.smi, NotKnown):
        return [unknown(facts.smi)]
    told = [gpu for gpu in facts.smi.gpus if gpu.persistence is not UNKNOWN]
    if not told:
        return [unknown("no GPU tells")]
    off = [gpu.pci for gpu in told if gpu.persistence is False]
    if not off:
        return [good("on")]
    return [
        warning(
            f"off on {listed(off)}: the driver wakes the GPU for each start",
            f"systemctl enable --now {PERSISTENCE_UNIT.partition('.')[0]}",
        )
    ]


def fabric(facts: HostFacts, config: Config) -> Iterable[Said]:
    """NVSwitch machines: CUDA answers 802 until the fabric manager of the driver's own version runs."""
    if not has_gpus(facts) or isinstance(facts.bus, NotKnown):
        return []
    gpus = () if isinstance(facts.smi, NotKnown) else facts.smi.gpus
    states = {gpu.fabric for gpu in gpus if gpu.fabric}
    if not facts.bus.switches and not states:
        return [skipped("no NVSwitch")]
    return list(_fabric(facts, states)) or [good(f"the NVLink fabric is {listed(sorted(states)) or 'there'}")]


def _fabric(facts: HostFacts, states: set[str]) -> Iterator[Said]:
    switches = 0 if isinstance(facts.bus, NotKnown) else facts.bus.switches
    units = () if isinstance(facts.units, NotKnown) else facts.units
    manager = next((unit for unit in units if unit.name == FABRIC_UNIT), None)
    version = "" if isinstance(facts.driver, NotKnown) else facts.driver.loaded
    packaged = {} if isinstance(facts.packages, NotKnown) else facts.packages.driver
    installed = next((found for name, found in packaged.items() if name.startswith("nvidia-fabricmanager")), "")
    if installed and version and not installed.partition("-")[0].endswith(version):
        yield wrong(
            f"the fabric manager is {installed}, the driver {version}: it refuses to run",
            "install the fabric manager of the driver's exact version, then reboot",
        )
    elif switches and manager is None and not isinstance(facts.units, NotKnown):
        yield wrong(
            "NVSwitches, and no fabric manager is installed: CUDA answers 802",
            "install nvidia-fabricmanager of the driver's exact version and enable it",
        )
    elif switches and manager is not None and manager.properties.get("ActiveState") != "active":
        yield wrong(
            f"{FABRIC_UNIT} is {manager.properties.get('ActiveState')}",
            "systemctl enable --now nvidia-fabricmanager; journalctl -u nvidia-fabricmanager",
        )
    elif states - {"Completed"}:
        yield wrong(f"the NVLink fabric is {listed(sorted(states))}", "journalctl -u nvidia-fabricmanager; reboot")
