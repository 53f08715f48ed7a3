"""vLLM's own flags: what `[engine.vllm]` may hold, and how it becomes arguments.

The table lies beside this module (`vllmflags.json`, one version of vLLM, made by `packaging/make_vllmflags.py`). Kinds:

    bool      true is --x, false is --no-x           switch   true is --x, false is nothing
    int float human (an integer, or text like 8k)    str choice
    list ints one argument for each member           json     a table (or an array, where vLLM takes one)

Nothing here raises: `check` gives every finding at once, and what is left of the mapping without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeGuard

from appliance.wire.vllmlegacy import LEGACY as LEGACY
from appliance.wire.vllmlegacy import REFUSED as REFUSED
from appliance.wire.vllmlegacy import Flags

_TABLE_FILE = f"{__file__.rpartition('/')[0]}/vllmflags.json"
_HUMAN = re.compile(r"-?\d+|\d+(?:\.\d+)?[kKmMgG]")


class Finding(NamedTuple):
    """One thing about one flag; only errors make the configuration invalid."""

    flag: str
    message: str
    remedy: str
    severity: Literal["error", "warning"] = "error"


class Table(NamedTuple):
    """The flags of one version of vLLM. A row has `kind`, `help`, perhaps `choices`, or is an alias: `is`."""

    version: str
    flags: Mapping[str, Mapping[str, Any]]


_loaded: list[Table] = []


def table() -> Table:
    """The table that lies in the package, read once."""
    if not _loaded:
        with open(_TABLE_FILE, encoding="utf-8") as file:
            content = json.load(file)
        _loaded.append(Table(content["version"], content["flags"]))
    return _loaded[0]


def check(mapping: Mapping[str, object], known: Table | None = None) -> tuple[dict[str, object], tuple[Finding, ...]]:
    """The flags that may be passed on, canonical names, and every finding (errors and warnings) in file order.

    Renamed flags are translated, dropped ones left out, both with a warning; a translated flag never overrides one
    that the file sets itself.
    """
    known = known or table()
    clean: dict[str, object] = {}
    stand_ins: dict[str, object] = {}
    findings: list[Finding] = []
    for written, value in mapping.items():
        flag = written.lstrip("-").replace("-", "_")
        if flag.startswith("no_") and flag not in known.flags and flag[3:] in known.flags:
            findings.append(Finding(written, "a flag is turned off by false", f"write {flag[3:]} = false"))
            continue
        flag = str(known.flags.get(flag, {}).get("is", flag))
        if flag != written:
            if known.flags.get(flag, {}).get("kind") and flag in mapping:
                findings.append(Finding(written, f"is another spelling of {flag}, which is set too", "keep one"))
                continue
            if flag in known.flags:
                findings.append(Finding(written, f"is read as {flag}", f"write {flag}", "warning"))
        passed, meant, finding = _one(written, flag, value, known)
        clean |= passed
        for new, standing in meant.items():
            stand_ins[new] = _merged(stand_ins.get(new), standing)
        if finding is not None:
            findings.append(finding)
    for flag, standing in stand_ins.items():
        clean[flag] = _merged(standing, clean[flag]) if flag in clean else standing
    return clean, tuple(findings)


def _merged(under: object, over: object) -> object:
    """Two tables as one, `over` winning; anything else is `over`."""
    return {**under, **over} if isinstance(under, dict) and isinstance(over, dict) else over


_NO_PROMPTS = {"enable_log_requests", "enable_log_outputs"}


def _one(written: str, flag: str, value: object, known: Table) -> tuple[Flags, Flags, Finding | None]:
    """Judge one flag: (what is passed on, what stands for a legacy flag, what there is to say)."""
    if flag == "disable_log_requests" and value is False:
        return {}, {}, Finding(written, *refused("enable_log_requests"))
    if flag in REFUSED:
        if value is False and flag in _NO_PROMPTS | {"disable_log_stats", "grpc", "headless"}:
            return {}, {}, Finding(written, "is off anyway; it is left out", "leave it out", "warning")
        return {}, {}, Finding(written, *refused(flag))
    if flag in known.flags:
        fault = _fault(known.flags[flag], value)
        if fault is None and flag == "log_level" and value not in ("INFO", "DEBUG"):
            fault = "is refused: above INFO the launcher cannot follow the engine", "leave it out"
        return ({flag: value}, {}, None) if fault is None else ({}, {}, Finding(written, *fault))
    if flag in LEGACY:
        meant = LEGACY[flag].now(value)
        written_now = ", ".join(f"{new} = {_show(standing)}" for new, standing in meant.items())
        remedy = f"write {written_now}" if meant else "leave it out"
        return {}, meant, Finding(written, LEGACY[flag].reason, remedy, "warning")
    return {}, {}, Finding(written, f"vLLM {known.version} has no such flag", _nearest(flag, known))


def refused(flag: str) -> tuple[str, str]:
    """(message, remedy) of a flag in `REFUSED`."""
    reason, remedy = REFUSED[flag]
    return f"is refused: {reason}", remedy


def _nearest(flag: str, known: Table) -> str:
    """The remedy for an unknown flag: the closest known one."""
    from difflib import get_close_matches  # costs 8 ms to import; only a wrong file pays

    near = get_close_matches(flag, [name for name in known.flags if name not in REFUSED], n=1, cutoff=0.7)
    return f"did you mean {near[0]}?" if near else "llm-appliance config explain engine.vllm lists them"


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_scalar(value: object) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


# kind -> (does the value fit, what would be right)
_KINDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "bool": (lambda v: isinstance(v, bool), "write true or false"),
    "switch": (lambda v: isinstance(v, bool), "write true or false"),
    "int": (_is_int, "write a whole number without quotes"),
    "float": (lambda v: isinstance(v, float) or (_is_int(v) and abs(v) < 1 << 53), "write a number without quotes"),
    "human": (
        lambda v: _is_int(v) or (isinstance(v, str) and (v == "auto" or _HUMAN.fullmatch(v) is not None)),
        'write a whole number, or text like "8k"',
    ),
    "str": (lambda v: isinstance(v, str), "write text in quotes"),
    "choice": (_is_scalar, "write one of the choices"),
    "ints": (lambda v: isinstance(v, (list, tuple)) and bool(v) and all(map(_is_int, v)), "write [1, 2, 4]"),
    "list": (
        lambda v: (
            isinstance(v, (list, tuple))
            and bool(v)
            and all(_is_scalar(member) or isinstance(member, Mapping) for member in v)
        ),
        'write an array like ["a", "b"]',
    ),
    "json": (lambda v: isinstance(v, (Mapping, list, tuple)), "write a table, like { key = 1 }"),
}


def _fault(row: Mapping[str, Any], value: object) -> tuple[str, str] | None:
    """(what is wrong, what would be right) of a value; None when it fits."""
    fits, right = _KINDS[row["kind"]]
    choices = row.get("choices", ())
    members = value if row["kind"] == "list" and isinstance(value, (list, tuple)) else [value]
    if choices and (not fits(value) or any(member not in choices for member in members)):
        return f"{_show(value)} is none of the choices", f"one of {', '.join(map(str, choices))}"
    return None if fits(value) else (f"{_show(value)} does not fit", right)


def _show(value: object) -> str:
    """A value as TOML, short."""
    if isinstance(value, Mapping):
        text = f"{{ {', '.join(f'{key} = {_show(inner)}' for key, inner in value.items())} }}"
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def arguments(mapping: Mapping[str, object], known: Table | None = None) -> list[str]:
    """Command-line arguments of a checked mapping, in its order. A list takes several words, so nothing but another
    option may follow it."""
    known = known or table()
    words: list[str] = []
    for flag, value in mapping.items():
        option = f"--{flag.replace('_', '-')}"
        kind = known.flags.get(flag, {}).get("kind", "json" if isinstance(value, Mapping) else "str")
        if isinstance(value, bool):
            if value:
                words.append(option)
            elif kind != "switch":
                words.append(f"--no-{option[2:]}")
        elif kind == "json":
            words += [option, _json(value)]
        elif isinstance(value, (list, tuple)):
            words += [option, *(_json(member) if isinstance(member, Mapping) else str(member) for member in value)]
        else:
            text = str(value)
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return words


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=dict)
