"""The usage ledger's format: one JSON object a line, each with the hash of the line before and its own.

    {"v":1,"seq":7,"prev":"<hash of line 6>","at":1800000000.123, ... ,"hash":"<SHA-256 of all bytes before ,"hash":>"}

`seq` counts lines over all files and restarts; the first line of all follows GENESIS. A line is ASCII, so that no name
that a client sent can break it. A line with `event` is the ledger's own: `torn` says that a crash left half a line
here, now in a file of its own (`file`, `bytes`, `sha256`), `lost` how many lines could not be kept (`count`).

Beside the files lies HEAD_FILE: which lines there are, as far as they are on the disk. With it, lines that were cut off
at either end are missed. The hashes hold no secret: whoever may write the directory can write a whole new chain. What
finds that is a hash kept elsewhere; the gateway logs the last one of each file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

VERSION = 1
GENESIS = "0" * 64
HEAD_FILE = "chain.json"
HEAD_BYTES = 512  # within one sector: written in place, it is the old one or the new one
TORN, LOST = "torn", "lost"  # values of `event`
_FILE = re.compile(r"usage-(\d{4}-\d\d-\d\d)\.jsonl")
_TORN_FILE = re.compile(r"torn-(\d{4}-\d\d-\d\d)-\d+")
_HASH = re.compile(r"[0-9a-f]{64}")
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_MARK = b',"hash":"'
_TAIL = len(_MARK) + 64 + len(b'"}')


class BadLine(ValueError):
    """Bytes that are no line of the ledger; the message says why."""


@dataclass(frozen=True, slots=True)
class Line:
    """One whole line: its own hash fits its content."""

    seq: int
    prev: str
    hash: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """What is on the disk: lines `first` to `last` (`first` is last + 1 when all are gone by age), the hash of the
    last one, and the file and the size up to which it is known to be there (`file` empty: no file)."""

    first: int
    last: int
    hash: str
    file: str
    size: int


def file_name(day: str) -> str:
    """The file of a day like 2026-01-31, which is in UTC."""
    return f"usage-{day}.jsonl"


def day_of(name: str) -> str | None:
    """The day of a ledger file's name; None for any other name."""
    match = _FILE.fullmatch(name)
    return match[1] if match else None


def torn_name(day: str, seq: int) -> str:
    """The file for what a crash left in the file of a day; line `seq` tells of it."""
    return f"torn-{day}-{seq}"


def day_of_torn(name: str) -> str | None:
    """The day of such a file's name."""
    match = _TORN_FILE.fullmatch(name)
    return match[1] if match else None


def members(body: Mapping[str, object]) -> str:
    """What a line is to say, as the members of a JSON object."""
    return _ENCODER.encode(body)[1:-1]


def compose(seq: int, prev: str, members: str) -> tuple[bytes, str]:
    """A line with its newline, and its hash. `members` are ASCII."""
    start = f'{{"v":{VERSION},"seq":{seq},"prev":"{prev}",{members}'.encode()
    digest = hashlib.sha256(start).hexdigest()
    return start + _MARK + digest.encode() + b'"}\n', digest


def parse(raw: bytes) -> Line:
    """A line without its newline. Raises BadLine."""
    start, mark, digest, end = raw[:-_TAIL], raw[-_TAIL:-66], raw[-66:-2], raw[-2:]
    if mark != _MARK or end != b'"}' or not start.startswith(b'{"v":'):
        raise BadLine("it is no whole line")
    if hashlib.sha256(start).hexdigest().encode() != digest:
        raise BadLine("its hash does not fit its content")
    try:
        value = json.loads(raw)
    except ValueError:
        raise BadLine("it is not JSON") from None
    seq, prev = value.get("seq"), value.get("prev")
    if value.get("v") != VERSION or type(seq) is not int or not isinstance(prev, str):
        raise BadLine("it is of another version")
    return Line(seq, prev, digest.decode(), value)


def head_bytes(head: Head) -> bytes:
    """HEAD_FILE's content, always HEAD_BYTES long."""
    return json.dumps({"v": VERSION, **asdict(head)}).encode().ljust(HEAD_BYTES - 1) + b"\n"


def parse_head(raw: bytes) -> Head | None:
    """What HEAD_FILE says; None when it is missing, torn or of another version."""
    try:
        value = json.loads(raw)
        numbers = [value[name] for name in ("first", "last", "size")]
        digest, file = value["hash"], value["file"]
    except (ValueError, KeyError, TypeError):
        return None
    if value.get("v") != VERSION or not all(type(number) is int for number in numbers):
        return None
    if not isinstance(digest, str) or not _HASH.fullmatch(digest) or not isinstance(file, str):
        return None
    return Head(numbers[0], numbers[1], digest, file, numbers[2])
