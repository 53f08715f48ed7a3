"""Samples as lines of a recorded timeline; `timeline.read` gives them back.

Findings are not written: a reader finds them again in the lines that they were found in. Only a milestone is, as the
state file that it came from.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from appliance.quantity import UNKNOWN
from appliance.samples import (
    Canary,
    Cgroup,
    Fs,
    Health,
    Lag,
    Ledger,
    Line,
    Metrics,
    Milestone,
    Nvml,
    Proc,
    Sample,
    Setting,
    StateFile,
)

from .timelinesetting import as_config

_SOURCES: dict[type[Any], str] = {
    Metrics: "metrics", Health: "health", Nvml: "nvml", Ledger: "ledger", Proc: "proc", Cgroup: "cgroup", Fs: "fs",
    StateFile: "state_file", Canary: "canary", Lag: "lag",
}  # fmt: skip
_CGROUP = {"events": "memory.events", "current_gib": "memory.current_gib", "peak_gib": "memory.peak_gib"}


def header(setting: Setting, supervisor: dict[str, Any] | None = None) -> str:
    """The first line, without its end; `supervisor` are settings of that section in TOML's form."""
    config = as_config(setting)
    return _json({"config": {**config, "supervisor": supervisor} if supervisor else config})


def line_of(sample: Sample, engine: str = "") -> str | None:
    """One line, without its end; None for a finding, which stands in another line already."""
    if isinstance(sample, Milestone):
        sample = StateFile(t=sample.t, path="state.json", value=sample.phase)
    src = sample.src if isinstance(sample, Line) else _SOURCES.get(type(sample))
    if src is None:
        return None
    told = _told(sample)
    if isinstance(sample, Cgroup):
        told = {_CGROUP.get(name, name): value for name, value in told.items()}
    if isinstance(sample, Nvml):
        told["gpus"] = [_told(gpu) for gpu in sample.gpus]
    head = {"t": told.pop("t"), "src": src, **({"engine": engine} if engine else {})}
    return _json({**head, **{name: value for name, value in told.items() if name != "src"}})


def _told(value: Any) -> dict[str, Any]:
    """The fields that say something; a false or a zero does."""
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: each for name, each in found.items() if each is not UNKNOWN and each != "" and each != {}}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=list)
