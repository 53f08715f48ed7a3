"""Raw samples of one engine -> findings: how far a start is, what vLLM says, why it ended, what kernel and systemd say.

A finding comes after the sample that it was found in. Nothing of an engine's own output is believed about the kernel,
and nothing of another unit's lines about this engine.
"""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import replace

from appliance.samples import Boot, Ended, Finding, Line, Metrics, Milestone, Notice, Proc, Said, Sample, StateFile, Xid

from . import vllmlog
from .kernellog import finding_of
from .vllmcauses import cause_of
from .vllmsignatures import SIGNATURES
from .xid import Repeats

READY = "Application startup complete"
TOLD_TO_STOP = "[shutdown] API server: shutdown triggered"  # by a signal; an engine that dies does not say it
BANNER = "non-default args: "
_MAIN = re.compile(r"Main process exited, code=(?P<code>exited|killed|dumped), status=(?P<status>\d+)")
_RESULT = re.compile(r"Failed with result '(?P<result>[a-z-]+)'")
_DEACTIVATED = re.compile(r"Deactivated successfully|: Succeeded\.")
_CODES = {"exited": 1, "killed": 2, "dumped": 3}  # waitid(2)
_RESULTS = {1: "exit-code", 2: "signal", 3: "core-dump"}
_SHUTDOWN = re.compile(
    r"Reached target .*(?:Shutdown|Reboot|Power-?Off|Halt)|systemd-shutdown|System is (?:rebooting|powering)"
)


