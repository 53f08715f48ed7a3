"""What `doctor` learns of a machine's GPUs, as values: on the bus, in the driver's words, and how they are linked.

A figure that a GPU does not tell is UNKNOWN. `hostfacts` holds the rest, and what stands for a look that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.quantity import UNKNOWN, Maybe


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """A PCIe bridge on the way from a GPU to the root. `acs` is its ACS control register, 0 where it has none."""

    address: str
    acs: Maybe[int] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class PciGpu:
    """One GPU as the kernel sees it on the bus, driver or not. Speeds are GT/s."""

    address: str
    bound: str = ""  # the kernel driver that has it
    speed: Maybe[float] = UNKNOWN
    speed_max: Maybe[float] = UNKNOWN
    width: Maybe[int] = UNKNOWN
    width_max: Maybe[int] = UNKNOWN  # what the card can do
    numa: Maybe[int] = UNKNOWN
    iommu: str = ""  # identity, DMA, DMA-FQ, ... ; empty: no IOMMU
    bridges: tuple[Bridge, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus:
    """NVIDIA's devices on the PCI bus."""

    gpus: tuple[PciGpu, ...] = ()
    switches: int = 0  # NVSwitches


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """NVIDIA's driver: what is loaded, what lies on the disk, and the devices that lead to it."""

    kernel: str  # uname -r
    loaded: str = ""  # version of the loaded module; empty: none
    modules: frozenset[str] = frozenset()  # loaded, of those that matter here
    on_disk: Maybe[str] = UNKNOWN  # version of the module for this kernel; empty: there is none
    libraries: Mapping[str, str] = field(default_factory=dict)  # libcuda, libnvidia-ml: version
    nodes: frozenset[str] = frozenset()  # names in /dev
    unreadable: tuple[str, ...] = ()  # nodes that the engines' user may not open
    modprobe: bool = False  # nvidia-modprobe is there, which engines' units load nvidia-uvm with


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a GPU. `unit`: the systemd unit it runs in, empty where none or unseen."""

    pid: int
    name: str
    user: str = ""
    unit: str = ""
    mib: Maybe[float] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiGpu:
    """One GPU as the driver tells of it. `processes` is UNKNOWN where the source does not list them."""

    pci: str  # dddd:bb:dd
    uuid: str = ""
    name: str = ""
    persistence: Maybe[bool] = UNKNOWN
    ecc: Maybe[bool] = UNKNOWN
    uncorrected: Maybe[int] = UNKNOWN  # since the driver was loaded
    remapped: Maybe[tuple[int, int, bool, bool]] = UNKNOWN  # correctable, uncorrectable, pending, failed
    recovery: str = ""  # what the driver asks for; empty: nothing, or not told
    slowed: tuple[str, ...] = ()  # why the hardware holds clocks down now
    busy: Maybe[float] = UNKNOWN  # percent
    temperature: Maybe[float] = UNKNOWN
    used_mib: Maybe[float] = UNKNOWN
    fabric: str = ""  # state of the NVLink fabric; empty: not part of one
    compute_mode: str = ""
    processes: Maybe[tuple[GpuProcess, ...]] = UNKNOWN
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Smi:
    """All GPUs as the driver tells of them. `source` says who asked it, `code` is NVML's error."""

    source: str
    driver: str = ""
    cuda: str = ""  # the newest CUDA that the driver runs
    gpus: tuple[SmiGpu, ...] = ()
    error: str = ""
    code: Maybe[int] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How pairs of GPUs are linked, by their numbers in the driver's order: `NV12`, `PIX`, `PHB`, `SYS`, ...

    `peer` tells for each pair whether the driver lets them read each other's memory: `OK`, or its word why not.
    """

    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    numa: Mapping[int, str] = field(default_factory=dict)
    peer: Mapping[tuple[int, int], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Infiniband:
    """Ports of InfiniBand adapters: name -> state (`ACTIVE`, `DOWN`, ...)."""

    ports: Mapping[str, str] = field(default_factory=dict)


NCCL, WITHOUT_P2P, COPY = "nccl", "nccl-without-p2p", "copy"  # ways of working together; COPY: from memory to memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Work that two GPUs did together, in one `way`.

    `outcome`: `works`, `hangs` (killed at its deadline), `wrong` (other numbers arrived than were sent), `fails`.
    """

    pair: tuple[int, int]
    way: str
    outcome: str
    bytes_s: Maybe[float] = UNKNOWN
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpeed:
    """How fast a file of a model was read from its disk; `direct`: past the page cache."""

    path: str
    read: int
    seconds: float
    direct: bool
