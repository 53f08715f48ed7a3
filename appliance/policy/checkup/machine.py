"""The machine itself: memory, shared memory, limits, disks, compilers, the clock, upgrades that nobody asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from appliance.config.model import Config
from appliance.hostfacts import HostFacts, Limits, Memory, ModelFiles, Mount, NotKnown, SharedMemory, is_away
from appliance.quantity import UNKNOWN, Maybe, format_size

from .check import Said, good, listed, skipped, unknown, warning, wrong
from .driver import has_gpus
from .links import spans

GIB = 1 << 30
ROOM_FAIL, ROOM_WARN = 256 << 20, 2 * GIB  # free: what logs and state need; what an engine's caches take
INODES = 10_000
TEMPORARY = "temporary files"
LOW_MEMORY, SWAPPED = 0.05, 0.05  # shares of main memory
STALLED, DISK_STALLED = 10.0, 40.0  # percent of a minute
RING_BYTES, SHM_ROOM = 160 << 20, GIB  # vLLM's broadcast ring for each engine; what several ranks are safe with
LEFT_BYTES = GIB
FILES, BACKLOG, MAPS, TASKS = 65536, 4096, 65530, 2048
MOST_FILES_USED = 0.8
_DRIVER_MARKS = ("nv", "uvm", "os_acquire", "rm_")  # how the driver's functions begin
_OURS = ("vllm", "nvidia", "llm-")


def memory(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Main memory, and what has died for want of it."""
    if isinstance(facts.memory, NotKnown):
        return [unknown(facts.memory)]
    found, models = facts.memory, () if isinstance(facts.models, NotKnown) else facts.models
    faults = list(_memory(found, models))
    return faults or [good(f"{format_size(found.available)} of {format_size(found.total)} available")]


def _memory(found: Memory, models: tuple[ModelFiles, ...]) -> Iterator[Said]:
    if found.total and found.available < LOW_MEMORY * found.total:
        yield wrong(
            f"{format_size(found.available)} of {format_size(found.total)} are available",
            "systemd-cgtop -m shows who has it; end that, or run fewer engines",
        )
    large = [model.model for model in models if model.size is not UNKNOWN and model.size > found.total]
    if large:
        yield warning(
            f"{listed(large)} is larger than main memory ({format_size(found.total)}): loading reads it over and over",
            "add memory, or use a quantised model",
        )
    if found.oom_kills is not UNKNOWN and found.oom_kills:
        times = f"{found.oom_kills} time" + "s" * (found.oom_kills != 1)
        yield warning(
            f"the kernel has killed for want of memory {times} since boot",
            "journalctl -k -g 'Killed process' names them; add memory, run fewer engines, or set memory_max",
        )
    if found.stalled is not UNKNOWN and found.stalled > STALLED:
        yield warning(
            f"programs wait for memory {found.stalled:.0f} % of the time", "run fewer programs beside engines"
        )