class Reader:
    """Reads the samples of one engine in their order; `unit` narrows systemd's lines, empty takes all as its own."""

    def __init__(self, unit: str = "") -> None:
        self._unit = unit
        self._log = vllmlog.Reader()
        self._lines: deque[vllmlog.Line] = deque(maxlen=vllmlog.KEPT_LINES)
        self._repeats = Repeats()
        self._last = ""
        self._said = ("", "")
        self._served = False
        self._began = False
        self._end: tuple[int, int] = (0, 0)
        self._down = False
        self._boot = ""
        self._shut_down = False

    def read(self, sample: Sample) -> tuple[Finding, ...]:
        """What a sample tells beyond itself."""
        if isinstance(sample, Line):
            boot = self._booted(sample.t, sample.boot)
            if sample.src == "journal":
                return (*boot, *self._journal(sample))
            return (*boot, *self._system(sample))
        if isinstance(sample, Proc) and sample.event:
            return self._cause(sample.t)
        if isinstance(sample, Metrics):
            self._served |= not sample.error and bool(sample.values)
        if isinstance(sample, StateFile):
            return self._state(sample)
        return ()

    def _journal(self, sample: Line) -> tuple[Finding, ...]:
        if self._unit and sample.unit and sample.unit != self._unit:
            return ()
        line = self._log.read(sample.msg)
        told: list[Finding] = []
        if line.text.startswith(BANNER) and (self._served or self._began):
            self._begin()
        self._lines.append(line)
        kind = vllmlog.notice(line.text, self._last)
        if kind in ("shm-wait", "jit"):
            return (Notice(t=sample.t, kind=kind),)
        progress = vllmlog.milestone(line.text)
        if line.text.startswith(TOLD_TO_STOP):
            return (Milestone(t=sample.t, phase="stopping"),)
        if line.text.startswith(READY):
            self._served = True
            told.append(Milestone(t=sample.t, phase="serving"))
        elif progress is not None:
            self._began = True
            joining = progress.message == vllmlog.JOINING
            told.append(Milestone(t=sample.t, phase=progress.phase, joining=joining))
        elif kind:
            told.append(Notice(t=sample.t, kind=kind))
        self._last = line.text
        dying = vllmlog.announces_death(line)
        if dying or (_may_tell(line) and _signs(line.text)):
            told += self._cause(sample.t)
        if dying:
            told.append(Notice(t=sample.t, kind="death"))
        return tuple(told)

    def _cause(self, t: float) -> tuple[Finding, ...]:
        """What the log gives as the cause by now, when it is news."""
        found = cause_of(list(self._lines), served=self._served)
        if found is None:
            return ()
        message = f"{found.message} ({found.remedy})" if found.remedy else found.message
        if self._said == (found.cause, message):
            return ()
        self._said = (found.cause, message)
        return (Said(t=t, cause=found.cause, message=message, hint=found.hint),)

    def _system(self, sample: Line) -> tuple[Finding, ...]:
        """A line of the kernel, of systemd or of systemd-oomd."""
        if sample.src == "systemd" and sample.unit and sample.unit not in sample.msg:
            sample = replace(sample, msg=f"{sample.unit}: {sample.msg}")  # as systemd's own messages begin
        found = finding_of(sample)
        if found is not None:
            return () if isinstance(found, Xid) and not self._repeats.is_new(found) else (found,)
        if _SHUTDOWN.search(sample.msg):
            self._shut_down = True
        if sample.src != "systemd" or not self._is_ours(sample):
            return ()
        return self._unit_line(sample)

    def _is_ours(self, sample: Line) -> bool:
        names = sample.unit + sample.msg
        return self._unit in names if self._unit else "llm-gateway" not in names and "llm-supervisor" not in names

    def _unit_line(self, sample: Line) -> tuple[Finding, ...]:
        """systemd's words about the engine's unit."""
        t, msg = sample.t, sample.msg.removeprefix(f"{sample.unit}: ")
        if match := _MAIN.search(msg):
            self._end = (_CODES[match["code"]], int(match["status"]))
            result = "success" if self._end == (1, 0) else _RESULTS[self._end[0]]
            self._down = True
            return (*self._cause(t), Ended(t=t, result=result, code=self._end[0], status=self._end[1]))
        if match := _RESULT.search(msg):
            return (*self._cause(t), Ended(t=t, result=match["result"], code=self._end[0], status=self._end[1]))
        if _DEACTIVATED.search(msg):
            return (Milestone(t=t, phase="exited"),)
        if msg.startswith("Stopping "):
            self._shut_down = True
            return (Milestone(t=t, phase="stopping"),)
        if msg.startswith("Starting ") or "Scheduled restart job" in msg or (self._down and msg.startswith("Started ")):
            self._begin()
            return (Milestone(t=t, phase="starting"),)
        if "start operation timed out" in msg or "start-up operation timed out" in msg:
            return (Ended(t=t, result="timeout", code=self._end[0], status=self._end[1]),)
        return ()

    def _state(self, sample: StateFile) -> tuple[Finding, ...]:
        if "boot_id" in sample.path:
            return self._booted(sample.t, sample.value.strip())
        if not sample.path.endswith("state.json"):
            return ()
        phase, start, joining = sample.value, "", False
        if phase.startswith("{"):
            try:
                value = json.loads(phase)
            except (ValueError, RecursionError):
                return ()
            phase, start = str(value.get("phase", "")), str(value.get("start", ""))
            joining = value.get("joining") is True or value.get("message") == vllmlog.JOINING
        if phase not in vllmlog.PHASES:
            return ()
        self._served |= phase == "serving"
        return (Milestone(t=sample.t, phase=phase, start=start, joining=joining),)

    def _booted(self, t: float, boot: str) -> tuple[Finding, ...]:
        """Another boot id than before: the machine was restarted, in order or not."""
        if not boot or boot == self._boot:
            return ()
        before, self._boot = self._boot, boot
        clean, self._shut_down = self._shut_down, False
        return (Boot(t=t, clean=clean),) if before else ()

    def _begin(self) -> None:
        self._lines.clear()
        self._served = self._began = self._down = False
        self._said, self._end = ("", ""), (0, 0)


def _may_tell(line: vllmlog.Line) -> bool:
    """Whether a line's words count: warnings quote the words of failures."""
    return line.priority <= vllmlog.ERR or not line.own_level


def _signs(text: str) -> bool:
    return any(signature.pattern.search(text) for signature in SIGNATURES)
