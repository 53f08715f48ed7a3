"""`llm-appliance unitctl`: the root end of llm-unitctl.socket, one request on standard input, one answer on standard
output.

The supervisor runs without privilege; this program starts and stops units for it, ours and no others. It is the only
thing of ours that acts as root on somebody's word, so the word is read with a limit and a deadline, must be exactly
one JSON object, and is looked up in a table: a verb that a unit does not list is refused with the reason. Nothing from
the request reaches a shell, and a unit's name is taken apart and rebuilt, never passed on as it came.

    {"verb": "restart", "unit": "llm-engine@chat.service"}          -> {"ok": true, "rc": 0, "message": ""}
    {"verb": "kill", "unit": "llm-gateway.service", "signal": "SIGHUP"}
    {"verb": "daemon-reload"}
"""

from __future__ import annotations

import json
import os
import select
import sys
from dataclasses import dataclass

from appliance import clock, names
from appliance.errors import ApplianceError
from appliance.host import systemd

REQUEST_LIMIT = 4096  # bytes; the longest honest request has about 150
READ_DEADLINE_S = 5.0
JOB_DEADLINE_S = 15.0

_ENGINE = "llm-engine@INSTANCE"  # stands for every instance; no unit's name, and never looked up by what was sent
ALLOWED: dict[str, frozenset[str]] = {
    _ENGINE: frozenset({"start", "stop", "restart", "kill", "reset-failed"}),
    names.GATEWAY_UNIT: frozenset({"restart", "kill"}),
    names.RUNTIME_UNIT: frozenset({"start"}),
}
SIGNALS: dict[str, frozenset[str]] = {
    _ENGINE: frozenset({"SIGTERM", "SIGABRT", "SIGKILL"}),
    names.GATEWAY_UNIT: frozenset({"SIGHUP", "SIGUSR2"}),
}


class Refused(Exception):
    """The request is not one that this helper carries out; the message says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the table allows; `unit` is empty for daemon-reload alone."""

    verb: str
    unit: str = ""
    signal: str = ""

    @property
    def command(self) -> systemd.Command[systemd.Completed]:
        """What systemctl is asked."""
        if self.verb == "daemon-reload":
            return systemd.daemon_reload()
        if self.verb == "kill":
            return systemd.kill(self.unit, self.signal, main=self.unit == names.GATEWAY_UNIT)
        return systemd.change(self.verb, self.unit)


def parse(line: bytes) -> Request:
    """One line as an allowed request. Raises Refused with the reason."""
    try:
        value = json.loads(line)
    except ValueError:
        raise Refused("the request is not one line of JSON") from None
    except RecursionError:
        raise Refused("the request is nested too deeply") from None
    if not isinstance(value, dict):
        raise Refused("the request is not a JSON object")
    fields = {key: value.get(key, "") or "" for key in ("verb", "unit", "signal")}
    if extra := sorted(set(value) - set(fields) - {"v"}):
        raise Refused(f"unknown field {extra[0][:40]!r}")
    if not all(isinstance(field, str) for field in fields.values()):
        raise Refused("verb, unit and signal are strings")
    return _allowed(fields["verb"], fields["unit"], fields["signal"])


def _allowed(verb: str, unit: str, signal: str) -> Request:
    if verb == "daemon-reload":
        if unit or signal:
            raise Refused("daemon-reload takes no unit")
        return Request(verb)
    instance = names.instance_of(unit)
    kind = _ENGINE if instance is not None else unit
    if kind not in ALLOWED or unit == _ENGINE:
        raise Refused(f"{unit[:80]!r} is not a unit of the appliance that this helper may touch")
    if verb not in ALLOWED[kind]:
        raise Refused(f"{verb[:40]!r} is not allowed for {unit}: only {', '.join(sorted(ALLOWED[kind]))}")
    if verb == "kill" and signal not in SIGNALS[kind]:
        raise Refused(f"signal {signal[:20]!r} is not allowed for {unit}: only {', '.join(sorted(SIGNALS[kind]))}")
    if verb != "kill" and signal:
        raise Refused(f"{verb} takes no signal")
    return Request(verb, names.engine_unit(instance) if instance is not None else unit, signal)


def read_request(descriptor: int, deadline_s: float = READ_DEADLINE_S) -> bytes:
    """The bytes up to the first newline or the end of input. Raises Refused when they are too many or too slow."""
    end, held = clock.monotonic() + deadline_s, b""
    while b"\n" not in held:
        ready, _, _ = select.select([descriptor], [], [], max(end - clock.monotonic(), 0.0))
        if not ready:
            raise Refused(f"no whole request within {deadline_s:.0f} s")
        chunk = os.read(descriptor, REQUEST_LIMIT)
        held += chunk
        if len(held) > REQUEST_LIMIT:
            raise Refused(f"the request is longer than {REQUEST_LIMIT} bytes")
        if not chunk:
            break
    line, _, rest = held.partition(b"\n")
    if rest.strip():
        raise Refused("more than one line")
    return line


def answer(line: bytes) -> dict[str, object]:
    """Carry out one request; what goes wrong becomes the answer's message."""
    try:
        request = parse(line)
        done = systemd.ask(request.command, JOB_DEADLINE_S)
    except Refused as refusal:
        return {"ok": False, "rc": 1, "message": f"refused: {refusal}"}
    except ApplianceError as error:
        return {"ok": False, "rc": 1, "message": error.message}
    return {"ok": done.status == 0, "rc": done.status, "message": done.errors.strip()[:500]}


def main(arguments: list[str]) -> int:
    """Answer one request. Exit status 0 also when it was refused: the socket unit's instances must not turn red."""
    if arguments in (["-h"], ["--help"]):
        print("usage: llm-appliance unitctl   (started by llm-unitctl.socket; one JSON request on standard input)")
        return 0
    if arguments:
        print("unitctl takes no arguments", file=sys.stderr)
        return 2
    try:
        reply = answer(read_request(0))
    except Refused as refusal:
        reply = {"ok": False, "rc": 1, "message": f"refused: {refusal}"}
    if not reply["ok"]:
        print(f"<4>{reply['message']}", file=sys.stderr)
    try:
        os.write(1, json.dumps(reply).encode() + b"\n")
    except OSError:  # the asker left; the work is done all the same
        return 0
    return 0