def stalls(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Whether everything waits for a disk: log lines and caches are written beside the tokens."""
    if isinstance(facts.memory, NotKnown) or facts.memory.disk_stalled is UNKNOWN:
        return [unknown("the kernel does not tell (/proc/pressure/io)")]
    share = facts.memory.disk_stalled
    if share > DISK_STALLED:
        return [
            warning(
                f"something waits for a disk {share:.0f} % of the time",
                "iotop shows who; a model that loads is no fault, logs and swap are",
            )
        ]
    return [good(f"something waits for a disk {share:.0f} % of the time")]


def swap(facts: HostFacts, config: Config) -> Iterable[Said]:
    """An engine that is swapped out answers late, or looks hung."""
    if isinstance(facts.memory, NotKnown):
        return [unknown(facts.memory)]
    found = facts.memory
    if not found.swap:
        return [good("none")]
    if found.total and found.swap_used > SWAPPED * found.total:
        return [
            warning(
                f"{format_size(found.swap_used)} are swapped out",
                "free memory, then swapoff -a && swapon -a; sysctl vm.swappiness=1",
            )
        ]
    return [good(f"{format_size(found.swap)}, {format_size(found.swap_used)} of it used")]


def shared_memory(facts: HostFacts, config: Config) -> Iterable[Said]:
    """/dev/shm: too small ends an engine with SIGBUS; leftovers of crashes fill it."""
    faults = list(_configured_shm(facts, config))
    if isinstance(facts.shm, NotKnown):
        return [*faults, unknown(facts.shm)]
    faults += _host_shm(facts.shm, facts)
    found = facts.shm
    count = len(found.leftovers)
    left = f", {count} leftover{'s' * (count != 1)}" if count else ""
    return faults or [good(f"{format_size(found.free)} of {format_size(found.size)} free{left}")]


def _configured_shm(facts: HostFacts, config: Config) -> Iterator[Said]:
    for engine in config.engines:
        size, ranks = engine.shm_size, max((len(spans(facts).get(name, ())) for name in engine.instances), default=1)
        if size == "auto" or engine.remote:
            continue
        if size < RING_BYTES:
            yield wrong(
                f"{engine.name}: shm_size {format_size(size)} is less than vLLM's own {format_size(RING_BYTES)}",
                'leave shm_size out, or at least "1GiB"',
            )
        elif ranks > 1 and size < SHM_ROOM:
            yield warning(
                f"{engine.name}: shm_size {format_size(size)} for {ranks} GPUs is tight",
                'leave shm_size out, or at least "1GiB"',
            )


def _host_shm(found: SharedMemory, facts: HostFacts) -> Iterator[Said]:
    if found.size < SHM_ROOM:
        # Under systemd an engine has a /dev/shm of its own; without it, this is the one.
        say = warning if facts.systemd else wrong
        yield say(f"the host's /dev/shm has {format_size(found.size)}", "mount -o remount,size=50% /dev/shm")
    elif found.free < found.size // 10:
        yield warning(
            f"the host's /dev/shm is full: {format_size(found.free)} free", "ls -lS /dev/shm; remove what is left"
        )
    left = sum(each.size for each in found.leftovers)
    if left > min(LEFT_BYTES, found.size // 4):
        owners = listed(sorted({each.owner for each in found.leftovers}))
        yield warning(
            f"{len(found.leftovers)} leftovers of crashes ({format_size(left)}, of {owners}) lie in /dev/shm",
            f"rm /dev/shm/{found.leftovers[0].name} and those beside it, once nothing of that user runs",
        )


def limits(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Open files, locked memory, mappings: the kernel's, and what our units are left with."""
    faults = list(_unit_limits(facts))
    if isinstance(facts.limits, NotKnown):
        return [*faults, unknown(facts.limits)]
    faults += _kernel_limits(facts.limits)
    if not facts.systemd and facts.limits.files < FILES:
        faults.append(
            warning(f"a process may open {facts.limits.files} files", f"ulimit -n {FILES} before engines start")
        )
    each = facts.limits.files_each
    return faults or [good(f"up to {'?' if each is UNKNOWN else each} open files, units as packaged")]


def _kernel_limits(found: Limits) -> Iterator[Said]:
    rows: tuple[tuple[Maybe[int], int, str, str], ...] = (
        (found.files_each, FILES, "fs.nr_open", "no unit can open more files"),
        (found.maps, MAPS, "vm.max_map_count", "large models map more"),
        (found.backlog, BACKLOG, "net.core.somaxconn", "callers are refused while the gateway restarts"),
        (found.processes, 32768, "kernel.pid_max", "engines have hundreds of threads"),
    )
    for figure, least, name, meaning in rows:
        if figure is not UNKNOWN and figure < least:
            yield warning(
                f"{name} is {figure}: {meaning}",
                f"echo '{name} = {least}' > /etc/sysctl.d/90-llm.conf && sysctl --system",
            )
    if found.files_all is UNKNOWN or found.files_used is UNKNOWN:
        return
    if found.files_used > MOST_FILES_USED * found.files_all:
        yield warning(f"{found.files_used} of {found.files_all} files are open", "raise fs.file-max; lsof shows who")


def _unit_limits(facts: HostFacts) -> Iterator[Said]:
    for unit in () if isinstance(facts.units, NotKnown) else facts.units:
        engine = unit.name.startswith("llm-engine@")
        if not engine and unit.name != "llm-gateway.service":
            continue
        wanted = [("LimitNOFILE", FILES), *([("TasksMax", TASKS)] * engine)]
        for name, least in wanted:
            value = unit.properties.get(name, "")
            if value.isdigit() and int(value) < least:
                yield wrong(
                    f"{unit.name} has {name}={value}, and needs {least}",
                    f"systemctl edit {unit.name}; remove what sets it, or set {name}={least}",
                )
        if engine and unit.properties.get("LimitMEMLOCK", "infinity").isdigit() and has_gpus(facts):
            yield warning(
                f"{unit.name} may lock {unit.properties['LimitMEMLOCK']} bytes: CUDA pins host memory",
                f"systemctl edit {unit.name}; remove LimitMEMLOCK=",
            )


def disks(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Room where we write; caches that programs can be run from, on a disk of this machine."""
    if isinstance(facts.mounts, NotKnown):
        return [unknown(facts.mounts)]
    faults = [said for mount in facts.mounts for said in _kinds(mount)]
    seen: set[int] = set()
    rooms = []
    for mount in facts.mounts:
        if not mount.size:
            faults.append(unknown(f"{mount.path} ({mount.purpose}) lies on {mount.kind}, which does not answer"))
        elif mount.device not in seen:
            seen.add(mount.device)
            faults += _room(mount)
            rooms.append(f"{format_size(mount.free)} free for {mount.purpose}")
    return faults or [good("; ".join(rooms))]


def _room(mount: Mount) -> Iterator[Said]:
    remedy = "llm-appliance runtime list; llm-appliance models list; journalctl --disk-usage"
    passing = mount.purpose == TEMPORARY  # engines keep nothing there
    if mount.free < (ROOM_FAIL if passing else ROOM_WARN):
        say = wrong if mount.free < ROOM_FAIL and not passing else warning
        yield say(f"{format_size(mount.free)} free for {mount.path} ({mount.purpose})", remedy)
    if mount.inodes_free is not UNKNOWN and mount.inodes_free < INODES:
        yield warning(f"{mount.inodes_free} files can still be made on the disk of {mount.path}", remedy)


def _kinds(mount: Mount) -> Iterator[Said]:
    if mount.read_only:
        yield wrong(
            f"{mount.path} ({mount.purpose}) lies on a disk that is mounted read-only",
            "dmesg says whether its disk has failed; mount -o remount,rw",
        )
    if mount.purpose == "caches" and mount.noexec:
        yield wrong(
            f"{mount.path} is mounted noexec: compiled kernels cannot be loaded from there", "mount it with exec"
        )
    if mount.purpose in ("caches", "state and runtimes") and is_away(mount.kind):
        yield warning(
            f"{mount.path} ({mount.purpose}) lies on {mount.kind}: locks of compilers hang there",
            "put it on a disk of this machine",
        )


def toolchain(facts: HostFacts, config: Config) -> Iterable[Said]:
    """What Triton and FlashInfer compile with when an engine starts on a GPU."""
    if not has_gpus(facts) or config.runtime.device == "cpu":
        return [skipped("engines on the CPU compile nothing")]
    if not isinstance(facts.runtime, NotKnown) and facts.runtime.device == "cpu":
        return [skipped("the runtime is built for the CPU and compiles nothing")]
    if isinstance(facts.toolchain, NotKnown):
        return [unknown(facts.toolchain)]
    found = facts.toolchain
    missing = [name for name, there in (("gcc", found.c), ("g++", found.cxx)) if not there]
    if found.header is False:
        missing.append(f"Python.h of Python {found.python}")
    if missing:
        return [
            wrong(
                f"{listed(missing)} missing where engines look: kernels cannot be compiled",
                f"apt install gcc g++ python{found.python or '3'}-dev",
            )
        ]
    extra = [f"{name} {'' if path else 'not '}there" for name, path in (("ninja", found.ninja), ("nvcc", found.nvcc))]
    return [good(f"{found.c}, {found.cxx}, Python.h; {', '.join(extra)} (FlashInfer's own compiling uses them)")]


def clock(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Certificates, keys that expire, quotas of days and the ledger go by it."""
    if isinstance(facts.clock, NotKnown):
        return [unknown(facts.clock)]
    found = facts.clock
    if found.now < found.written - 86400:
        return [
            wrong(
                "the clock stands before this program was made: no certificate holds",
                "timedatectl set-ntp true; look at the board's battery",
            )
        ]
    if found.synchronised is False:
        if facts.container:
            return [skipped("a container has its host's clock")]
        return [warning("nothing keeps the clock right", "timedatectl set-ntp true, or apt install systemd-timesyncd")]
    return [good("kept right")] if found.synchronised is True else [unknown("the kernel does not say")]


def stuck(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Processes that no signal ends: the driver has them, or a disk."""
    if isinstance(facts.stuck, NotKnown):
        return [unknown(facts.stuck)]
    in_driver: list[str] = []
    other: list[str] = []
    for each in facts.stuck:
        theirs = each.where.startswith(_DRIVER_MARKS) or each.comm.lower().startswith(_OURS)
        where = f" in {each.where}" if each.where else ""
        (in_driver if theirs else other).append(f"{each.comm} (pid {each.pid}){where}")
    said = []
    if in_driver:
        said.append(wrong(f"cannot be killed: {listed(in_driver)}", "journalctl -k -g Xid; reboot the machine"))
    if other:
        said.append(
            warning(f"wait uninterruptibly: {listed(other)}", "look at their disk or network file system; dmesg")
        )
    return said or [good("no process waits where it cannot be killed")]


def upgrades(facts: HostFacts, config: Config) -> Iterable[Said]:
    """A driver that is replaced at night leaves engines that run and no engine that starts."""
    if not has_gpus(facts):
        return []
    if isinstance(facts.packages, NotKnown):
        return [unknown(facts.packages)]
    found = facts.packages
    if not found.driver:
        return [good("the driver comes from no package")]
    free = [name for name in found.driver if name not in found.held and not _is_spared(name, found.spared)]
    if found.unattended is UNKNOWN:
        return [unknown("apt-config does not answer")]
    if found.unattended and free:
        return [
            warning(
                f"unattended upgrades may replace {listed(sorted(free), 3)} under running engines",
                "apt-mark hold " + " ".join(sorted(free)[:4]) + ", and upgrade it with a reboot",
            )
        ]
    return [good("unattended upgrades leave the driver alone" if found.unattended else "no unattended upgrades")]


def _is_spared(name: str, patterns: tuple[str, ...]) -> bool:
    """Patterns are regular expressions that match at the beginning."""
    for pattern in patterns:
        try:
            if re.match(pattern, name):
                return True
        except re.error:
            continue
    return False
