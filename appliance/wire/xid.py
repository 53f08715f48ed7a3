"""Xid and SXid: how NVIDIA's driver writes a fault into the kernel's log.

    NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=VLLM::Worker, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:3b:00): 119, pid='<unknown>', name=<unknown>, Timeout waiting for RPC from GSP! ...
    NVRM: Xid (PCI:0000:70:00): 13, Graphics SM Warp Exception on (GPC 1, TPC 1, SM 1): MMU Fault
    NVRM: GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
    nvidia-nvswitch1: SXid (PCI:0000:aa:00.0): 24007, Severity 1 ...

The pid is a number, a quoted `<unknown>`, or missing; the kernel cuts names at 15 characters. The fourth form is the
text of Xid 154, in which the driver itself says what its GPU needs. What a number means is policy's to say.
"""

from __future__ import annotations

import re

from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Xid

from .pciid import pci_id

RECOVERY_ACTION = 154
REPEAT_S = 10.0  # one fault prints its number once for each SM or channel: up to twenty lines

_XID = re.compile(
    r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<number>\d+)"
    r"(?:, pid='?(?P<pid>[^',]+)'?)?(?:, name='?(?P<name>[^',]+)'?)?(?:, *(?P<detail>.*))?"
)
_SWITCH = re.compile(r"nvidia-nvswitch\d+: SXid \(PCI:(?P<pci>[^)]+)\): (?P<number>\d+)(?:, *(?P<detail>.*))?")
_ACTION = re.compile(
    r"GPU recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x(?P<action>[0-9a-fA-F]+)(?: \((?P<text>[^)]*)\))?"
)


def xid_of(msg: str, t: float) -> Xid | None:
    """The fault that a kernel line reports; None for any other line."""
    action = _ACTION.search(msg)
    if match := _XID.search(msg):
        number, pid, name = int(match["number"]), match["pid"] or "", match["name"] or ""
        return Xid(
            t=t,
            number=number,
            pci=pci_id(match["pci"]),
            pid=int(pid) if pid.isdecimal() else UNKNOWN,
            process="" if name.startswith("<") else name.strip(),
            recovery_action=_action(action),
            detail=(match["detail"] or "").strip(),
        )
    if match := _SWITCH.search(msg):
        detail = (match["detail"] or "").strip()
        return Xid(t=t, number=int(match["number"]), pci=pci_id(match["pci"]), switch=True, detail=detail)
    if action is not None:
        return Xid(t=t, number=RECOVERY_ACTION, recovery_action=_action(action), detail=action["text"] or "")
    return None


def _action(match: re.Match[str] | None) -> Maybe[int]:
    return UNKNOWN if match is None else int(match["action"], 16)


class Repeats:
    """Tells the first line of a fault from its repetitions, which say nothing new."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, bool, Maybe[int]], float] = {}

    def is_new(self, xid: Xid) -> bool:
        """Whether no line with the same number came from the same GPU within `REPEAT_S` before; asked in time order.

        A fault that never stops is new again every `REPEAT_S`. Recovery actions that differ are different news.
        """
        key = (xid.pci, xid.number, xid.switch, xid.recovery_action)
        last = self._last.get(key)
        if last is not None and 0 <= xid.t - last < REPEAT_S:
            return False
        self._last = {known: t for known, t in self._last.items() if 0 <= xid.t - t < REPEAT_S}
        self._last[key] = xid.t
        return True
