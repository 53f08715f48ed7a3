"""Where evidence comes from: each source is one question with its own deadline, asked while the others are.

A source returns the files it has, or raises `Missing` with the reason; nothing here writes, and nothing waits for
another.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from appliance import __version__, clock, names
from appliance.config import snapshot
from appliance.config.source import Effective
from appliance.errors import Unreachable
from appliance.host import command, files, proc, unixget
from appliance.host.kernellog import boot_id
from appliance.host.places import Places
from appliance.policy.incidents import FILE_BYTES
from appliance.quantity import format_duration
from appliance.wire import pyspy
from appliance.wire.redact import Redactor
from appliance.wire.vllmlog import KEPT_LINES

ANSWER_S = 3.0  # of HTTP: metrics, ledger
LAUNCHER_S = 8.0  # its py-spies have 5
ABORT_S = 12.0  # an abort ends itself after 8
JOURNAL_S = 8.0
DRIVER_S = 10.0  # nvidia-smi asks each GPU; it is quick or it hangs
LOG_BYTES = FILE_BYTES
PARTS = 8  # of a launcher's answer, each LOG_BYTES at most
STACKS = "stacks.txt"
# Never with -b or -k, which ask for the boot id that the sandbox shows: `boot_id` tells more.
JOURNAL = ("journalctl", "--no-pager", "-q", "-o", "short-iso-precise")
KERNEL_SINCE = "-15min"
_PART = re.compile(r"[a-z]{1,20}")

Found = Mapping[str, str]
Source = Callable[[], Awaitable[Found]]
Timeline = Callable[[str], Iterable[Mapping[str, object]]]


class Missing(Exception):
    """A source has nothing; the message says why."""


class Over(Missing):
    """The run is over, and its engine is another one's by now."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the launcher told of its processes at an instant of the monotonic clock, by file."""

    at: float
    files: Found


@dataclass(frozen=True, slots=True)
class Subject:
    """What evidence is about: an instance, its run, its control group, and the configuration in force.

    `first` is the look that was taken when it was suspected.
    """

    engine: str
    run: str
    group: str
    effective: Effective
    places: Places
    timeline: Timeline
    nvidia_smi: tuple[str, ...] = ("nvidia-smi", "-q")
    facts: Mapping[str, object] = field(default_factory=dict)
    first: Look | None = None


def sources(subject: Subject) -> dict[str, Source]:
    """Every question that disturbs nobody, by the name of the file that tells most of its answer."""
    return {
        "processes.txt": lambda: _processes(subject),
        "shm.txt": lambda: ask_launcher(subject, "shm"),
        "lines.log": lambda: _lines(subject),
        "metrics.txt": lambda: _http(names.engine_socket(subject.engine, subject.places.run), "/metrics",
                                     "metrics.txt"),
        "ledger.json": lambda: _ledger(subject),
        "timeline.jsonl": lambda: _timeline(subject),
        "kernel.log": lambda: _command((*JOURNAL, f"--since={KERNEL_SINCE}", "_TRANSPORT=kernel",
                                        f"_BOOT_ID={boot_id()}"), JOURNAL_S, "kernel.log"),
        "nvidia-smi.txt": lambda: _command(subject.nvidia_smi, DRIVER_S, "nvidia-smi.txt"),
        "config.toml": lambda: _config(subject),
    }  # fmt: skip


async def ask_launcher(subject: Subject, verb: str, deadline_s: float = LAUNCHER_S, **fields: str) -> Found:
    """What the launcher of the run tells, by file. Raises Missing, and Over of it."""
    path = names.engine_evidence(subject.engine, subject.places.run)
    try:
        parts, done = await asyncio.wait_for(_converse(path, {"verb": verb, "run": subject.run, **fields}), deadline_s)
    except asyncio.TimeoutError:
        raise Missing(f"the launcher did not answer within {deadline_s:.0f} s") from None
    except (OSError, ValueError, RecursionError) as error:
        raise Missing(f"the launcher does not answer: {error}") from error
    if done.get("message") == names.ANOTHER_RUN:
        raise Over(names.ANOTHER_RUN)
    if not done.get("ok"):
        raise Missing(f"the launcher: {done.get('message') or 'hung up'}")
    wording = {"lines": "lines.log"}
    return {wording.get(part, f"{part}.txt"): text for part, text in parts.items() if text}


async def _converse(path: str, request: Mapping[str, object]) -> tuple[dict[str, str], Mapping[str, object]]:
    reader, writer = await asyncio.open_unix_connection(path, limit=1 << 20)
    parts: dict[str, str] = {}
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        while line := await reader.readline():
            value = json.loads(line)
            if not isinstance(value, dict):
                raise ValueError("a line of its answer is no object")
            if value.get("done"):
                return parts, value
            part = str(value.get("part"))
            # It has its engine's user, and a part's name becomes a file's.
            if not _PART.fullmatch(part) or len(parts.keys() | {part}) > PARTS:
                raise ValueError("its answer has parts that there are not")
            parts[part] = (parts.get(part, "") + str(value.get("text")))[-LOG_BYTES:]
    finally:
        writer.close()
    return parts, {}


