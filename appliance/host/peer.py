"""Who is at the other end of a unix socket, by the kernel's word."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

OVERFLOW = 65534  # how a user namespace shows a user that it does not know


def uid_of(connection: socket.socket) -> int:
    """The user id that connected. Raises OSError."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def is_trusted(uid: int, *, uid_map: str = "/proc/self/uid_map") -> bool:
    """Whether a peer is root or this process's own user.

    In a user namespace (PrivateUsers=) every other user looks the same; there the mode of the socket's directory has
    decided already who may connect, and such a peer is believed.
    """
    return uid in (0, os.geteuid()) or (uid == OVERFLOW and _in_namespace(uid_map))


def _in_namespace(uid_map: str) -> bool:
    try:
        words = Path(uid_map).read_text().split()
    except OSError:
        return False
    return words != ["0", "0", str(0xFFFFFFFF)]
