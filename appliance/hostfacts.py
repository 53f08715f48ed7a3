"""What `doctor` learns of a machine, as values: `host/checkup` reads them, `policy/checkup` judges them.

Each look gives one fact or `NotKnown` with the reason: what could not be looked at is neither good nor bad. A figure
within a fact that a machine does not tell is UNKNOWN or None, as its type says. Sizes are bytes, times seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar, Union

from appliance.gpufacts import Bus, Driver, Infiniband, Smi, Topology
from appliance.quantity import UNKNOWN, Maybe

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NotKnown:
    """Why a fact is not there. `late`: no answer came in time; `state` is what the process that asked was doing."""

    why: str
    late: bool = False
    state: str = ""  # the kernel's letter: D waits in the kernel and cannot be killed


Fact: TypeAlias = Union[T, NotKnown]  # noqa: UP007 (a generic alias needs Union on 3.10)
NOT_LOOKED = NotKnown("was not looked at")


# --- the machine ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Main memory, swap, and what the kernel did for want of it."""

    total: int
    available: int
    swap: int = 0
    swap_used: int = 0
    oom_kills: Maybe[int] = UNKNOWN  # since boot, of everybody's processes
    stalled: Maybe[float] = UNKNOWN  # percent of the last minute in which something waited for memory
    disk_stalled: Maybe[float] = UNKNOWN  # the same for disks


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The system clock. `written`: when this program's files were, which the clock cannot be before."""

    now: float
    written: float
    synchronised: Maybe[bool] = UNKNOWN


# Over a network, or a program in between: asking may take for ever, and locks may hang.
_AWAY = ("nfs", "cifs", "smb", "9p", "ceph", "glusterfs", "lustre", "afs", "fuse", "beegfs", "gpfs")


