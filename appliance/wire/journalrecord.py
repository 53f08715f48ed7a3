"""`journalctl --output=json`: one object a line; a value is a string, a list of bytes, or null when it is too long."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from appliance.samples import Line

FIELDS = ("MESSAGE", "UNIT", "SYSLOG_IDENTIFIER", "_TRANSPORT", "_PID")  # others come unasked
# The kernel; systemd's own words, also on units that it is asked about; systemd-oomd.
MATCHES = ("_TRANSPORT=kernel", "+", "_PID=1", "+", "_SYSTEMD_UNIT=systemd-oomd.service")
LONGEST = 2000  # characters of a message that are kept; the kernel's have at most 1,000
_OURS = ("llm-",)
_ENGINES = "llm-engine@"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: where to go on after it, and its line, or None for one that concerns nobody here."""

    cursor: str
    line: Line | None


def entry_of(raw: bytes) -> Entry | None:
    """The entry that a line of output holds; None for what is none. Its `t` is monotonic seconds of its own boot."""
    try:
        value = json.loads(raw)
        t = int(value["__MONOTONIC_TIMESTAMP"]) / 1e6
        cursor = str(value["__CURSOR"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    kernel, unit, boot = value.get("_TRANSPORT") == "kernel", _text(value.get("UNIT")), _text(value.get("_BOOT_ID"))
    if value.get("_PID") == "1" and not unit.startswith(_OURS):
        return Entry(cursor, None)
    message, proc = _text(value.get("MESSAGE"))[:LONGEST], _text(value.get("SYSLOG_IDENTIFIER"))
    src = "kernel" if kernel else "systemd"
    return Entry(cursor, Line(t=t, src=src, msg=message, unit=unit, proc=proc, boot=boot))


def concerns(line: Line, unit: str, engine: str) -> bool:
    """Whether a line belongs to what is known of an engine: the host's do, of units' its own and those that name it."""
    if line.src == "kernel" or not line.unit:
        return _ENGINES not in line.msg or unit in line.msg
    if line.unit.startswith(_ENGINES):
        return line.unit == unit
    return re.search(rf"(?<![\w-]){re.escape(engine)}(?![\w-])", line.msg) is not None


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value).decode(errors="replace")
    return ""
