"""Everything that `doctor` looks at on this machine, asked at once and within one deadline.

What the looks themselves do is in `host/checkup`; here is which of them mean anything, and what they need to know of
the configuration and of the appliance's own files.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from appliance import clock, names
from appliance.config.model import Config
from appliance.config.placement import own_gpus
from appliance.gpufacts import Bus, Smi, Topology
from appliance.host import files, places, systemd
from appliance.host.checkup import disks, kernel, network, nvidia, pci, software, units
from appliance.host.checkup.together import gathered, in_thread
from appliance.host.command import Silent
from appliance.host.device import resolve
from appliance.hostfacts import (
    EngineState,
    Fact,
    Fleet,
    GatewaySays,
    Happened,
    HostFacts,
    NotKnown,
    Placed,
    Reached,
    UnitFacts,
)
from appliance.policy.checkup.driver import FABRIC_UNIT, PERSISTENCE_UNIT
from appliance.policy.checkup.machine import TEMPORARY
from appliance.quantity import UNKNOWN
from appliance.units.render import engine_digest

from . import gatewayclient, ports

LIMIT_S = 8.0
HUBS = {"huggingface": "https://huggingface.co", "modelscope": "https://www.modelscope.cn"}
INDEX = "https://pypi.org/simple/"
DRIVER_SIGN = "/proc/driver/nvidia/version"
PACKAGED = "/usr/lib/systemd/system/llm-gateway.service"


def look(config_path: str, config: Config) -> HostFacts:
    """All facts. Takes `LIMIT_S` and a second at most, whatever hangs."""
    return asyncio.run(_look(config_path, config))


async def _look(config_path: str, config: Config) -> HostFacts:
    where = places.from_environment()
    current = f"{where.state}/runtimes/current"
    bus = await in_thread(pci.bus)
    has_driver = bool(bus.gpus) or os.path.exists(DRIVER_SIGN) or shutil.which(nvidia.PROGRAM) is not None
    looks: dict[str, Callable[[], Awaitable[object]]] = {
        "memory": lambda: in_thread(kernel.memory),
        "clock": lambda: in_thread(kernel.clock_of),
        "limits": lambda: in_thread(kernel.limits),
        "stuck": kernel.stuck,
        "mounts": lambda: disks.mounts(_directories(config, where)),
        "shm": lambda: in_thread(disks.shared_memory),
        "sockets": lambda: in_thread(lambda: ports.sockets(config_path, config)),
        "reached": lambda: _reached(config),
        "infiniband": lambda: in_thread(pci.infiniband),
        "driver": nvidia.driver,
        "packages": software.packages,
        "runtime": lambda: in_thread(lambda: software.runtime(where.state, where.under_run(names.RUNTIME_STATE))),
        "toolchain": lambda: in_thread(lambda: software.toolchain(current, software.python_of(where.state))),
        "units": lambda: _units(config),
        "accounts": lambda: in_thread(software.accounts),
        "models": lambda: in_thread(lambda: software.models(config, where.under_state(config.models.directory))),
        "fleet": lambda: in_thread(lambda: _fleet(config, where)),
        "gateway": lambda: in_thread(lambda: _gateway(config_path)),
        "journal": lambda: in_thread(software.journal),
    }
    if has_driver:
        looks |= _driver_looks(where.under_run(names.GPU_STATE))
    found: dict[str, Any] = await gathered(looks, LIMIT_S)
    found["placed"] = _placed(config, bus, found.get("smi", NotKnown("no driver")))
    return HostFacts(
        root=os.geteuid() == 0, systemd=systemd.is_running(), container=kernel.container(),
        installed=os.path.exists(PACKAGED), bus=bus, **found,
    )  # fmt: skip


def _driver_looks(board: str) -> Mapping[str, Callable[[], Awaitable[object]]]:
    """The driver is asked one thing, then the others: no more than one process of ours is stuck in a sick one."""
    answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def smi() -> Smi:
        well = False
        try:
            found = await nvidia.smi(board)
            well = not found.error
            return found
        finally:
            if not answered.done():
                answered.set_result(well)

    async def topology() -> Topology:
        if not await asyncio.shield(answered):
            raise Silent("the driver does not answer")
        return await nvidia.topology()

    return {"smi": smi, "topology": topology}


async def _units(config: Config) -> tuple[UnitFacts, ...]:
    if not systemd.is_running():
        raise Silent("systemd does not run here")
    ours = [
        names.GATEWAY_UNIT, names.GATEWAY_SOCKET_UNIT, names.GATEWAY_ADMIN_SOCKET_UNIT, names.SUPERVISOR_UNIT,
        names.RUNTIME_UNIT, names.CONFIG_CHECK_UNIT, names.CONFIG_CHECK_PATH_UNIT, names.UNITCTL_SOCKET_UNIT,
        names.TARGET,
    ]  # fmt: skip
    engines = [names.engine_unit(instance) for instance in config.local_instances]
    return await units.units([*ours, *engines, FABRIC_UNIT, PERSISTENCE_UNIT])


def _directories(config: Config, where: places.Places) -> Mapping[str, str]:
    """What we write to, and what for; the first purpose of a directory stays."""
    wanted = [
        (where.state, "state and runtimes"),
        (where.under_state(config.models.directory), "models"),
        (names.CACHE, "caches"),
        *([(config.audit.directory, "the usage ledger")] * config.audit.enabled),
        ("/tmp", TEMPORARY),
    ]
    found: dict[str, str] = {}
    for path, purpose in wanted:
        found.setdefault(os.path.abspath(path), purpose)
    return found


async def _reached(config: Config) -> tuple[Reached, ...]:
    """The servers that this configuration's downloads come from."""
    models = [engine.model for engine in config.engines if not engine.remote]
    wanted = []
    if any(not model.startswith("/") and not names.is_builtin(model) for model in models):
        wanted.append((config.models.endpoint or HUBS[config.models.source], "the model hub"))
    if models and not config.runtime.wheelhouse:
        wanted.append((config.runtime.index_url or INDEX, "the package index"))
    asked = (network.reached(_without_user(url), purpose, config.network) for url, purpose in wanted)
    return tuple(await asyncio.gather(*asked))


