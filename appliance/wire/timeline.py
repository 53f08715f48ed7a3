"""A recorded timeline: JSON lines, the setting first, then samples ordered by `t`, told apart by `src`.

What a line leaves out is UNKNOWN, and so is null; nothing missing becomes 0. A `src` or a field that nobody here knows
is passed over and counted, so that a newer recording can be read. Anything else that is wrong ends the reading with an
error that names file and line: a recording that is half understood would give a wrong verdict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from appliance.errors import UsageError
from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import (
    Canary,
    Cgroup,
    Fs,
    Gpu,
    Health,
    Lag,
    Ledger,
    Line,
    Metrics,
    Notice,
    Nvml,
    Proc,
    Raw,
    Setting,
    StateFile,
)

from .pciid import pci_id
from .timelinefields import Fields, Wrong
from .timelinesetting import setting_of

LONGEST = 4 << 20  # bytes of one line; a scrape of all metrics of eight ranks is below 1 MiB


@dataclass(frozen=True, slots=True)
class Recorded:
    """A sample with the engine that it is about, empty where the line does not say, and the line's number."""

    engine: str
    sample: Raw | Notice
    line: int


@dataclass
class Recording:
    """A timeline that is being read. `raw` is the first line's object; `unknown` counts lines that nobody knows."""

    name: str
    setting: Setting
    raw: Mapping[str, Any]
    samples: Iterator[Recorded]
    unknown: dict[str, int] = field(default_factory=dict)


def read(lines: Iterable[bytes], name: str) -> Recording:
    """Begin to read; `samples` raises UsageError at a line that is wrong. `name` is the file's, for messages.

    The lines are to be cut at `LONGEST` + 1 bytes by whoever reads them.
    """
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    number, first = next(numbered, (1, b""))
    if not first:
        raise UsageError(f'{name}:1: the recording is empty: its first line is {{"config": {{...}}}}')
    value = _object(first, name, number)
    if not isinstance(value.get("config"), dict):
        _wrong(name, number, 'the first line is not {"config": {...}}')
    try:
        setting = setting_of(value["config"])
    except Wrong as wrong:
        _wrong(name, number, f"config.{wrong}")
    recording = Recording(name, setting, value["config"], iter(()))
    recording.samples = _samples(numbered, name, recording.unknown)
    return recording


def _samples(numbered: Iterable[tuple[int, bytes]], name: str, unknown: dict[str, int]) -> Iterator[Recorded]:
    last = float("-inf")
    for number, line in numbered:
        value = _object(line, name, number)
        try:
            fields = Fields(value)
            t, src = fields.need_number("t"), fields.need_text("src")
            if t < last:
                raise Wrong("t", f"{t:g} is earlier than the line before it ({last:g}); lines are ordered by t")
            last = t
            reader = _READERS.get(src)
            if reader is None:
                unknown[src] = unknown.get(src, 0) + 1
                continue
            yield Recorded(fields.text("engine"), reader(t, fields), number)
        except Wrong as wrong:
            _wrong(name, number, str(wrong))


