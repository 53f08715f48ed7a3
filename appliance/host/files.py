"""Files that several processes read: replaced atomically, never half written; a missing one is UNKNOWN."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import NoReturn, cast

LARGEST = 8 << 20  # bytes of a file that is read as JSON; ours have some thousand


def replace(path: str | os.PathLike[str], content: bytes, mode: int = 0o644) -> None:
    """Put `content` at `path` in one step; a reader sees the old bytes or the new ones. Raises OSError.

    The bytes are on the disk before the name changes, so a power cut leaves one of the two as well. A fault is told by
    the file's own name: that of the moment is another one each time.
    """
    try:
        _replace(Path(path), content, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _replace(target: Path, content: bytes, mode: int) -> None:
    import tempfile  # 6 ms that only a writer pays

    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def settle(directory: str | os.PathLike[str]) -> None:
    """Bring all that was written to the file system of `directory` to its disk; blocks as long as that takes.

    For many files that one file, written after them, calls complete: `replace` makes sure of its own bytes alone, and a
    power cut would leave that word and empty files. Raises OSError, also for what could not be written.
    """
    import ctypes  # a few ms that only a builder pays

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if libc.syncfs(descriptor) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), os.fspath(directory))
    finally:
        os.close(descriptor)


def replace_json(path: str | os.PathLike[str], value: dict[str, object], mode: int = 0o644) -> None:
    """`replace` with a JSON object, `"v": 1` added. In a file's name that is no UTF-8 `?` stands for what is not."""
    replace(path, json.dumps({"v": 1, **value}, ensure_ascii=False).encode(errors="replace") + b"\n", mode)


def read_json(path: str | os.PathLike[str]) -> dict[str, object] | None:
    """The JSON object at `path`; None when it is missing, unreadable, torn or of another version.

    Some of the files lie where an engine may write: whatever is there, this neither waits nor raises, and what it
    returns can be counted with and written again.
    """
    try:
        text = _content(path).decode()
        value = json.loads(text, parse_constant=_refuse, parse_int=_whole, parse_float=_finite)
        if "\\ud" in text or "\\uD" in text:  # half a surrogate pair can be written nowhere
            json.dumps(value, ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("v") != 1:
        return None
    return cast(dict[str, object], value)


def _content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a plain file. Raises OSError, ValueError for what is none or is too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would be waited for
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("no plain file")
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError("too large")
    return content


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _whole(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("too large a number")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if abs(number) > 1e30:
        raise ValueError("too large a number")
    return number


def read_text(path: str | os.PathLike[str]) -> str:
    """The text at `path`; empty when it is missing or unreadable, for what the kernel tells or does not."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
