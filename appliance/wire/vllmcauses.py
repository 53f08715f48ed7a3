"""Why vLLM died or did not start, as far as its own log can tell.

The last lines are never the cause: `Engine core initialization failed`, `EngineDeadError` and the rest of the carriers
are printed by processes that only met the consequences, and with several ranks each prints its own, often a secondary
one. So: all signatures are searched in time order, the most specific rank of signature wins, and within it the first
line. Only errors and lines without a level count: harmless warnings quote the same words.

Logs alone decide nothing: kernel, control group and GPU evidence beat what is found here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from appliance.quantity import format_signal
from appliance.wire.vllmlog import ERR, Line, announces_death
from appliance.wire.vllmsignatures import SIGNATURES, Signature

WINDOW = 200  # lines before a death that may explain it; older ones belong to requests that failed alone
_FITS = "max-model-len="  # as `policy/ladder` reads it: the longest context for which there is room
_KILLED = "killed"  # as `policy/failure` reads it: a process of the engine got SIGKILL
LONGEST_GROUP = 300  # characters of a quoted message


class Cause(NamedTuple):
    """A cause of the contract with its sentence, what to do, and the index of the line that gave it away."""

    cause: str
    message: str
    remedy: str
    line: int
    hint: str = ""  # `compile-cache`, `max-model-len=4096`, `killed`: what the log says beyond the cause's word


_QUOTED = ("    ", '  File "')
_KV_KNOWN = re.compile(r"Available KV cache memory|Explicitly set .* for KV cache|\w+ KV cache size:")
_RAISED = re.compile(r"(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt))\b")


def cause_of(lines: Sequence[Line], *, served: bool) -> Cause | None:
    """What the log of one run gives as the cause of its end; None when it says nothing.

    A run that served is searched from `WINDOW` lines before its first death announcement on, a start from its first
    line. The source lines that a traceback quotes do not count: they quote messages that were not raised.
    """
    start = 0
    if served:
        death = next((index for index, line in enumerate(lines) if announces_death(line)), None)
        start = max(0, len(lines) - WINDOW if death is None else death - WINDOW)
    best: tuple[int, int, Signature, re.Match[str]] | None = None
    for index in range(start, len(lines)):
        line = lines[index]
        if (line.own_level and line.priority > ERR and not announces_death(line)) or line.text.startswith(_QUOTED):
            continue
        for signature in SIGNATURES:
            if best is not None and signature.rank >= best[0]:
                continue
            if match := signature.pattern.search(line.text):
                best = (signature.rank, index, signature, match)
                break
        if best is not None and best[0] == 0:
            break
    return None if best is None else _told(lines, served, best[1], best[2], best[3])


def _told(lines: Sequence[Line], served: bool, index: int, signature: Signature, match: re.Match[str]) -> Cause:
    """A found signature as a cause with its sentence: some words depend on when, on a number or on what follows."""
    groups = ["" if group is None else group.strip()[:LONGEST_GROUP] for group in match.groups()]
    cause, remedy = signature.cause, signature.remedy
    extra: dict[str, str] = {}
    refine = _REFINED.get(cause)
    if refine is not None:
        cause, extra = refine(lines[: index + 1], lines[index:], served, groups)
    if "{3}" in remedy and not groups[3]:
        remedy = "lower max_model_len, or give the KV cache more memory"
    message = signature.message.format(*groups, **extra).strip()
    hint = f"{_FITS}{groups[3]}" if cause == "kv-too-small" and groups[3] else extra.get("hint", signature.hint)
    return Cause(cause, message, remedy.format(*groups), index, hint)


Refined = tuple[str, dict[str, str]]


def _oom(before: Sequence[Line], after: Sequence[Line], served: bool, groups: list[str]) -> Refined:
    if served:
        return "cuda-oom-serving", {"when": "while serving"}
    if any(_KV_KNOWN.match(line.text) for line in before):
        return "cuda-oom-warmup", {"when": "while vLLM warmed up"}
    return "cuda-oom-load", {"when": "while the weights were loaded"}


def _worker(before: Sequence[Line], after: Sequence[Line], served: bool, groups: list[str]) -> Refined:
    code = int(groups[1]) if re.fullmatch(r"-?\d+", groups[1]) else None
    if code is None:
        groups[1] = "its exit status is not known"
    else:
        groups[1] = format_signal(-code) if code < 0 else f"exit status {code}"
    # A worker that touches a page of a full /dev/shm gets SIGBUS and has no time for a word.
    return ("shm-full" if code == -7 else "worker-died"), ({"hint": _KILLED} if code == -9 else {})


def _exception(before: Sequence[Line], after: Sequence[Line], served: bool, groups: list[str]) -> Refined:
    """The name of the exception alone: its text may quote a request."""
    for line in after[1:]:
        found = None if line.text.startswith((" ", "Traceback")) else _RAISED.match(line.text)
        if found and not announces_death(line):
            return "engine-exception", {"exception": f" ({found[1]})"}
    return "engine-exception", {"exception": ""}


def _fatal_signal(before: Sequence[Line], after: Sequence[Line], served: bool, groups: list[str]) -> Refined:
    return ("engine-exception" if served else "start-failed"), {}


_REFINED: dict[str, Callable[[Sequence[Line], Sequence[Line], bool, list[str]], Refined]] = {
    "cuda-oom": _oom,
    "fatal-signal": _fatal_signal,
    "worker-died": _worker,
    "engine-exception": _exception,
}
