"""Our units as systemd has them after all drop-ins, with what their control groups have been through."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from appliance.errors import Unreachable
from appliance.host import systemd
from appliance.host.proc import CGROUPS
from appliance.hostfacts import UnitFacts
from appliance.wire import procsys

DEADLINE_S = 6.0
PROPERTIES = (
    "Id", "LoadState", "ActiveState", "Result", "NeedDaemonReload", "FragmentPath", "DropInPaths", "ControlGroup",
    "Restart", "KillMode", "OOMPolicy", "TimeoutStopUSec", "WatchdogUSec", "LimitNOFILE", "LimitMEMLOCK", "TasksMax",
    "MemoryMax", "PrivateDevices", "DevicePolicy", "DeviceAllow", "MemoryDenyWriteExecute", "RestrictAddressFamilies",
    "TemporaryFileSystem", "ReadWritePaths", "NoExecPaths", "ProcSubset", "PrivateNetwork", "IPAddressDeny",
    "LogRateLimitIntervalUSec",
)  # fmt: skip


async def units(names: Sequence[str], cgroups: str = CGROUPS) -> tuple[UnitFacts, ...]:
    """Each of the named units that systemd knows a file for. Raises Unreachable."""
    command = systemd.Command(("show", "--no-pager", f"--property={','.join(PROPERTIES)}", "--", *names), _read)
    blocks = await systemd.ask_async(command, DEADLINE_S)
    return tuple(
        UnitFacts(name=block["Id"], properties=block, events=_events(block.get("ControlGroup", ""), cgroups))
        for block in blocks
        if block.get("Id") and block.get("LoadState") not in ("not-found", None)
    )


def _read(done: systemd.Completed) -> list[dict[str, str]]:
    if done.status != 0:
        raise Unreachable(f"systemctl show failed: {done.errors.strip() or f'status {done.status}'}")
    return systemd.parse_show(done.output)


def _events(group: str, cgroups: str) -> dict[str, int]:
    try:
        return dict(procsys.counters(Path(cgroups, group.lstrip("/"), "memory.events").read_text())) if group else {}
    except OSError:
        return {}
