"""Stacks that py-spy printed, as the launcher hands them out, and what two of them say of the time in between.

=== VLLM::EngineCor pid 7, parent 5, state R
Process 7: VLLM::EngineCore
Python v3.12.3 (/usr/bin/python3.12)

Thread 7 (active): "MainThread"
    all_reduce (vllm/distributed/device_communicators/pynccl.py:120)
    execute_model (vllm/v1/worker/gpu_worker.py:355)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from appliance.quantity import format_duration

MOST = 16  # processes that are compared; as many are asked
LONGEST = 120  # characters of a frame that is quoted
_TITLE = re.compile(r"=== (?P<comm>.+?) pid (?P<pid>\d+), parent")
_THREAD = re.compile(r'Thread \S+ \([^)]*\)(?:: "(?P<name>.*)")?')


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread of one process; the innermost frame comes first, and none where py-spy could not tell."""

    comm: str
    frames: tuple[str, ...] = ()


def stacks(text: str) -> dict[int, Stack]:
    """Each process's main thread, by pid."""
    found: dict[int, Stack] = {}
    pid = 0
    main: bool | None = None  # whether the lines are of a main thread; None before any thread
    for line in text.splitlines():
        if title := _TITLE.match(line):
            pid, main = int(title["pid"]), None
            found[pid] = Stack(title["comm"])
        elif thread := _THREAD.match(line):
            first = main is None
            main = thread["name"] == "MainThread" or (first and thread["name"] is None)
        elif main and pid and line.startswith("    "):
            known = found[pid]
            found[pid] = Stack(known.comm, (*known.frames, line.strip()))
    return found


def compared(before: Mapping[int, Stack], after: Mapping[int, Stack], apart_s: float) -> tuple[str, ...]:
    """A fact for each process whose stack is known twice: it is where it was, or it has moved."""
    facts = []
    for pid in sorted(set(before) & set(after))[:MOST]:
        then, now = before[pid], after[pid]
        if not then.frames or not now.frames:
            continue
        who, ago = f"{now.comm} ({pid})", f"{format_duration(apart_s)} ago"
        here = now.frames[0][:LONGEST]
        if then.frames == now.frames:
            facts.append(f"{who} is where it was {ago}: {here}")
        else:
            facts.append(f"{who} has moved: {here}, and {ago} {then.frames[0][:LONGEST]}")
    return tuple(facts)