async def _processes(subject: Subject) -> Found:
    """What the launcher sees, with stacks; where it is silent, what the supervisor sees of the control group."""
    try:
        return await ask_launcher(subject, "stacks")
    except Over:
        raise
    except Missing as missing:
        found = proc.unit_processes(subject.group)
        if not isinstance(found, tuple) or not found:
            raise Missing(f"{missing}; its control group shows no process") from None
    lines = [f"{p.pid:>8} parent {p.parent:>8} state {p.state} cpu {p.cpu_s:.2f} s {p.comm}" for p in found]
    return {"processes.txt": "\n".join(lines) + "\n"}


def since_first(first: Look | None, found: Found, now: float) -> tuple[dict[str, str], tuple[str, ...]]:
    """The files of the first look, and what a second one says of the time in between."""
    if first is None:
        return {}, ()
    apart_s = now - first.at
    head = f"Seen {format_duration(apart_s)} before the rest of this evidence, when the engine was first suspected.\n\n"
    kept = {f"first-{name}": head + text for name, text in first.files.items()}
    before, after = (pyspy.stacks(files_.get(STACKS, "")) for files_ in (first.files, found))
    return kept, pyspy.compared(before, after, apart_s)


async def _lines(subject: Subject) -> Found:
    """The launcher's own memory; the journal when it is gone; its verdict where there is no journal."""
    try:
        return await ask_launcher(subject, "lines")
    except Missing as missing:
        why = str(missing)
    unit = f"--unit={names.engine_unit(subject.engine)}"
    match = [f"_SYSTEMD_INVOCATION_ID={names.invocation_of(subject.run)}"] if subject.run else [unit]
    argv = (*JOURNAL, f"--lines={KEPT_LINES}", *match)
    try:
        text = (await command.output_of(argv, JOURNAL_S, LOG_BYTES)).decode(errors="replace")
    except command.Silent as silent:
        text, why = "", f"{why}; {silent}"
    if not text.strip():
        verdict = files.read_json(names.engine_verdict(subject.engine, subject.places.run)) or {}
        quoted = verdict.get("lines")
        text = "\n".join(map(str, quoted)) if isinstance(quoted, list) else ""
    if not text.strip():
        raise Missing(f"{why}; the journal has no lines of this run")
    return {"lines.log": text + "\n" * (not text.endswith("\n"))}


async def _http(socket: str, route: str, name: str) -> Found:
    """One answer of a server on a unix socket."""
    try:
        status, body = await unixget.get_async(socket, route, deadline_s=ANSWER_S, limit=LOG_BYTES)
    except Unreachable as error:
        raise Missing(f"{route}: {error.message}") from error
    if status != 200:
        raise Missing(f"{route} answers {status}")
    return {name: body.decode(errors="replace")}


async def _ledger(subject: Subject) -> Found:
    """The gateway's open calls at this engine: counts, silences and ids."""
    told = await _http(subject.places.under_run(names.GATEWAY_SOCKET), "/ledger", "ledger.json")
    try:
        engines = json.loads(told["ledger.json"]).get("engines", {})
    except (ValueError, AttributeError):
        raise Missing("the gateway's answer is no ledger") from None
    return {"ledger.json": json.dumps(engines.get(subject.engine), indent=1) + "\n"}


async def _timeline(subject: Subject) -> Found:
    records = list(subject.timeline(subject.engine))
    if not records:
        raise Missing("nothing was observed of it")
    return {"timeline.jsonl": "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)}


async def _command(argv: tuple[str, ...], deadline_s: float, name: str) -> Found:
    try:
        text = (await command.output_of(argv, deadline_s, LOG_BYTES)).decode(errors="replace")
    except command.Silent as silent:
        raise Missing(str(silent)) from silent
    if not text.strip():
        raise Missing(f"{argv[0]} says nothing")
    return {name: text}


async def _config(subject: Subject) -> Found:
    if not subject.effective.raw and subject.effective.config is None:
        raise Missing("no valid configuration is in force")
    shown = Redactor().value(subject.effective.raw)
    assert isinstance(shown, dict)
    return {"config.toml": snapshot.document(shown)}


def facts(places: Places, effective: Effective) -> dict[str, object]:
    """What an incident has to say of its surroundings: versions, digests, the boot. Reads small local files only."""
    runtime = files.read_json(places.under_run(names.RUNTIME_STATE)) or {}
    return {
        "appliance": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "driver": _first_line("/proc/driver/nvidia/version"),
        "vllm": runtime.get("version"),
        "device": runtime.get("device"),
        "boot": boot_id() or None,
        "config_digest": effective.text_digest,
        "config_origin": effective.origin,
        "up_s": round(clock.monotonic(), 1),
        "load": list(os.getloadavg()),
    }


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace").partition("\n")[0].strip() or None
    except OSError:
        return None
