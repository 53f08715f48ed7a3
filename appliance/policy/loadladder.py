"""How far a ladder of concurrency goes up, and which of its steps is the best place to work at.

What is compared is goodput where there is a target, else tokens a second. Going up ends where it falls, where it grows
no more, where requests fail, or at the engine's own limit: beyond that they would only wait inside the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .loadfigures import Step

HIGHEST = 1024  # vLLM's largest default of max_num_seqs
FELL = 0.9  # of the best: a step below that is no noise
GREW = 1.03  # over the best before: less is none
FLAT_STEPS = 2  # without growth, one after the other
FAILING = 0.05  # of a step's requests
ENOUGH = 0.95  # of the best rate at fewer requests at once: the rest buys waiting
KEPT = 0.95  # of a step's requests that must be good for it to be a place to work at


def rate(step: Step) -> float:
    """What the ladder compares."""
    return step.tokens_per_s if step.goodput is None else step.goodput


def following(steps: Sequence[Step], limit: int) -> tuple[int | None, str]:
    """The next number of requests at once, by doubling; None with the reason to stop."""
    if not steps:
        return 1, ""
    last = steps[-1]
    stop = _fault(last) or _saturated(steps)
    if stop:
        return None, stop
    if last.concurrency >= limit:
        return None, f"{limit} at once is the limit"
    return min(last.concurrency * 2, limit), ""


def _fault(step: Step) -> str:
    asked = step.completed + step.failed
    if not step.completed:
        return f"no request was answered with {step.concurrency} at once"
    if step.failed > FAILING * asked:
        return f"{step.failed} of {asked} requests failed with {step.concurrency} at once"
    if step.good == 0:
        return f"no request kept the target with {step.concurrency} at once"
    return ""


def _saturated(steps: Sequence[Step]) -> str:
    what = "tokens/s" if steps[-1].goodput is None else "goodput"
    if len(steps) > 1 and rate(steps[-1]) < FELL * max(map(rate, steps[:-1])):
        return f"{what} fell with {steps[-1].concurrency} at once"
    if len(steps) > FLAT_STEPS and max(map(rate, steps[-FLAT_STEPS:])) < GREW * max(map(rate, steps[:-FLAT_STEPS])):
        return f"{what} grows no more beyond {steps[-FLAT_STEPS - 1].concurrency} at once"
    return ""


@dataclass(frozen=True, slots=True)
class Best:
    """The step to work at and why. `open_ended`: the ladder ended while more was still to be had."""

    step: Step
    reason: str
    open_ended: bool


def best(steps: Sequence[Step]) -> Best | None:
    """The fewest requests at once with (nearly) the best rate of all usable steps; None where none is usable."""
    usable = [step for step in steps if step.completed and step.kept >= KEPT and not step.cut]
    if not usable:
        return None
    top = max(usable, key=rate)
    chosen = min((step for step in usable if rate(step) >= ENOUGH * rate(top)), key=lambda step: step.concurrency)
    highest = max(steps, key=lambda step: step.concurrency)
    said = f"{chosen.concurrency} at once: {chosen.tokens_per_s:,.0f} tokens/s"
    if chosen.good is not None:
        said += f", {chosen.kept:.0%} of the requests within the target"
    beyond = next((step for step in sorted(steps, key=lambda s: s.concurrency)
                   if step.concurrency > chosen.concurrency), None)  # fmt: skip
    if beyond is not None:
        said += f"; {beyond.concurrency} at once: {_against(beyond, chosen)}"
    return Best(chosen, said, chosen is highest)


def _against(other: Step, step: Step) -> str:
    if not other.completed:
        return "nothing"
    said = f"{other.tokens_per_s / step.tokens_per_s - 1:+.0%} tokens/s" if step.tokens_per_s else "more"
    if other.kept < KEPT:
        good = "whole" if other.good is None else "within the target"
        return f"{said}, but only {other.kept:.0%} of the requests {good}"
    if other.ttft is not None and step.ttft is not None and step.ttft.p50 > 0:
        said += f", first tokens after {other.ttft.p50 / step.ttft.p50:.1f} times as long"
    return said
