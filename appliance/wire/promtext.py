"""Prometheus' text format: read samples, add a label, write families."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, isnan

Rows = Iterable[tuple[Mapping[str, str], float]]  # labels and value of each line of a family

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+([^ \t]+)")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_LABELS = re.compile(r'(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\[\\"n])*"(?:,|$))*')
_TYPES = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
_UNESCAPE = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_SUFFIXES = ("_bucket", "_sum", "_count", "_total", "_created")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of an exposition."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(text: str) -> Iterator[Sample]:
    """The samples of an exposition; lines that are none are left out."""
    for line in text.split("\n"):
        match = _SAMPLE.match(line)
        if match is None or line.startswith("#"):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = {
            name: re.sub(r"\\[\\\"n]", lambda found: _UNESCAPE[found[0]], raw)
            for name, raw in _LABEL.findall(match[2] or "")
        }
        yield Sample(match[1], labels, value)


def escape(value: str) -> str:
    """A label's value as the format wants it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def label_block(labels: Mapping[str, str]) -> str:
    """`{a="b"}`, or nothing for no labels."""
    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in labels.items()) + "}" if labels else ""


def family(name: str, kind: str, text: str, rows: Rows) -> str:
    """One metric family; nothing when it has no rows."""
    lines = [f"{name}{label_block(labels)} {number(value)}\n" for labels, value in rows]
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{''.join(lines)}" if lines else ""


def number(value: float) -> str:
    """A value without a needless fraction."""
    if not isfinite(value):
        return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def merge_labelled(expositions: Mapping[str, str], label: str, prefix: str) -> str:
    """Several expositions as one: each family once, each sample with `label` set to its exposition's key.

    Only families whose name begins with `prefix` are kept. A label of that name in the source is renamed to
    `exported_LABEL`, as Prometheus does itself when labels collide. Lines that Prometheus cannot read are left out: for
    one of them it refuses all.
    """
    heads: dict[str, list[str]] = {}
    rows: dict[str, list[str]] = {}
    for key, text in expositions.items():
        mark = f'{label}="{escape(key)}"'
        for line in text.split("\n"):
            if line.startswith(("# HELP ", "# TYPE ")):
                base = _described(line)
                if base and base.startswith(prefix):
                    head = heads.setdefault(base, [])
                    if not any(known.startswith(line[:7]) for known in head):
                        head.append(line)
                continue
            match = _SAMPLE.match(line)
            if match is None or not match[1].startswith(prefix):
                continue
            labels = _relabelled(match[2] or "", label)
            if labels is None or not _is_number(match[3]):
                continue
            joined = f"{mark},{labels}" if labels else mark
            rows.setdefault(_family_of(match[1], heads), []).append(f"{match[1]}{{{joined}}} {match[3]}")
    return "".join("\n".join([*heads.get(name, []), *lines]) + "\n" for name, lines in rows.items())


def _described(line: str) -> str:
    """The family that a line of help or type is about; empty for a line that Prometheus cannot read."""
    words = line.split(" ", 3)  # `# HELP ` and `# TYPE ` make three
    readable = words[1] == "HELP" or (len(words) == 4 and words[3] in _TYPES)
    return words[2] if readable and _NAME.fullmatch(words[2]) else ""


def _relabelled(labels: str, label: str) -> str | None:
    """Labels as they stand in a sample, one renamed; None for what are none, or would be there twice."""
    if not _LABELS.fullmatch(labels):
        return None
    pairs = [(f"exported_{name}" if name == label else name, value) for name, value in _LABEL.findall(labels)]
    if len({name for name, _ in pairs}) < len(pairs):
        return None
    return ",".join([f'{name}="{value}"' for name, value in pairs])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii() and "_" not in text


def _family_of(name: str, heads: Mapping[str, object]) -> str:
    if name in heads:
        return name
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and name[: -len(suffix)] in heads:
            return name[: -len(suffix)]
    return name