def _object(line: bytes, name: str, number: int) -> dict[str, Any]:
    if len(line) > LONGEST:
        _wrong(name, number, f"the line is longer than {LONGEST} bytes")
    try:
        value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        _wrong(name, number, f"byte {error.start + 1} is not UTF-8")
    except json.JSONDecodeError as error:
        _wrong(name, number, f"not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        _wrong(name, number, f"not JSON: {str(error) or 'nested too deeply'}")
    if not isinstance(value, dict):
        _wrong(name, number, "not a JSON object")
    return value


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _wrong(name: str, number: int, what: str) -> NoReturn:
    raise UsageError(f"{name}:{number}: {what}", hint="a recording is JSON lines: the setting, then samples by time")


# --- one reader for each source ------------------------------------------------------------------------------------


def _metrics(t: float, fields: Fields) -> Metrics:
    values: dict[str, float] = {}
    for key, value in fields.numbers("values").items():
        name = metric_name(key)
        values[name] = values.get(name, 0.0) + value
    http, latency = fields.integer("http"), fields.number("latency_ms")
    return Metrics(t=t, http=http, latency_ms=latency, values=values, error=fields.text("error"))


def metric_name(key: str) -> str:
    """The name that a figure is looked up by: without labels, except those that part it into unlike figures."""
    name, _, labels = key.partition("{")
    for label in ("sleep_state", "reason"):
        begin = labels.find(f'{label}="')
        if begin >= 0 and name in ("vllm:engine_sleep_state", "vllm:num_requests_waiting_by_reason"):
            value = labels[begin + len(label) + 2 :].partition('"')[0]
            return f'{name}{{{label}="{value}"}}'
    return name


def _health(t: float, fields: Fields) -> Health:
    http, latency = fields.integer("http"), fields.number("latency_ms")
    return Health(t=t, http=http, latency_ms=latency, error=fields.text("error"))


# nvmlErrorString -> its number, for recordings that have the words alone.
_NVML_CODES: tuple[tuple[str, int], ...] = (
    ("driver not loaded", 9),
    ("gpu is lost", 15),
    ("requires restart", 16),
    ("reset required", 16),
    ("version mismatch", 18),
)
_GPU_NUMBERS = ("util", "mem_util", "power_w", "power_limit_w", "temp_c", "mem_used_mib", "mem_total_mib")
_GPU_INTEGERS = ("idx", "recovery_action", "ecc_uncorrected", "throttle", "code")


def _nvml(t: float, fields: Fields) -> Nvml:
    action, rows = fields.integer("recovery_action"), _rows(fields)
    gpus = []
    for each in fields.objects("gpus"):
        integers = {name: each.integer(name) for name in _GPU_INTEGERS}
        if integers["recovery_action"] is UNKNOWN:
            integers["recovery_action"] = action
        own = _rows(each)
        gpus.append(
            Gpu(
                pci=pci_id(each.text("pci")) or each.text("pci").lower(),
                uuid=each.text("uuid"),
                name=each.text("name"),
                error=each.text("error"),
                **{name: each.number(name) for name in _GPU_NUMBERS},  # type: ignore[arg-type]
                **integers,
                pids=each.integers("pids"),
                remapped_rows=rows if own is UNKNOWN else own,
            )
        )
    stuck = fields.integer("stuck")
    error, code = fields.text("error"), fields.integer("code")
    if code is UNKNOWN:
        code = next((number for words, number in _NVML_CODES if words in error.lower()), UNKNOWN)
    stuck = 0 if stuck is UNKNOWN else stuck
    return Nvml(t=t, gpus=tuple(gpus), driver=fields.text("driver"), error=error, code=code, stuck=stuck)


def _rows(fields: Fields) -> Maybe[tuple[int, int, bool, bool]]:
    """Remapped rows as four values in NVML's order, or as an object with names."""
    value = fields.value("remapped_rows")
    if value is None:
        return UNKNOWN
    if isinstance(value, dict):
        names = (("correctable", "corr"), ("uncorrectable", "uncorr"), ("pending", "is_pending"), ("failed", "failure"))
        value = [next((value[name] for name in pair if name in value), 0) for pair in names]
    if not isinstance(value, list) or len(value) != 4 or not all(isinstance(each, int) for each in value):
        raise Wrong("remapped_rows", "is not [correctable, uncorrectable, pending, failed]")
    return value[0], value[1], bool(value[2]), bool(value[3])


def _ledger(t: float, fields: Fields) -> Ledger:
    return Ledger(
        t=t,
        inflight=fields.integer("inflight"),
        oldest_silent_s=fields.number("oldest_silent_s"),
        since_any_byte_s=fields.number("since_any_byte_s"),
        structured=fields.integer("structured"),
        largest_prompt_tokens=fields.integer("largest_prompt_tokens"),
        suspects=fields.integer("suspects"),
        error=fields.text("error"),
    )


def _proc(t: float, fields: Fields) -> Proc:
    return Proc(
        t=t,
        pid=fields.need_integer("pid"),
        ppid=fields.integer("ppid"),
        name=fields.text("name"),
        state=fields.text("state")[:1],
        cpu_pct=fields.number("cpu_pct"),
        wchan=fields.text("wchan"),
        cgroup=fields.text("cgroup"),
        event=fields.text("event"),
        exit_code=fields.integer("exit_code"),
    )


def _line(src: str) -> Callable[[float, Fields], Line]:
    def read_line(t: float, fields: Fields) -> Line:
        texts = {name: fields.text(name) for name in ("unit", "proc", "boot")}
        return Line(t=t, src=src, msg=fields.text("msg"), **texts)

    return read_line


def _cgroup(t: float, fields: Fields) -> Cgroup:
    events = fields.numbers("memory.events") or fields.numbers("events")
    return Cgroup(
        t=t,
        events={name: int(count) for name, count in events.items()},
        current_gib=fields.number("memory.current_gib"),
        peak_gib=fields.number("memory.peak_gib"),
        read_bytes=fields.integer("read_bytes"),
        error=fields.text("error"),
    )


def _fs(t: float, fields: Fields) -> Fs:
    return Fs(t=t, path=fields.text("path"), removed=fields.flag("removed"))


def _state_file(t: float, fields: Fields) -> StateFile:
    value = fields.value("value")
    told = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    return StateFile(t=t, path=fields.text("path"), value=told)


def _notice(t: float, fields: Fields) -> Notice:
    return Notice(t=t, kind=fields.need_text("kind"))


def _lag(t: float, fields: Fields) -> Lag:
    return Lag(t=t, late_s=fields.need_number("late_s"))


def _canary(t: float, fields: Fields) -> Canary:
    return Canary(t=t, outstanding=fields.flag("outstanding"))


_READERS: Mapping[str, Callable[[float, Fields], Raw | Notice]] = {
    "metrics": _metrics,
    "health": _health,
    "nvml": _nvml,
    "ledger": _ledger,
    "proc": _proc,
    "journal": _line("journal"),
    "kernel": _line("kernel"),
    "systemd": _line("systemd"),
    "cgroup": _cgroup,
    "fs": _fs,
    "state_file": _state_file,
    "canary": _canary,
    "lag": _lag,
    "notice": _notice,
}
