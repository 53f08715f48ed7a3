"""Addresses of PCI devices: the kernel, NVML and CUDA each write them in their own way."""

from __future__ import annotations

import re

_PCI = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?")


def pci_id(text: str) -> str:
    """`dddd:bb:dd` of an address as the kernel or NVML writes it; empty when it is none.

    The kernel leaves out the function, NVML writes eight digits of domain and the function.
    """
    match = _PCI.fullmatch(text.strip())
    if match is None:
        return ""
    domain, bus, device = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}".lower()
