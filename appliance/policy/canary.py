"""When an idle engine is asked for a sign of life: one token, after `canary_after` without a request.

An engine that hangs in its first step after a rest looks idle until somebody needs it (vllm#51921); the canary is that
somebody. It is never sent to an engine that sleeps, drains or starts, nor beside real work, nor while one is out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """How an engine rests: seconds since its last request (a canary is one), and what forbids to wake it."""

    idle_s: float
    serving: bool
    asleep: bool = False
    draining: bool = False
    outstanding: bool = False


def is_due(rest: Rest, after_s: float | None) -> bool:
    """Whether a canary is to be sent now; `after_s` None is "off"."""
    if after_s is None or not rest.serving or rest.asleep or rest.draining or rest.outstanding:
        return False
    return rest.idle_s >= after_s
