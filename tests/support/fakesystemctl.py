"""A systemctl without systemd: a real program that keeps unit states in a file, and the hand that tests use on it.

As a program it answers `show` and carries out start, stop, restart, kill, reset-failed, reload and daemon-reload on the
file that FAKE_SYSTEMD names. A start leaves a unit `activating` until a test says that it serves, or `active` at once
for units that match `ready`; the unit's hold file is its condition.

A supervisor in a test asks ten times a second: the program imports hardly anything for that, which halves its cost, and
its file is `marshal`'s.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, BinaryIO

DEFAULT = {
    "LoadState": "loaded",
    "ActiveState": "inactive",
    "SubState": "dead",
    "Result": "success",
    "ExecMainCode": 0,
    "ExecMainStatus": 0,
    "MainPID": 0,
    "NRestarts": 0,
    "InvocationID": "",
    "ControlGroup": "",
    "ConditionResult": "no",
    "ConditionTimestampMonotonic": 0,
    "StateChangeTimestampMonotonic": 0,
    "ExecMainStartTimestampMonotonic": 0,
    "StatusText": "",
    "Job": 0,
}


class Opened:
    """The state, locked; what was changed is written back where nothing was raised."""

    def __init__(self, path: str | Path) -> None:
        self.path = path

    def __enter__(self) -> dict[str, Any]:
        self.file: BinaryIO = open(self.path, "r+b")
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.state: dict[str, Any] = marshal.load(self.file)
        return self.state

    def __exit__(self, kind: object, *_: object) -> None:
        with self.file:
            if kind is None:
                self.file.seek(0)
                marshal.dump(self.state, self.file)
                self.file.truncate()


def matches(name: str, pattern: str) -> bool:
    """As systemd's patterns with one `*` at most."""
    head, star, tail = pattern.partition("*")
    return name.startswith(head) and name.endswith(tail) and len(name) >= len(head + tail) if star else name == pattern


def unit(state: dict[str, Any], name: str) -> dict[str, Any]:
    """A unit's properties, made on first use."""
    found: dict[str, Any] = state["units"].setdefault(name, dict(DEFAULT))
    return found


def _now() -> int:
    return int(time.monotonic() * 1e6)


def start(state: dict[str, Any], name: str) -> None:
    """What PID 1 does on a start."""
    found = unit(state, name)
    instance = name.partition("@")[2].removesuffix(".service")
    held = bool(instance) and os.path.exists(os.path.join(state["holds"], instance))
    found |= {"ConditionResult": "no" if held else "yes", "ConditionTimestampMonotonic": _now(), "Job": 0}
    if held or found["ActiveState"] == "active":
        return
    ready = any(matches(name, pattern) for pattern in state["ready"])
    found |= {
        "ActiveState": "active" if ready else "activating",
        "SubState": "running" if ready else "start",
        "Result": "success",
        "ExecMainCode": 0,
        "ExecMainStatus": 0,
        "InvocationID": os.urandom(16).hex(),
        "StateChangeTimestampMonotonic": _now(),
        "ExecMainStartTimestampMonotonic": _now(),
    }


def stop(state: dict[str, Any], name: str) -> None:
    """What PID 1 does on a stop; a failed unit stays failed."""
    found = unit(state, name)
    if found["ActiveState"] != "failed":
        found |= {"ActiveState": "inactive", "SubState": "dead", "StateChangeTimestampMonotonic": _now(), "Job": 0}


def kill(control_group: str, name: str) -> None:
    """The signal to all processes that the group's file lists; a unit without a group has none."""
    try:
        with open(f"/sys/fs/cgroup/{control_group.lstrip('/')}/cgroup.procs") as file:
            pids = file.read().split()
    except OSError:
        return
    import signal

    for pid in pids:
        try:
            os.kill(int(pid), signal.Signals[name])
        except ProcessLookupError:
            continue


