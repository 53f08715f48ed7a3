"""How a run ended: its cause, its sentence, and the launcher's exit status. Decided from values; nothing is read here.

vLLM's own exit status says little: it is 0 when a serving engine died, and 1 for every failed start.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from appliance import names
from appliance.quantity import format_duration, format_signal
from appliance.wire.vllmcauses import Cause, cause_of
from appliance.wire.vllmlog import Line

# The next start would end the same way until a file or the host changes: the contract's group "will not get better",
# and a model that does not fit. The supervisor's ladder may have a step for that, and then starts the unit with a
# change; all that this status turns off is systemd's own restart, which would try the same every 30 s for ever.
LASTING = frozenset(
    {"config-error", "model-not-found", "model-unreadable", "hub-denied", "disk-full", "toolchain-missing"}
    | {"cuda-oom-load", "kv-none", "kv-too-small"}
)
QUOTED_LINES = 60  # of the log in a verdict: from a little before the line that gave the cause
_BEFORE = 15
_ARGPARSE = 2


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known when vLLM is gone. `status` is its wait status, None when it never ran or could not be reaped."""

    status: int | None
    requested: bool
    served: bool
    late_s: float | None = None  # the start was given up after so many seconds
    own: int | None = None  # lines that it had said by then; the stacks behind them were asked for, and tell no cause


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a run. `cause` is None when it was asked for."""

    cause: str | None
    message: str
    exit_status: int
    lines: tuple[str, ...]
    hint: str = ""  # what the log says beyond the cause


def verdict_of(ending: Ending, lines: Sequence[Line], known: Cause | None = None) -> Verdict:
    """Judge an ending by the lines of its log, or by a cause that was `known` before vLLM was started."""
    if ending.requested:
        return Verdict(None, "stopped as asked", names.LAUNCHER_STOPPED, ())
    found = known or cause_of(lines[: ending.own], served=ending.served)
    if ending.late_s is not None and (found is None or found.cause in ("engine-died", "engine-exception")):
        message = f"not serving after {format_duration(ending.late_s)}"
        found = Cause("start-timeout", message, "raise startup_timeout if the model is large or its disk slow", -1)
    if found is None:
        found = _from_status(ending)
    first = max(0, found.line - _BEFORE) if found.line >= 0 else max(0, len(lines) - QUOTED_LINES)
    quoted = tuple(_show(line) for line in lines[first : first + QUOTED_LINES])
    message = f"{found.message} ({found.remedy})" if found.remedy else found.message
    if ending.served:
        return Verdict(found.cause, message, names.LAUNCHER_ENGINE_DIED, quoted, found.hint)
    status = names.LAUNCHER_CONFIG if found.cause in LASTING else names.LAUNCHER_START_FAILED
    return Verdict(found.cause, message, status, quoted, found.hint)


def exit_of(status: int | None) -> tuple[int | None, int | None]:
    """(exit status, signal) of a wait status; the one that does not apply is None."""
    if status is None:
        return None, None
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def _from_status(ending: Ending) -> Cause:
    """The cause when the log says nothing."""
    code, signal = exit_of(ending.status)
    if signal == 4 and not ending.served:
        return Cause("start-failed", "vLLM was stopped by SIGILL: this CPU lacks instructions its build needs", "", -1)
    if code == _ARGPARSE and not ending.served:
        return Cause("config-error", "vLLM refuses its arguments (exit status 2)", "correct [engine.vllm]", -1)
    if signal is not None:
        how = f"was ended by {format_signal(signal)}"
    else:
        how = "cannot be ended" if code is None else f"exited with status {code}"
    if ending.served:
        return Cause("engine-died", f"vLLM {how} while it served", "", -1)
    return Cause("start-failed", f"vLLM {how} before it served", "the engine's lines in the journal say more", -1)


def _show(line: Line) -> str:
    return f"({line.process} pid={line.pid}) {line.text}" if line.process else line.text
