"""`doctor --deep`: trials that take minutes and the GPUs' time, and what they say an engine must be started with.

Two GPUs are tried only while no engine has them: a trial beside an engine may take its memory, or hang with it.
"""

from __future__ import annotations

import asyncio
import os
import time
from itertools import combinations

from appliance.config import snapshot
from appliance.config.model import Config
from appliance.errors import Failed
from appliance.gpufacts import ReadSpeed, Smi, Tried
from appliance.host import places
from appliance.host.checkup import deep as trials
from appliance.host.command import Late, Silent
from appliance.hostfacts import HostFacts, ModelFiles, NotKnown
from appliance.policy.checkup import deep, driver, links
from appliance.policy.checkup.deep import Setting
from appliance.policy.finding import Finding, Verdict
from appliance.quantity import UNKNOWN

from . import dropin, output

DROPIN = "80-doctor.toml"


def look(facts: HostFacts, config: Config) -> tuple[list[Finding], tuple[Setting, ...]]:
    """The findings, and the settings to write."""
    tried, why = _links(facts)
    spans = {engine.name: gpus for engine in config.engines for name, gpus in links.spans(facts).items()
             if name in engine.instances}  # fmt: skip
    wanted = deep.settings(tried, spans)
    needed = lacking(config, wanted)
    found = [Finding(deep.LINKS, Verdict.SKIPPED, why)]
    if tried:
        found = deep.links(tried, needed, settled=bool(wanted) and not needed)
    return [*found, *_disks(facts)], to_write(config, wanted)


def lacking(config: Config, wanted: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Those that an engine is not configured with."""
    return tuple(each for each in wanted if not _has(config, each))


def to_write(config: Config, wanted: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """All as soon as one is lacking: the drop-in replaces the one that gave engines theirs before."""
    return wanted if lacking(config, wanted) else ()


def _has(config: Config, setting: Setting) -> bool:
    """Whether an engine is configured so already."""
    engine = next(each for each in config.engines if each.name == setting.engine)
    return setting.env.items() <= engine.env.items() and setting.flags.items() <= engine.vllm.items()


def _links(facts: HostFacts) -> tuple[tuple[Tried, ...], str]:
    """The trials, or why there are none."""
    if not driver.has_gpus(facts):
        return (), "no GPU"
    if isinstance(facts.smi, NotKnown) or facts.smi.error:
        return (), "the driver does not answer"
    if len(facts.smi.gpus) < 2:
        return (), "one GPU"
    if isinstance(facts.runtime, NotKnown) or not (facts.runtime.complete and facts.runtime.device == "cuda"):
        return (), "there is no runtime for CUDA yet, whose torch and NCCL are tried"
    ordered = sorted(facts.smi.gpus, key=lambda gpu: gpu.pci)
    pairs = links.pairs(facts) or frozenset(combinations(range(len(ordered)), 2))
    busy = _busy(facts.smi)
    if busy:
        return (), f"{busy}: llm-appliance hold the engine, and resume it afterwards"
    python = f"{places.from_environment().state}/runtimes/current/bin/python"
    uuids = [gpu.uuid for gpu in ordered]
    return asyncio.run(trials.try_links(python, uuids, pairs, output.note)), ""


def _busy(smi: Smi) -> str:
    """Who has a GPU now; empty where nobody."""
    for gpu in smi.gpus:
        if gpu.processes is UNKNOWN:
            return f"whether GPU {gpu.pci} is free is not known"
        if gpu.processes:
            who = gpu.processes[0]
            return f"GPU {gpu.pci} is in use by {who.unit or who.name} (pid {who.pid})"
    return ""


def _disks(facts: HostFacts) -> list[Finding]:
    """The largest model on each disk."""
    models = () if isinstance(facts.models, NotKnown) else facts.models
    largest: dict[int, tuple[int, ModelFiles]] = {}
    for model in models:
        if model.size is UNKNOWN or not model.size:
            continue
        device = os.stat(model.path).st_dev
        if model.size > largest.get(device, (0, model))[0]:
            largest[device] = model.size, model
    if not largest:
        return [Finding(deep.DISK, Verdict.SKIPPED, "no model is here to be read")]
    return [deep.disk(asyncio.run(_read(model.path)), model.model, size) for size, model in largest.values()]


async def _read(path: str) -> ReadSpeed | NotKnown:
    try:
        return await trials.read_speed(path)
    except Late as error:
        return NotKnown(str(error), late=True, state=error.state)
    except (Silent, OSError, ValueError) as error:
        return NotKnown(str(error))


def write(settings: tuple[Setting, ...], config_path: str, *, sure: bool) -> None:
    """The settings as a drop-in of the configuration. Raises Failed, Unreachable."""
    path = dropin.path_of(config_path, DROPIN)
    if not sure and not dropin.agreed(path):
        raise Failed("nothing was written", hint="--yes writes it without asking")
    head = f"# Written by llm-appliance doctor --deep on {time.strftime('%Y-%m-%d')}, after trials of the GPUs.\n"
    raw = {"engine": [{"name": each.engine, **({"env": dict(each.env)} if each.env else {}), "vllm": dict(each.flags)}
                      for each in settings]}  # fmt: skip
    dropin.write(config_path, path, head + snapshot.document(raw))
    output.note(f"{path} written; llm-appliance apply makes it take effect")
