"""The first line of a recorded timeline: the setting that its samples are judged against, and the baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Learned, Setting, Usual

from .pciid import pci_id
from .timelinefields import Fields, Wrong

_USUAL = ("idle_power_w", "busy_power_w", "busy_mem_util")


def setting_of(config: Mapping[str, Any]) -> Setting:
    """The setting in `{"config": ...}`. Raises Wrong."""
    fields = Fields(config)
    ranks = {}
    for name in ("tp", "pp"):
        count = fields.integer(name)
        ranks[name] = 1 if count is UNKNOWN else count
        if ranks[name] < 1:
            raise Wrong(name, "is less than 1")
    gpus = config.get("gpus")
    listed = config.get("engine_gpu_pci")
    if listed is not None and not (isinstance(listed, list) and all(isinstance(each, str) for each in listed)):
        raise Wrong("engine_gpu_pci", "is not a list of PCI ids")
    learned = config.get("learned")
    if learned is not None and not isinstance(learned, dict):
        raise Wrong("learned", "is not an object")
    return Setting(
        engine=fields.text("engine") or "default",
        tp=ranks["tp"],
        pp=ranks["pp"],
        gpus=len(gpus) if isinstance(gpus, list) else fields.integer("gpus"),
        engine_gpu_pci=tuple(pci_id(each) or each.lower() for each in listed or ()),
        learned=learned_of(learned or {}, tuple(listed or ())),
        service_user=fields.text("service_user") or "llm-engine",
    )


def learned_of(value: Mapping[str, Any], pci: tuple[str, ...] = ()) -> Learned:
    """Baselines: `idle_power_w`, `busy_power_w`, `busy_mem_util` for all GPUs, or for each below `gpus` by PCI id.

    A list is one figure for each GPU of `pci`, in its order; `{"idle": {"power_w": ...}}` is read as `idle_power_w`.
    """
    found: dict[str, dict[str, float]] = {}
    rate: Maybe[float] = UNKNOWN
    for path, number in _leaves(value, ()):
        words = "_".join(path).lower()
        if "prefill" in words:
            rate = number
            continue
        gpu = next((pci_id(part) for part in path if pci_id(part)), "")
        if not gpu and path[-1].isdecimal() and int(path[-1]) < len(pci):
            gpu = pci_id(pci[int(path[-1])])
        kind = "idle" if "idle" in words else "busy" if "busy" in words else ""
        power = "power" in words or words.endswith("_w")
        name = f"{kind}_mem_util" if "mem" in words else f"{kind}_power_w" if power else ""
        if kind and name in _USUAL:
            found.setdefault(gpu, {})[name] = number
    whole = found.get("", {})
    gpus = {gpu: Usual(**{**whole, **figures}) for gpu, figures in found.items()}
    return Learned(gpus=gpus, prefill_rate=rate)


def _leaves(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, (*path, str(key)))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _leaves(each, (*path, str(index)))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = Fields({"figure": value}, "learned.").need_number("figure")
        yield path, number


def as_config(setting: Setting) -> dict[str, Any]:
    """The setting as the first line of a recording holds it."""
    learned: dict[str, Any] = {}
    for pci, usual in setting.learned.gpus.items():
        figures = {name: getattr(usual, name) for name in _USUAL if getattr(usual, name) is not UNKNOWN}
        if pci:
            learned.setdefault("gpus", {})[pci] = figures
        else:
            learned.update(figures)
    if setting.learned.prefill_rate is not UNKNOWN:
        learned["prefill_rate"] = setting.learned.prefill_rate
    made: dict[str, Any] = {"engine": setting.engine, "tp": setting.tp, "pp": setting.pp}
    if setting.gpus is not UNKNOWN:
        made["gpus"] = setting.gpus
    made["engine_gpu_pci"] = list(setting.engine_gpu_pci)
    return {**made, "learned": learned, "service_user": setting.service_user}
