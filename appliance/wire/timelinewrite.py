"""Samples as the objects of a recorded timeline, a line of JSON each; `timeline.read` gives them back.

What is found in lines is not written: a reader finds it again in them. What the launcher alone has told is: a milestone
as the state file that it came from, and notices.
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
    Notice,
    Nvml,
    Proc,
    Sample,
    Setting,
    StateFile,
)

from .timelinesetting import as_config

_SOURCES: dict[type[Any], str] = {
    Metrics: "metrics", Health: "health", Nvml: "nvml", Ledger: "ledger", Proc: "proc", Cgroup: "cgroup", Fs: "fs",
    StateFile: "state_file", Canary: "canary", Lag: "lag", Notice: "notice",
}  # fmt: skip
_CGROUP = {"events": "memory.events", "current_gib": "memory.current_gib", "peak_gib": "memory.peak_gib"}


def header(setting: Setting, supervisor: dict[str, Any] | None = None) -> dict[str, Any]:
    """The first line as an object; `supervisor` are settings of that section in TOML's form."""
    config = as_config(setting)
    return {"config": {**config, "supervisor": supervisor} if supervisor else config}


def record_of(sample: Sample, engine: str = "") -> dict[str, Any] | None:
    """One line as an object for JSON; None for a finding, which stands in another line already."""
    if isinstance(sample, Milestone):
        state = {"phase": sample.phase, "start": sample.start, "joining": sample.joining}
        sample = StateFile(t=sample.t, path="state.json", value=json.dumps(state))
    src = sample.src if isinstance(sample, Line) else _SOURCES.get(type(sample))
    if src is None:
        return None
    told = _told(sample)
    if isinstance(sample, Cgroup):
        told = {_CGROUP.get(name, name): value for name, value in told.items()}
    if isinstance(sample, Nvml):
        told["gpus"] = [_told(gpu) for gpu in sample.gpus]
    head = {"t": told.pop("t"), "src": src, **({"engine": engine} if engine else {})}
    return {**head, **{name: value for name, value in told.items() if name != "src"}}


def _told(value: Any) -> dict[str, Any]:
    """The fields that say something; a false or a zero does."""
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: each for name, each in found.items() if each is not UNKNOWN and each != "" and each != {}}
