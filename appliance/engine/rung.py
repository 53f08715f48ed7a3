"""What the supervisor changes about a start: the rungs of the engine's ladder, read before vLLM is started.

A file that is missing, unreadable or written for another configuration, runtime or set of GPUs changes nothing; nor
does one that names anything but what the ladder may set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance import names
from appliance.host import files
from appliance.host.places import Places
from appliance.policy.ladder import ENV, FLAGS, Place
from appliance.wire.vllmargs import Change

# What the supervisor needs to know of a start: what a rung may change, and what decides whether it may.
SHOWN = FLAGS | {"kv_cache_memory_bytes", "enable_chunked_prefill"}


@dataclass(frozen=True, slots=True)
class Rung:
    """The change, in a sentence, and the name of a wish to have compile caches moved away (empty: none)."""

    change: Change = field(default_factory=Change)
    told: str = ""
    caches: str = ""


def read(instance: str, where: Places, run: str, place: Place) -> Rung:
    """What is to be changed about a start at `place`."""
    for path in (f"{where.under_state(names.RUNGS)}/{instance}.json", names.engine_rung(instance, run)):
        value = files.read_json(path)
        if value is not None:
            return _rung(value, place)
    return Rung()


def _rung(value: Mapping[str, object], place: Place) -> Rung:
    gpus, flags, env = value.get("gpus"), value.get("flags"), value.get("env")
    listed = tuple(map(str, gpus)) if isinstance(gpus, list) else ()
    if Place(str(value.get("digest")), str(value.get("runtime")), listed) != place:
        return Rung()
    flags, env = flags if isinstance(flags, dict) else {}, env if isinstance(env, dict) else {}
    if not (FLAGS.issuperset(flags) and ENV.issuperset(env)):
        return Rung()
    change = Change(flags, {key: str(text) for key, text in env.items()})
    return Rung(change, str(value.get("told") or ""), str(value.get("caches") or ""))