def is_away(kind: str) -> bool:
    """Whether a file system of that kind lies elsewhere."""
    return kind.startswith(_AWAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """The file system that a directory of ours lies on (or will: of its nearest parent that exists)."""

    path: str
    purpose: str
    kind: str = ""  # ext4, nfs4, ...
    size: int = 0
    free: int = 0
    inodes_free: Maybe[int] = UNKNOWN
    noexec: bool = False
    read_only: bool = False
    device: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A file in shared memory that no process of its owner can be using."""

    name: str
    owner: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """The host's /dev/shm; engines under systemd have one of their own."""

    size: int
    free: int
    leftovers: tuple[Leftover, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the kernel allows at most. `files`: what this process may open (hard)."""

    files: int
    files_each: Maybe[int] = UNKNOWN  # fs.nr_open: what any limit can be raised to
    files_all: Maybe[int] = UNKNOWN  # fs.file-max
    files_used: Maybe[int] = UNKNOWN
    maps: Maybe[int] = UNKNOWN  # vm.max_map_count
    processes: Maybe[int] = UNKNOWN  # kernel.pid_max
    backlog: Maybe[int] = UNKNOWN  # net.core.somaxconn


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A process that waits in the kernel, uninterruptibly, at two looks with the same place."""

    pid: int
    comm: str
    where: str


# --- network ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A TCP socket that listens. `owner` is empty where this user may not see it.

    `ours`: the gateway's process has it (True), another one (False); not known of systemd's and of what is not seen.
    """

    host: str
    port: int
    user: str
    owner: str = ""  # NAME (pid N)
    pid: Maybe[int] = UNKNOWN
    ours: Maybe[bool] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """TCP on this machine. `first`, `last`: ports that outgoing connections take.

    `applied`: the addresses of the settings that were applied last; empty where no unit of systemd's has them.
    """

    listening: tuple[Listening, ...] = ()
    applied: tuple[str, ...] = ()
    time_wait: Maybe[int] = UNKNOWN
    first: int = 32768
    last: int = 60999


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """One server that downloads need, asked as `user`. `fault` is empty where it answered (with `status`)."""

    url: str
    purpose: str
    user: str
    service_user: str
    status: int = 0
    fault: str = ""
    kind: str = ""  # dns, tls, refused, late, other
    took: float = 0.0


# --- software ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """The driver's packages and whether something replaces them unasked."""

    driver: Mapping[str, str] = field(default_factory=dict)  # package: version, installed ones
    held: frozenset[str] = frozenset()
    unattended: Maybe[bool] = UNKNOWN  # whether unattended upgrades are turned on
    spared: tuple[str, ...] = ()  # patterns of packages that those leave alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """What compiles kernels when an engine starts, found on the engines' own search path. Empty: not there."""

    c: str = ""
    cxx: str = ""
    ninja: str = ""
    nvcc: str = ""
    python: str = ""  # major.minor of the runtime
    header: Maybe[bool] = UNKNOWN  # its Python.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The active vLLM environment."""

    name: str = ""
    version: str = ""
    device: str = ""
    complete: bool = False
    usable: bool = False
    cuda: str = ""  # the CUDA that its torch was built for
    builder: str = ""  # phase of llm-runtime
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """One of our units: its properties in systemd's names, and its control group's memory.events.

    `edited`: which of its files changed since the generator last wrote for it, as at each daemon-reload; empty also
    for a unit that it writes nothing for.
    """

    name: str
    properties: Mapping[str, str]
    edited: tuple[str, ...] = ()
    events: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A system user of ours."""

    name: str
    uid: int
    groups: frozenset[str]
    shell: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A configured model: where its files are, whether an engine can be started with it, and how large they are."""

    model: str
    path: str
    engines: tuple[str, ...]
    standing: str  # "ready", or why not
    size: Maybe[int] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The GPUs that the configuration gives an instance, by their numbers in the order of PCI addresses.

    `missing` are those that it names and that are not here.
    """

    instance: str
    gpus: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """What is said of an engine: by its launcher (`phase`, `digest`) and by the supervisor."""

    name: str
    phase: str = ""
    stale: bool = False  # it runs with another configuration than the one in force
    state: str = ""
    cause: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """One of the supervisor's last incidents: `count` deaths of that cause, the last `age` seconds ago."""

    engine: str
    cause: str
    age: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All engines of this machine, and how old the supervisor's word is."""

    engines: tuple[EngineState, ...] = ()
    age: Maybe[float] = UNKNOWN
    incidents: tuple[Happened, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySays:
    """The gateway's answer to a question for its status. `took`: seconds until it came."""

    state: str
    took: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """systemd's journal. `kept`: it outlives a reboot."""

    kept: bool
    readable: bool = True


# --- together ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Everything; what was not looked at is `NotKnown`."""

    root: bool = False
    systemd: bool = False
    container: str = ""  # which kind this machine is one of, empty for a machine of its own
    installed: bool = False  # as a package, with units
    memory: Fact[Memory] = NOT_LOOKED
    clock: Fact[Clock] = NOT_LOOKED
    mounts: Fact[tuple[Mount, ...]] = NOT_LOOKED
    shm: Fact[SharedMemory] = NOT_LOOKED
    limits: Fact[Limits] = NOT_LOOKED
    stuck: Fact[tuple[Stuck, ...]] = NOT_LOOKED
    sockets: Fact[Sockets] = NOT_LOOKED
    reached: Fact[tuple[Reached, ...]] = NOT_LOOKED
    bus: Fact[Bus] = NOT_LOOKED
    driver: Fact[Driver] = NOT_LOOKED
    smi: Fact[Smi] = NOT_LOOKED
    topology: Fact[Topology] = NOT_LOOKED
    infiniband: Fact[Infiniband] = NOT_LOOKED
    packages: Fact[Packages] = NOT_LOOKED
    toolchain: Fact[Toolchain] = NOT_LOOKED
    runtime: Fact[Runtime] = NOT_LOOKED
    units: Fact[tuple[UnitFacts, ...]] = NOT_LOOKED
    accounts: Fact[tuple[Account, ...]] = NOT_LOOKED
    models: Fact[tuple[ModelFiles, ...]] = NOT_LOOKED
    fleet: Fact[Fleet] = NOT_LOOKED
    placed: Fact[tuple[Placed, ...]] = NOT_LOOKED
    gateway: Fact[GatewaySays] = NOT_LOOKED
    journal: Fact[Journal] = NOT_LOOKED
