"""vLLM's log: what a line is, how far a start has come, and which lines announce a death.

The shape of a line since 0.10: `(EngineCore pid=7) INFO 11-29 11:48:57 [core.py:133] text`. Its processes also write
lines without any of that: uvicorn's `INFO:     text`, torch's `W1129 ...]`, progress bars, tracebacks, and whatever a
library prints. `file.py:line` moves in every release, so nothing here looks at it.

`Reader` gives each line a priority; a line without a level of its own continues the one before it of its process when
that was a traceback. `advance` is the automaton of a start: phases in `PHASES`' order, never back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

CRIT, ERR, WARNING, NOTICE, INFO, DEBUG = 2, 3, 4, 5, 6, 7  # syslog(3)
KEPT_LINES = 2000  # of a run's output, by each who remembers it
PHASES: Final = ("starting", "loading", "compiling", "warming", "serving", "stopping", "exited")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output. `process` is vLLM's name of the writer, empty where the line does not say.

    `own_level` is False where the priority is a guess: the line carried no level.
    """

    process: str
    pid: int | None
    priority: int
    text: str
    own_level: bool


_LEVELS = {"DEBUG": DEBUG, "INFO": INFO, "WARNING": WARNING, "ERROR": ERR, "CRITICAL": CRIT}
_LETTERS = {"I": INFO, "W": WARNING, "E": ERR, "F": CRIT}
_WRITER = re.compile(r"\((?P<process>[A-Za-z][\w.\-]*) pid=(?P<pid>\d+)\) ?")
_VLLM = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]]*\] ?")
_UVICORN = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL): {2,}")
_GLOG = re.compile(r"(?:\[rank\d+\]:)?\[?([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+")
_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|Fatal Python error|Process \S+:$|terminate called|.*\berror: |usage: vllm"
    r"|Exception in thread|Current thread 0x|Segmentation fault|Bus error"
)
_WARNS = re.compile(r"\S+:\d+: \w*Warning: |\w*Warning: ")
_LEFT = re.compile(r"\s|During handling of|The above exception|Thread 0x|Extension modules")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Failure)\b|AssertionError")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Reader:
    """Turns raw lines into `Line`s; remembers which processes are in the middle of a traceback."""

    def __init__(self) -> None:
        self._inside: set[str] = set()

    def read(self, raw: str) -> Line:
        """The meaning of one line, without its end."""
        rest = _COLOUR.sub("", raw).rstrip()
        process, pid = "", None
        if writer := _WRITER.match(rest):
            process, pid = writer["process"], int(writer["pid"])
            rest = rest[writer.end() :]
        for pattern, levels in ((_VLLM, _LEVELS), (_UVICORN, _LEVELS)):
            if match := pattern.match(rest):
                self._inside.discard(process)
                return Line(process, pid, levels[match[1]], rest[match.end() :], True)
        if match := _GLOG.match(rest):
            self._inside.discard(process)
            return Line(process, pid, _LETTERS[match[1]], rest, True)
        return Line(process, pid, self._guess(process, rest), rest, False)

    def _guess(self, process: str, text: str) -> int:
        """The priority of a line without a level: a traceback lasts to its exception's line, the rest is INFO."""
        if _TRACEBACK.match(text):
            self._inside.add(process)
            return ERR
        if process in self._inside:
            if _LEFT.match(text) or not text:
                return ERR
            self._inside.discard(process)
            return ERR
        if _EXCEPTION.match(text):
            return ERR
        return WARNING if _WARNS.match(text) else INFO


class Progress(NamedTuple):
    """Where a start stands; `message` is for people."""

    phase: str
    message: str


JOINING: Final = "joining the GPUs"