def _without_user(url: str) -> str:
    """A question needs no password, and the list of processes shows it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _fleet(config: Config, where: places.Places) -> Fleet:
    told = files.read_json(where.under_run(names.FLEET_STATE)) or {}
    at, entries, now = told.get("at"), told.get("engines"), clock.wall()
    known: dict[str, Any] = entries if isinstance(entries, dict) else {}
    return Fleet(
        engines=tuple(_engine(config, where, name, known.get(name) or {}) for name in config.local_instances),
        age=max(now - at, 0.0) if isinstance(at, (int, float)) else UNKNOWN,
        incidents=tuple(_incidents(told.get("incidents"), now)),
    )


def _incidents(listed: object, now: float) -> Iterator[Happened]:
    """Without a cause it is evidence that an operator asked for."""
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and each.get("cause") and isinstance(each.get("at"), (int, float)):
            count = each.get("count")
            yield Happened(
                engine=str(each.get("engine")), cause=str(each.get("cause")), age=now - each["at"],
                count=count if isinstance(count, int) else 1,
            )  # fmt: skip


def _engine(config: Config, where: places.Places, name: str, entry: Mapping[str, Any]) -> EngineState:
    state = files.read_json(names.engine_state(name, where.run)) or {}
    phase = str(state.get("phase") or "")
    return EngineState(
        name=name,
        phase=phase,
        stale=phase not in ("", "exited") and state.get("digest") != engine_digest(config, name),
        state=str(entry.get("state") or ""),
        cause=str(entry.get("cause") or ""),
        reason=str(entry.get("reason") or ""),
    )


def _gateway(config_path: str) -> GatewaySays:
    begun = clock.monotonic()
    status = gatewayclient.read_status(config_path)
    return GatewaySays(state=str(status.get("state")), took=clock.monotonic() - begun)


def _placed(config: Config, bus: Bus, smi: Fact[Smi]) -> Fact[tuple[Placed, ...]]:
    """The GPUs of each instance by number; without the driver's word numbers are known, and UUIDs are not."""
    if resolve(config.runtime.device) == "cpu":
        return ()
    numbers = tuple(str(number) for number in range(len(bus.gpus)))
    present = numbers
    if not isinstance(smi, NotKnown) and smi.gpus:
        ordered = sorted(smi.gpus, key=lambda gpu: gpu.pci)
        present = tuple(gpu.uuid or str(number) for number, gpu in enumerate(ordered))
    found = []
    for instance in config.local_instances:
        own = own_gpus(config, instance, present)
        if present == numbers and any(not gpu.isdigit() for gpu in own):
            return NotKnown("the driver does not tell the UUIDs of GPUs")
        found.append(
            Placed(
                instance=instance,
                gpus=tuple(present.index(gpu) for gpu in own if gpu in present),
                missing=tuple(gpu for gpu in own if gpu not in present),
            )
        )
    return tuple(found)
