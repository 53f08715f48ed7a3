"""Our units as systemd has them after all drop-ins, with what their control groups have been through."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance import names
from appliance.errors import Unreachable
from appliance.host import systemd
from appliance.host.proc import CGROUPS
from appliance.hostfacts import UnitFacts
from appliance.wire import procsys

DEADLINE_S = 6.0
PROPERTIES = (
    "Id", "LoadState", "ActiveState", "Result", "NeedDaemonReload", "FragmentPath", "DropInPaths", "SourcePath",
    "ControlGroup", "Restart", "KillMode", "OOMPolicy", "TimeoutStopUSec", "WatchdogUSec", "LimitNOFILE",
    "LimitMEMLOCK", "TasksMax", "MemoryMax", "PrivateDevices", "DevicePolicy", "DeviceAllow", "MemoryDenyWriteExecute",
    "RestrictAddressFamilies", "TemporaryFileSystem", "ReadWritePaths", "NoExecPaths", "ProcSubset", "PrivateNetwork",
    "IPAddressDeny", "LogRateLimitIntervalUSec",
)  # fmt: skip


async def units(
    wanted: Sequence[str], cgroups: str = CGROUPS, generated: str = names.GENERATED
) -> tuple[UnitFacts, ...]:
    """Each of the named units that systemd knows a file for. Raises Unreachable."""
    command = systemd.Command(("show", "--no-pager", f"--property={','.join(PROPERTIES)}", "--", *wanted), _read)
    blocks = await systemd.ask_async(command, DEADLINE_S)
    return tuple(
        UnitFacts(
            name=block["Id"],
            properties=block,
            edited=_edited(block, generated),
            events=_events(block.get("ControlGroup", ""), cgroups),
        )
        for block in blocks
        if block.get("Id") and block.get("LoadState") not in ("not-found", None)
    )


def _read(done: systemd.Completed) -> list[dict[str, str]]:
    if done.status != 0:
        raise Unreachable(f"systemctl show failed: {done.errors.strip() or f'status {done.status}'}")
    return systemd.parse_show(done.output)


def _edited(block: Mapping[str, str], generated: str) -> tuple[str, ...]:
    """Files of a unit that are newer than what the generator made of its source."""
    places = [block.get(name, "") for name in ("SourcePath", "FragmentPath")] + block.get("DropInPaths", "").split()
    changed = {place: _changed(place) for place in places if place}
    read = [at for place, at in changed.items() if place.startswith(generated)]
    return tuple(place for place, at in changed.items() if read and at > max(read))


def _changed(place: str) -> float:
    """When a file was last changed; 0 where nothing is known."""
    try:
        return os.stat(place).st_mtime
    except OSError:
        return 0.0


def _events(group: str, cgroups: str) -> dict[str, int]:
    try:
        return dict(procsys.counters(Path(cgroups, group.lstrip("/"), "memory.events").read_text())) if group else {}
    except OSError:
        return {}
