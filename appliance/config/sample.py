"""The rows as people read them: the reference file, the manual page, and the explanation of one key."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from appliance.config.table import BY_PATH, ROWS, TABLES, Row
from appliance.config.values import spell
from appliance.wire import vllmflags

KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "duration": "a duration: a number with ms, s, m, h or d",
    "size": "a size: a number with KiB, MiB, GiB or TiB",
    "str": "text",
    "path": "an absolute path",
    "choice": "one of the choices",
    "url": "a URL",
    "urls": "an array of URLs",
    "address": "an address with a port",
    "addresses": "an array of addresses with ports",
    "networks": "an array of addresses or networks",
    "origins": "an array of origins",
    "texts": "an array of texts",
    "gpus": "an array of GPU indexes, or of GPU UUIDs",
    "env": "a table of texts",
    "flags": "a table of vLLM flags",
    "name": "a name",
}
_FLAG_KINDS = {
    "bool": "true or false (false is passed on as --no-...)",
    "switch": "true or false",
    "int": "a whole number",
    "float": "a number",
    "human": 'a whole number, or text like "8k"',
    "str": "text",
    "choice": "one of the choices",
    "list": "an array",
    "ints": "an array of whole numbers",
    "json": "a table",
}


def effect_of(row: Row) -> str:
    """What it takes for a change to take effect."""
    if row.effect == "live":
        return "apply is enough; nothing restarts"
    if row.effect == "reload":
        return "apply reloads the gateway; no request is lost"
    part = row.path.partition(".")[0]
    if part == "gateway":
        return "apply restarts the listening sockets; open connections drop"
    return "apply restarts the engine" if part == "engine" else "apply restarts the engines"


def default_of(row: Row) -> str:
    """The default as TOML."""
    return "{}" if row.default == {} else spell(row, row.default)


def limits_of(row: Row) -> str:
    """Bounds and choices in words; empty when there are none."""
    parts = []
    if row.choices:
        parts.append(f"one of {', '.join(spell(row, choice) for choice in row.choices)}")
    if row.low is not None and row.high is not None:
        parts.append(f"{spell(row, row.low)} to {spell(row, row.high)}")
    return "; ".join(parts)


def reference() -> str:
    """The reference file: every table and key with its default, the keys commented out.

    As it is it means the defaults, and so it does with the `#` before each key removed.
    """
    lines = [
        "# Every setting with its default; generated from the program's own table. Copy what you need to",
        "# /etc/llm-appliance/config.toml or to a file in config.d beside it; a later file wins key by key.",
        "# Durations are written like 90s or 1h 30m, sizes like 64MiB.",
    ]
    for table, about in TABLES.items():
        header = f"[[{table}]]" if table == "engine" else f"[{table}]"
        lines += ["", "", f"# --- {about}", header]
        for row in ROWS:
            if row.table != table:
                continue
            limits = limits_of(row)
            prose = f"{row.help} {limits[:1].upper()}{limits[1:]}." if limits else row.help
            lines += ["", *(f"# {line}" for line in textwrap.wrap(prose, 105, break_on_hyphens=False))]
            lines.append(f"#{row.key} = {default_of(row)}")
    return "\n".join(lines) + "\n"


def manual() -> str:
    """The manual page of the configuration, section 5, as man(7)."""
    lines = [
        '.TH LLM\\-APPLIANCE\\-CONFIG 5 "" llm\\-appliance',
        ".SH NAME",
        "llm\\-appliance\\-config \\- the configuration of the LLM inference appliance",
        ".SH SYNOPSIS",
        ".I /etc/llm\\-appliance/config.toml",
        ".br",
        ".I /etc/llm\\-appliance/config.d/*.toml",
        ".SH DESCRIPTION",
        "The files are TOML. They are read in the order of their names, config.toml first; a later file wins key by",
        "key, and an engine in it is merged into the engine of the same name. An empty file means the defaults below.",
        '.BR "llm\\-appliance check" " names every mistake,"',
        '.BR "llm\\-appliance apply" " makes a change take effect."',
    ]
    for table, about in TABLES.items():
        lines += [f".SH {_roff(f'[[{table}]]' if table == 'engine' else f'[{table}]')}", _roff(about)]
        for row in ROWS:
            if row.table != table:
                continue
            limits = limits_of(row)
            lines += [".TP", f'.BR {_roff(row.key)} " = {_roff(default_of(row)).replace(chr(34), chr(34) * 2)}"']
            lines.append(_roff(row.help + (f" {limits[:1].upper()}{limits[1:]}." if limits else "")))
            lines.append(_roff(f"On a change, {effect_of(row)}."))
    lines += [".SH SEE ALSO", ".BR llm\\-appliance (1)"]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def explain(key: str) -> dict[str, Any] | None:
    """What is known of a dotted key, a table, or a flag below `engine.vllm.`; None for a key that does not exist.

    A setting has `key kind help default limits example effect`, a table `key help keys`, a flag `key kind help choices`
    or, when the appliance does not pass it on, `refused` or `legacy`.
    """
    key = key.strip().strip("[]").replace("[]", "")
    row = BY_PATH.get(key)
    if row is not None:
        return {
            "key": key, "kind": KINDS[row.kind], "help": row.help, "default": default_of(row),
            "limits": limits_of(row), "example": f"{row.key} = {row.example}", "effect": effect_of(row),
        }  # fmt: skip
    if key in TABLES:
        below = [r.path for r in ROWS if r.table == key] + [t for t in TABLES if t.rpartition(".")[0] == key]
        return {"key": key, "help": TABLES[key], "keys": below}
    if key.startswith("engine.env."):
        return {**(explain("engine.env") or {}), "key": key}
    if key.startswith("engine.vllm."):
        return _flag(key, key[len("engine.vllm.") :].lstrip("-").replace("-", "_"))
    return None


def _flag(key: str, flag: str) -> dict[str, Any] | None:
    known = vllmflags.table()
    flag = str(known.flags.get(flag, {}).get("is", flag))
    if flag in vllmflags.REFUSED:
        message, remedy = vllmflags.refused(flag)
        return {"key": key, "refused": f"{message}; {remedy}"}
    if flag in known.flags:
        row: Mapping[str, Any] = known.flags[flag]
        choices = ", ".join(map(str, row.get("choices", ())))
        return {"key": key, "kind": _FLAG_KINDS[row["kind"]], "help": row["help"], "choices": choices,
                "version": known.version, "effect": effect_of(BY_PATH["engine.vllm"])}  # fmt: skip
    if flag in vllmflags.LEGACY:
        return {"key": key, "legacy": vllmflags.LEGACY[flag].reason}
    return None


def nearest(key: str) -> tuple[str, ...]:
    """Up to three keys that an unknown one may have meant."""
    from difflib import get_close_matches

    same_end = [row.path for row in ROWS if row.key == key.rpartition(".")[2]]
    known = [*BY_PATH, *TABLES, *(f"engine.vllm.{flag}" for flag in vllmflags.table().flags)]
    return tuple(dict.fromkeys([*same_end, *get_close_matches(key, known, n=3, cutoff=0.6)]))[:3]
