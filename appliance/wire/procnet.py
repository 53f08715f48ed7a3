"""`/proc/net/tcp`, `tcp6` and `sockstat`: who listens where, and how many connections linger after their end."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

from appliance.quantity import UNKNOWN, Maybe

_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Entry:
    """A socket that listens: its address, the user that opened it, and the kernel's number of it."""

    host: str
    port: int
    uid: int
    inode: int


def listening(text: str) -> Iterator[Entry]:
    """The listening sockets of either table."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN or not (fields[7].isdigit() and fields[9].isdigit()):
            continue
        address, _, port = fields[1].rpartition(":")
        try:
            yield Entry(_host(address), int(port, 16), int(fields[7]), int(fields[9]))
        except ValueError:
            continue


def _host(text: str) -> str:
    """The kernel writes 32-bit words in this machine's byte order, which is little-endian on amd64."""
    raw = bytes.fromhex(text)
    if len(raw) not in (4, 16):
        raise ValueError(text)
    packed = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    found = ipaddress.ip_address(packed)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def time_wait(text: str) -> Maybe[int]:
    """`tw` of sockstat's TCP line."""
    match = re.search(r"^TCP:.* tw (\d+)", text, re.MULTILINE)
    return UNKNOWN if match is None else int(match[1])