def show(state: dict[str, Any], names: list[str], properties: list[str]) -> str:
    """The blocks that `systemctl show` prints."""
    matched: list[str] = []
    for name in names:
        found = [each for each in sorted(state["units"]) if matches(each, name)] if "*" in name else [name]
        matched += [each for each in found if each not in matched]
    blocks = []
    for name in matched:
        values = {**unit(state, name), "Id": name}
        known = [key for key in properties if key in values and (key != "Job" or values["Job"])]
        blocks.append("".join(f"{key}={values[key]}\n" for key in known))
    return "\n".join(blocks)


def main(arguments: list[str]) -> int:
    """One call of systemctl."""
    words = [word for word in arguments if not word.startswith("--")]
    options = dict(word[2:].partition("=")[::2] for word in arguments if word.startswith("--") and word != "--")
    verb, names = words[0], words[1:]
    with Opened(os.environ["FAKE_SYSTEMD"]) as state:
        if verb != "show":
            state["calls"].append([verb, *names, *([options["signal"]] if "signal" in options else [])])
        if verb in state["refused"]:
            print(f"Failed to {verb}: {state['refused'][verb]}", file=sys.stderr)
            return 1
        if verb == "show" and names not in state["shown"]:
            state["shown"].append(names)
        if verb == "show":
            sys.stdout.write(show(state, names, options["property"].split(",")))
        for name in names:
            if verb == "kill":
                kill(unit(state, name)["ControlGroup"], options["signal"])
            if verb in ("stop", "restart"):
                stop(state, name)
            if verb in ("start", "restart"):
                if verb == "restart":
                    unit(state, name)["ActiveState"] = "inactive"
                start(state, name)
    return 0


class FakeSystemd:
    """A test's hold on the state: where the program is, what was called, what units are made to be."""

    def __init__(self, directory: Path, holds: Path) -> None:
        self.path = directory / "systemd.state"
        empty = {"units": {}, "calls": [], "shown": [], "refused": {}, "ready": [], "holds": str(holds)}
        self.path.write_bytes(marshal.dumps(empty))
        self.program = directory / "systemctl"
        run = f"import sys; sys.path.append({os.path.dirname(__file__)!r}); import fakesystemctl as it"
        run += "; sys.exit(it.main(sys.argv[1:]))"  # imported: a script is compiled each time
        self.program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E -c "{run}" "$@"\n')
        self.program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to meet this systemd instead of a real one."""
        return {"LLM_APPLIANCE_SYSTEMCTL": str(self.program), "FAKE_SYSTEMD": str(self.path)}

    @property
    def calls(self) -> list[list[str]]:
        """Changes that were asked for, oldest first."""
        with Opened(self.path) as state:
            return list(state["calls"])

    def was_shown(self, *names: str) -> bool:
        """Whether somebody looked at these units, and at no others with them."""
        with Opened(self.path) as state:
            return list(names) in state["shown"]

    def get(self, name: str) -> dict[str, Any]:
        """A unit's properties."""
        with Opened(self.path) as state:
            return dict(unit(state, name))

    def set(self, name: str, **properties: Any) -> None:
        """Make a unit something, now."""
        with Opened(self.path) as state:
            unit(state, name).update({"StateChangeTimestampMonotonic": _now(), **properties})

    def refuse(self, verb: str, message: str) -> None:
        """Let PID 1 refuse a verb; an empty message ends it."""
        with Opened(self.path) as state:
            state["refused"].pop(verb, None)
            if message:
                state["refused"][verb] = message

    def ready(self, *patterns: str) -> None:
        """Units that serve as soon as they are started."""
        with Opened(self.path) as state:
            state["ready"] = list(patterns)

    def start(self, name: str) -> None:
        """A start by somebody else: the target at boot, or a person."""
        with Opened(self.path) as state:
            start(state, name)

    def die(self, name: str, status: int = 71, *, net: bool = True) -> None:
        """The launcher ends with a status: systemd waits for its own restart, or has given up."""
        net = net and status != 78
        self.set(
            name,
            ActiveState="activating" if net else "failed",
            SubState="auto-restart" if net else "failed",
            Result="exit-code",
            ExecMainCode=1,
            ExecMainStatus=status,
        )