# What a healthy start says, in its order. `{0}` is the first group. FAILURES: text of the same meaning has survived
# many releases; where a line is renamed the phase is reached by the next one, and readiness never depends on a line.
_MILESTONES: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), phase, message)
    for pattern, phase, message in (
        (r"non-default args: ", "starting", "reading the model's configuration"),
        (r"Resolved architecture: (\w+)", "starting", "reading the model's configuration ({0})"),
        (r"Initializing a V1 LLM engine", "starting", "starting the engine's processes"),
        (r"vLLM is using nccl==", "starting", JOINING),
        (r"Starting to load model ", "loading", "loading weights"),
        (
            r"Loading \w+ checkpoint shards:\s+\d+% Completed \| ([1-9]\d*)/(\d+)",
            "loading",
            "loading weights {0} of {1} shards",
        ),
        (r"Loading weights took ", "loading", "weights are loaded"),
        (r"Model loading took ", "loading", "weights are loaded"),
        (r".*(?:Dynamo bytecode transform time|Using cache directory: .* torch\.compile)", "compiling", "compiling"),
        (r".*Compiling a graph for ", "compiling", "compiling"),
        (r".*torch\.compile took ", "compiling", "compiled"),
        (r"Available KV cache memory: (-?[\d.]+) GiB", "compiling", "{0} GiB are left for the KV cache"),
        (r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache", "compiling", "making a KV cache of {0} GiB"),
        (r"\w+ KV cache size: ([\d,]+) tokens", "compiling", "KV cache of {0} tokens"),
        (r"Capturing CUDA graphs.*?\| *(\d+)/(\d+)", "compiling", "capturing CUDA graphs {0} of {1}"),
        (r"Graph capturing finished", "compiling", "CUDA graphs are captured"),
        (r"init engine \(.*\) took ([\d.]+) s", "compiling", "engine initialised"),
        (r"Starting vLLM server on ", "compiling", "starting the HTTP server"),
        (r"Application startup complete", "compiling", "HTTP server is up"),
    )
)


def milestone(text: str) -> Progress | None:
    """What a line's text says of the start; None for a line that says nothing of it."""
    for pattern, phase, message in _MILESTONES:
        if match := pattern.match(text):
            return Progress(phase, message.format(*match.groups()))
    return None


def advance(now: Progress, text: str) -> Progress:
    """The progress after a line. The phase never goes back: a late rank's line changes nothing."""
    found = milestone(text)
    if found is None or PHASES.index(found.phase) < PHASES.index(now.phase):
        return now
    return found


# What is no milestone and still says whether an engine that is silent works: a rank waits for another one, a kernel is
# compiled while requests wait, anything new at all. Some lines are said again and again, whatever happens.
_SHM_WAIT = re.compile(r"No available shared memory broadcast block found")
_JIT = re.compile(r"(?:Triton )?kernel JIT compilation during inference", re.I)
_NOISE = re.compile(r"Waiting for \d+ (?:local|core|remote)|Engine \d+: Avg prompt throughput")


def notice(text: str, before: str = "") -> str:
    """What kind of sign of life a line's text is: `shm-wait`, `jit`, `line` for any other; empty for none.

    `before` is the text of the line before it: a line that is said again is no news.
    """
    if _SHM_WAIT.search(text):
        return "shm-wait"
    if _JIT.search(text):
        return "jit"
    return "" if text == before or not text or _NOISE.search(text) else "line"


# The carriers: they say that the engine is dying or has failed to start, not why.
_DEATHS = re.compile(
    r"EngineCore encountered a fatal error|EngineCore failed to start|Engine core initialization failed"
    r"|\[shutdown\] MPClient: engine core exited unexpectedly|Worker proc \S+ died unexpectedly"
    r"|RayWorkerProc .*died unexpectedly|WorkerProc failed|EngineDeadError|AsyncLLM output_handler failed"
)


def announces_death(line: Line) -> bool:
    """Whether vLLM says here that its engine is gone or cannot start: its main process must end soon after."""
    return line.priority <= WARNING and _DEATHS.search(line.text) is not None


def core_is_gone(line: Line) -> bool:
    """Whether vLLM's main process says that the engine core has ended by itself: all that it does then is to hand out
    errors, and to notice at its next look, which may be 5 s away, that it is to end."""
    return line.priority <= WARNING and "[shutdown] MPClient: engine core exited unexpectedly" in line.text


def waits_for_clients(line: Line) -> bool:
    """vLLM's HTTP server has stopped and waits for its open connections, without a limit: after a drain that ran out
    of time, or a death, their streams never end."""
    return line.text.startswith("Waiting for connections to close")


_TRIVIA = re.compile(r"(?:.*\| )?Available routes are|Route: |\s*$|[\s▄█▀]+$")


def is_trivia(line: Line) -> bool:
    """A line that nobody needs in the journal: the banner, blank lines, the list of routes."""
    return line.priority >= INFO and _TRIVIA.match(line.text) is not None
