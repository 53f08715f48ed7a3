"""The usage ledger on the disk: appends lines to the chain, finds its end again after a crash, deletes old files.

Used by one thread; everything blocks and raises OSError. Laws:

- A line is in the file once `append` has returned, and outlives a power cut once `sync` has; then the head says so.
- A failed `append` leaves no part of its lines behind, so that it can be tried again.
- What a crash left behind the last good line goes into a file of its own; a `torn` line in its place says so.
- Lines go into the file of the day; where the clock went back, on into the newest.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Sequence

from appliance.host import auditfiles
from appliance.host.files import replace
from appliance.wire import auditline
from appliance.wire.auditline import (
    GENESIS,
    HEAD_BYTES,
    HEAD_FILE,
    TORN,
    BadLine,
    Head,
    compose,
    day_of,
    file_name,
    members,
)  # fmt: skip

MODE = 0o640


class AuditWriter:
    """The open chain in one directory; one process at a time holds it."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.last, self.hash = 0, GENESIS  # number and hash of the last line
        self.sealed: list[str] = []  # sentences on files that ended, for the journal
        self._first = 1
        self._head = self._file = -1
        self._day, self._size = "", 0
        self.dirty = False
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._head = os.open(f"{directory}/{HEAD_FILE}", flags, MODE)
        try:
            self._lock()
            self._recover()
        except BaseException:
            self._close_files()
            raise

    def append(self, day: str, entries: Sequence[str]) -> None:
        """Write a line for each entry, members of a JSON object in ASCII, into the file of `day`."""
        if self._file >= 0 and self._is_gone():
            self.sync()
            self._close_file()
        if self._file < 0 or day > self._day:
            self._open(max(day, self._day))
        pieces, seq, digest = [], self.last, self.hash
        for entry in entries:
            seq += 1
            piece, digest = compose(seq, digest, entry)
            pieces.append(piece)
        self._write(b"".join(pieces))
        self.last, self.hash = seq, digest

    def sync(self) -> None:
        """Bring what was written to the disk, and say so in the head."""
        if self.dirty:
            os.fdatasync(self._file)
            self.dirty = False
            self._write_head()

    def expire(self, before: str) -> list[str]:
        """Delete the files of days before `before`; returns their names."""
        for name in os.listdir(self.directory):
            if (auditline.day_of_torn(name) or before) < before:
                os.unlink(f"{self.directory}/{name}")
        names = auditfiles.names(self.directory)
        old = [name for name in names if (day_of(name) or "") < before]
        if not old:
            return []
        self.sync()
        if self._file >= 0 and self._day < before:
            self._close_file()
        # The head first: a crash between the two leaves a file too many, not one too few.
        self._first = self._first_of([name for name in names if name not in old])
        self._write_head()
        os.fdatasync(self._head)
        for name in old:
            os.unlink(f"{self.directory}/{name}")
        return old

    def close(self) -> None:
        """Sync and give everything back; also where the sync fails."""
        try:
            self.sync()
        finally:
            self._close_files()

    # --- files ------------------------------------------------------------------------------------------------------
    def _lock(self) -> None:
        try:
            fcntl.flock(self._head, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EBUSY, "another gateway writes it") from None

    def _open(self, day: str) -> None:
        """Go on in the file of a day; the one before is finished first."""
        if self._file >= 0:
            self.sync()
            os.fdatasync(self._head)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = os.open(f"{self.directory}/{file_name(day)}", flags, MODE)
        if self._file >= 0:
            self.sealed.append(f"{file_name(self._day)} ends with line {self.last}, hash {self.hash}")
        self._close_file()
        self._file, self._day, self._size = file, day, os.fstat(file).st_size
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)  # the name of a new file, too, has to outlive a power cut
        finally:
            os.close(directory)

    def _is_gone(self) -> bool:
        """Whether somebody took the open file away or put another one in its place."""
        mine = os.fstat(self._file)
        try:
            there = os.stat(f"{self.directory}/{file_name(self._day)}")
        except FileNotFoundError:
            return True
        return (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino)

    def _write(self, data: bytes) -> None:
        """Append all of it or nothing."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)
        self.dirty = True

    def _write_head(self) -> None:
        name = file_name(self._day) if self._file >= 0 else ""
        head = Head(self._first, self.last, self.hash, name, self._size if name else 0)
        os.pwrite(self._head, auditline.head_bytes(head), 0)

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        self.dirty = False

    def _close_files(self) -> None:
        self._close_file()
        if self._head >= 0:
            os.close(self._head)
        self._head = -1

    # --- finding the end again --------------------------------------------------------------------------------------
    def _recover(self) -> None:
        """Continue the chain where it ends: behind the last good line, or behind what the head knows to be written."""
        head = auditline.parse_head(os.pread(self._head, HEAD_BYTES, 0))
        names = auditfiles.names(self.directory)
        if head is not None:
            self._first, self.last, self.hash = head.first, head.last, head.hash
        if names:
            self._day = day_of(names[-1]) or ""
            self._open(self._day)
            torn = self._find_end(names, head)
            if head is None:
                self._first = self._first_of(names)
            if torn:
                self._set_aside(torn)
        self.dirty = self._file >= 0
        self.sync()
        if not names:
            self._write_head()

    def _find_end(self, names: list[str], head: Head | None) -> bytes:
        """Set `last` and `hash` by the newest file's lines; returns what stands behind the last good one."""
        path = f"{self.directory}/{names[-1]}"
        if head is not None and head.file == names[-1]:
            if self._size < head.size:
                return b""  # somebody cut it: what is missing stays missing
            with open(path, "rb") as file:
                file.seek(head.size)
                return self._follow(list(file))
        torn = self._scan(path)
        for name in reversed(names[:-1]):
            if self.last:
                break
            self._scan(f"{self.directory}/{name}")
        return torn

    def _follow(self, lines: list[bytes]) -> bytes:
        """Behind the head only lines that continue the chain are good: the disk may have kept later ones alone."""
        for number, raw in enumerate(lines):
            try:
                line = auditline.parse(raw[:-1]) if raw.endswith(b"\n") else None
            except BadLine:
                line = None
            if line is None or line.seq != self.last + 1 or line.prev != self.hash:
                return b"".join(lines[number:])
            self.last, self.hash = line.seq, line.hash
        return b""

    def _scan(self, path: str) -> bytes:
        """Without a head the last good line counts; returns the bytes behind it."""
        behind: list[bytes] = []
        for raw in auditfiles.lines(path):
            behind.append(raw)
            try:
                line = auditline.parse(raw[:-1]) if raw.endswith(b"\n") else None
            except BadLine:
                continue
            if line is not None:
                behind.clear()
                if line.seq > self.last:
                    self.last, self.hash = line.seq, line.hash
        return b"".join(behind)

    def _set_aside(self, torn: bytes) -> None:
        """Move what a crash left into a file of its own, and say so in its place."""
        name = auditline.torn_name(self._day, self.last + 1)
        replace(f"{self.directory}/{name}", torn, MODE)
        self._size -= len(torn)
        os.ftruncate(self._file, self._size)
        told = {"event": TORN, "file": name, "bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()}
        line, digest = compose(self.last + 1, self.hash, members(told))
        self._write(line)
        self.last, self.hash = self.last + 1, digest

    def _first_of(self, names: list[str]) -> int:
        """The number of the first line in the oldest of some files; of the next line to come when there is none."""
        for name in names:
            for raw in auditfiles.lines(f"{self.directory}/{name}"):
                try:
                    return auditline.parse(raw.rstrip(b"\n")).seq
                except BadLine:
                    continue
        return self.last + 1
