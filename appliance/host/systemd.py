"""systemd through `systemctl`: what units are, and asking PID 1 to change them; every call has a deadline.

A question or a request is a `Command`: its arguments and how its output is read. `ask` runs one in the calling thread,
`ask_async` in an event loop; there is no second copy of either. Nothing newer than systemd 249 is used. D-Bus would
save some milliseconds and cost a dependency; at one call each two seconds `show` is enough.

LLM_APPLIANCE_SYSTEMCTL names another program to ask instead, for development on a machine without systemd.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from appliance.errors import Unreachable

from . import children

T = TypeVar("T")

DEADLINE_S = 20.0  # PID 1 answers in milliseconds; a minute of silence means that it is not well
PROGRAM_VARIABLE = "LLM_APPLIANCE_SYSTEMCTL"
PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "ExecMainCode",
    "ExecMainStatus",
    "MainPID",
    "NRestarts",
    "InvocationID",
    "ControlGroup",
    "ConditionResult",
    "ConditionTimestampMonotonic",
    "StateChangeTimestampMonotonic",
    "ExecMainStartTimestampMonotonic",
    "StatusText",
    "Job",
)


@dataclass(frozen=True, slots=True)
class Completed:
    """What one call gave back."""

    status: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """Arguments for systemctl, and what its answer means. `read` may raise `Unreachable`."""

    arguments: tuple[str, ...]
    read: Callable[[Completed], T]


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as `systemctl show` tells it; words are systemd's, times monotonic seconds or None for never."""

    name: str
    load: str = ""
    active: str = ""
    sub: str = ""
    result: str = ""
    exit_code: int = 0  # CLD_EXITED 1, CLD_KILLED 2, CLD_DUMPED 3; 0 is none yet
    exit_status: int = 0
    main_pid: int = 0
    restarts: int = 0
    invocation: str = ""
    control_group: str = ""
    condition: bool | None = None  # None: never evaluated
    since: float | None = None
    started: float | None = None
    status_text: str = ""
    job: bool = False

    @property
    def exists(self) -> bool:
        """Whether systemd found a unit file for the name."""
        return self.load == "loaded"


def is_running() -> bool:
    """Whether systemd is this machine's PID 1 (or a stand-in was named)."""
    return bool(os.environ.get(PROGRAM_VARIABLE)) or Path("/run/systemd/system").is_dir()


def show(units: Sequence[str]) -> Command[dict[str, Unit]]:
    """The state of units, by name; a name may be a pattern, which gives the loaded ones that match."""
    return Command(("show", "--no-pager", f"--property={','.join(PROPERTIES)}", "--", *units), _read_show)


def change(verb: str, *units: str, block: bool = False) -> Command[Completed]:
    """start, stop, restart, reload or reset-failed of units; without `block` it returns when the job is queued."""
    options = () if block or verb == "reset-failed" else ("--no-block",)
    return Command((verb, "--no-ask-password", *options, "--", *units), _whole)


def kill(unit: str, signal: str, *, main: bool) -> Command[Completed]:
    """A signal for the main process or for all of a unit's."""
    return Command(("kill", f"--signal={signal}", f"--kill-who={'main' if main else 'all'}", "--", unit), _whole)


def daemon_reload() -> Command[Completed]:
    """Run the generators and read the unit files again."""
    return Command(("daemon-reload",), _whole)


def ask(command: Command[T], deadline_s: float = DEADLINE_S) -> T:
    """Run a command and read its answer; blocks up to the deadline. Raises Unreachable."""
    argv = [_program(), *command.arguments]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=deadline_s, env=_environment(), check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _late(command, deadline_s) from error
    except OSError as error:
        raise _absent(error) from error
    return command.read(Completed(done.returncode, _text(done.stdout), _text(done.stderr)))


async def ask_async(command: Command[T], deadline_s: float = DEADLINE_S) -> T:
    """`ask` without blocking the loop. A call that is late or cancelled leaves no process behind."""
    try:
        process = await asyncio.create_subprocess_exec(
            _program(),
            *command.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
        )
    except OSError as error:
        raise _absent(error) from error
    try:
        output, errors = await asyncio.wait_for(process.communicate(), deadline_s)
    except asyncio.TimeoutError as error:
        raise _late(command, deadline_s) from error
    finally:
        if process.returncode is None:
            children.kill(process)
            await process.wait()
    return command.read(Completed(process.returncode or 0, _text(output), _text(errors)))


def parse_show(text: str) -> list[dict[str, str]]:
    """The blocks of `systemctl show`, one a unit, separated by empty lines; lines without `=` are left out."""
    blocks: list[dict[str, str]] = [{}]
    for line in text.splitlines():
        if not line:
            blocks.append({})
            continue
        key, mark, value = line.partition("=")
        if mark:
            blocks[-1][key] = value
    return [block for block in blocks if block]


def unit_of(properties: Mapping[str, str]) -> Unit:
    """One block as a value; what is missing or no number keeps its default."""
    condition = properties.get("ConditionResult")
    evaluated = _seconds(properties.get("ConditionTimestampMonotonic"))
    return Unit(
        name=properties.get("Id", ""),
        load=properties.get("LoadState", ""),
        active=properties.get("ActiveState", ""),
        sub=properties.get("SubState", ""),
        result=properties.get("Result", ""),
        exit_code=_number(properties.get("ExecMainCode")),
        exit_status=_number(properties.get("ExecMainStatus")),
        main_pid=_number(properties.get("MainPID")),
        restarts=_number(properties.get("NRestarts")),
        invocation=properties.get("InvocationID", ""),
        control_group=properties.get("ControlGroup", ""),
        condition=None if evaluated is None or condition is None else condition == "yes",
        since=_seconds(properties.get("StateChangeTimestampMonotonic")),
        started=_seconds(properties.get("ExecMainStartTimestampMonotonic")),
        status_text=properties.get("StatusText", ""),
        job=_number(properties.get("Job")) != 0,
    )


def _read_show(done: Completed) -> dict[str, Unit]:
    if done.status != 0:
        raise Unreachable(f"systemctl show failed: {done.errors.strip() or f'status {done.status}'}")
    return {unit.name: unit for unit in map(unit_of, parse_show(done.output)) if unit.name}


def _whole(done: Completed) -> Completed:
    return done


def _program() -> str:
    return os.environ.get(PROGRAM_VARIABLE) or "systemctl"


def _environment() -> dict[str, str]:
    """Plain words, no pager, no colour, whatever the caller's locale."""
    return {**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}


def _late(command: Command[T], deadline_s: float) -> Unreachable:
    return Unreachable(f"systemctl {command.arguments[0]} did not answer within {deadline_s:.0f} s")


def _absent(error: OSError) -> Unreachable:
    return Unreachable(f"cannot run {_program()}: {(error.strerror or 'unknown error').lower()}")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _number(text: str | None) -> int:
    try:
        return int(text or "0")
    except ValueError:
        return 0


def _seconds(text: str | None) -> float | None:
    """Microseconds as seconds; systemd writes 0 for never."""
    microseconds = _number(text)
    return microseconds / 1e6 if microseconds > 0 else None
