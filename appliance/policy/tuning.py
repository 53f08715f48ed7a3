"""Which settings follow from a measured ladder, each with its reason.

Only what was measured is proposed: a batch that nobody has tried gets an advice and no setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from appliance.config.model import Config, Engine

from .flagnumbers import batch_limit
from .loadfigures import Step
from .loadladder import Best

NEAR = 0.2  # of a queue's size: closer than that the one in force is as good as the derived one
QUEUE_MIN = 16


@dataclass(frozen=True, slots=True)
class Setting:
    """One key to write; below `engine.` it is the engine's. `was` None: not set, so vLLM's own default."""

    path: str
    value: int
    was: int | str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Tuning:
    """What to write, and what else an operator should know."""

    settings: tuple[Setting, ...]
    notes: tuple[str, ...]


def derive(config: Config, engine: Engine, found: Best) -> Tuning:
    """The settings of `engine` under a load like the measured one."""
    replicas = len(engine.instances)
    settings: list[Setting] = []
    notes: list[str] = []
    each = ceil(found.step.concurrency / replicas)
    _batch(engine, found, each, settings, notes)
    if len(config.engines) == 1:
        _in_flight(config, each, settings, notes)
        _queue(config, found.step, settings, notes)
    else:
        notes.append(
            "[gateway.admission] holds for all engines: it is left as it is, since only one of them was measured"
        )
    return Tuning(tuple(settings), tuple(notes))


def _batch(engine: Engine, found: Best, each: int, settings: list[Setting], notes: list[str]) -> None:
    was = batch_limit(engine.vllm)
    if found.open_ended:
        more = f"max_num_seqs = {each * 2}" if was is not None and each >= was else "more at once (--concurrency)"
        notes.append(f"the last step was the best one: more may be possible; try {more} and measure again")
        return
    if was == each:
        notes.append(f"max_num_seqs is {was} already")
        return
    if was is not None and each > was:
        notes.append(
            f"max_num_seqs is {was}, and {each} for each replica were best: what waits inside the engine costs nothing "
            "here, and a larger batch was not measured"
        )
        return
    settings.append(Setting("engine.vllm.max_num_seqs", each, was, found.reason))


def _in_flight(config: Config, each: int, settings: list[Setting], notes: list[str]) -> None:
    was = config.gateway.admission.max_in_flight
    if was == "auto":
        notes.append('gateway.admission.max_in_flight stays "auto": it adapts, up to max_num_seqs')
    elif was < each:
        settings.append(
            Setting("gateway.admission.max_in_flight", each, was, f"{was} would keep the engine from {each} at once")
        )


def _queue(config: Config, step: Step, settings: list[Setting], notes: list[str]) -> None:
    admission = config.gateway.admission
    size = max(round(step.requests_per_s * admission.queue_timeout), QUEUE_MIN)
    reason = (
        f"{step.requests_per_s:.3g} requests/s are answered: so many in {admission.queue_timeout:g} s (queue_timeout); "
        "who stands behind them waits in vain and is better refused at once"
    )
    if abs(size - admission.queue_size) <= NEAR * admission.queue_size:
        notes.append(f"gateway.admission.queue_size stays {admission.queue_size}: {size} would follow")
    else:
        settings.append(Setting("gateway.admission.queue_size", size, admission.queue_size, reason))


def dropin(settings: Sequence[Setting], engine: str, head: Sequence[str]) -> str:
    """The settings as a drop-in, `head` as comments above them."""
    lines = [f"# {text}" for text in head]
    gateway = [one for one in settings if one.path.startswith("gateway.admission.")]
    flags = [one for one in settings if one.path.startswith("engine.vllm.")]
    if gateway:
        lines += ["", "[gateway.admission]", *_keys(gateway)]
    if flags:
        lines += ["", "[[engine]]", f'name = "{engine}"', "", "[engine.vllm]", *_keys(flags)]
    return "\n".join(lines) + "\n"


def _keys(settings: Sequence[Setting]) -> list[str]:
    return [line for one in settings
            for line in (f"# {one.reason}", f"{one.path.rpartition('.')[2]} = {one.value}")]  # fmt: skip
