"""PCI Express: access control services in a device's configuration space, and what sysfs writes of its link.

ACS on a bridge decides whether a request from one device below it may go straight to another: redirected, it goes up
to the root and through the IOMMU, which is slow at best and hangs or corrupts GPU to GPU traffic at worst.
"""

from __future__ import annotations

import re

from appliance.quantity import UNKNOWN, Maybe

EXTENDED, ACS_ID = 0x100, 0x000D
SHORT = 64  # what a user other than root may read
_MOST = 96  # capabilities in a chain; more is a loop


def acs_control(space: bytes) -> Maybe[int]:
    """The ACS control register; 0 for a device without the capability, UNKNOWN where too little was read."""
    if len(space) <= EXTENDED:
        return UNKNOWN if len(space) <= SHORT else 0  # 256 bytes: conventional PCI, which has none
    at = EXTENDED
    for _ in range(_MOST):
        header = int.from_bytes(space[at : at + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return 0
        if header & 0xFFFF == ACS_ID and at + 8 <= len(space):
            return int.from_bytes(space[at + 6 : at + 8], "little")
        at = header >> 20
        if at < EXTENDED or at + 4 > len(space):
            return 0
    return 0


def speed(text: str) -> Maybe[float]:
    """GT/s of sysfs' `16.0 GT/s PCIe`; UNKNOWN for `Unknown`."""
    match = re.match(r"(\d+(?:\.\d+)?) GT/s", text)
    return UNKNOWN if match is None else float(match[1])


def width(text: str) -> Maybe[int]:
    """Lanes; sysfs writes 0 or 255 for a link that is down or not there."""
    found = int(text) if text.strip().isdigit() else 0
    return found if 0 < found <= 32 else UNKNOWN
