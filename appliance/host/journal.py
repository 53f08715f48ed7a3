"""The journal's native protocol: one line with its fields, so that `journalctl LLM_CAUSE=...` finds it.

Where there is no journal the line goes to standard error. Nothing here raises: a log that cannot be written must not
take a process with it. A message never holds a key, a prompt or a completion; that is the caller's duty.
"""

from __future__ import annotations

import array
import errno
import hashlib
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

CRIT, ERR, WARNING, NOTICE, INFO, DEBUG = 2, 3, 4, 5, 6, 7  # syslog(3)
SOCKET = "/run/systemd/journal/socket"
DATAGRAM = 1 << 16  # bytes sent at once, unless one entry is larger: the kernel's limit is some 200 KB
SEND_TIMEOUT = struct.pack("ll", 1, 0)  # seconds, microseconds; a timeout of Python's own asks the kernel twice


def message_id(name: str) -> str:
    """The MESSAGE_ID of a cause or an event: 32 hexadecimal digits that depend on its name alone.

    Derived, so that the writer of a line and the message catalogue cannot disagree.
    """
    return hashlib.blake2s(f"llm-appliance {name}".encode(), digest_size=16).hexdigest()


def under_journal(descriptor: int = 2) -> bool:
    """Whether a descriptor of this process is the journal's stream: then `<N>` before a line is its priority."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class Journal:
    """Writes lines for one process; `identifier` is what the journal shows before the colon."""

    def __init__(self, identifier: str, *, path: str = SOCKET) -> None:
        self.identifier = identifier
        self._path = path
        self._socket: socket.socket | None = None

    def log(self, priority: int, message: str, **fields: object) -> None:
        """One line with its fields; None leaves a field out. A journal that restarts is found again."""
        self.log_all(priority, [(message, fields)])

    def log_all(self, priority: int, lines: Sequence[tuple[str, Mapping[str, object]]]) -> None:
        """Many lines, each with its fields; the journal takes DATAGRAM bytes of them at once."""
        common = {"PRIORITY": priority, "SYSLOG_IDENTIFIER": self.identifier}
        told = 0
        if self._socket is not None or os.path.exists(self._path):
            for batch in _batches([encode({**common, "MESSAGE": message, **fields}) for message, fields in lines]):
                if not (self._send(b"\n".join(batch)) or self._send(b"\n".join(batch))):
                    break
                told += len(batch)
        prefix = f"<{priority}>" if under_journal() else f"{self.identifier}: "
        messages = (line for message, _ in lines[told:] for line in message.splitlines() or [""])
        text = "".join([f"{prefix}{message}\n" for message in messages])
        try:
            if text:
                sys.stderr.write(text)
                sys.stderr.flush()
        except (OSError, ValueError):
            return

    def close(self) -> None:
        """Give the socket back; a later `log` opens it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, record: bytes) -> bool:
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_TIMEOUT)
                self._socket.connect(self._path)
            try:
                self._socket.send(record)
            except OSError as error:
                if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                    raise
                _send_large(self._socket, record)
        except OSError:
            self.close()
            return False
        return True


def encode(fields: Mapping[str, object]) -> bytes:
    """The protocol's entry: `NAME=value` lines, a length before values that hold a newline."""
    lines = [f"{name}={value}\n" for name, value in fields.items() if value is not None]
    text = "".join(lines)
    if text.count("\n") == len(lines):
        return text.encode(errors="replace")
    entry = bytearray()
    for line in lines:
        name, _, value = line.partition("=")
        data = value.encode(errors="replace")
        entry += (
            line.encode(errors="replace")
            if data.count(b"\n") == 1
            else b"%b\n%b%b" % (name.encode(), struct.pack("<Q", len(data) - 1), data)
        )
    return bytes(entry)


def _batches(entries: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Entries that go together; between two of them stands an empty line."""
    batch: list[bytes] = []
    size = 0
    for entry in entries:
        if batch and size + len(entry) > DATAGRAM:
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += len(entry) + 1
    if batch:
        yield batch


def _send_large(target: socket.socket, record: bytes) -> None:
    """A record larger than a datagram travels as a sealed memory file."""
    import fcntl

    descriptor = os.memfd_create("journal-record", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(record)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        target.sendmsg([b""], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]).tobytes())])
    finally:
        os.close(descriptor)
