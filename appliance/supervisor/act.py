"""The supervisor's hand: one request at a time, each with a deadline: to systemd, or to a launcher that waits.

As the packaged user it goes through the root helper's socket; as root without that socket, for development, it asks
systemctl itself by the same table of what is allowed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

from appliance import clock, names
from appliance.errors import ApplianceError
from appliance.host import systemd
from appliance.host.places import Places
from appliance.policy.reconcile import Seen, UnitState

from .unitctl import Refused, parse

DEADLINE_S = 20.0
WORD_S = 5.0  # a launcher that waits reads its configuration, and answers


class Refusal(ApplianceError):
    """systemd or the helper did not take a request; the message is theirs."""


class Hand:
    """Asks for changes of units."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._socket = places.under_run(names.UNITCTL_SOCKET)

    @property
    def way(self) -> str:
        """How requests travel: "helper", "systemctl", or "" when they cannot."""
        if Path(self._socket).exists():
            return "helper"
        return "systemctl" if os.geteuid() == 0 else ""

    async def ask(self, verb: str, unit: str = "", signal: str = "") -> None:
        """Carry out one request; returns when systemd has queued it. Raises Refusal, within DEADLINE_S."""
        request = {"verb": verb, "unit": unit, "signal": signal}
        line = json.dumps({key: value for key, value in request.items() if value}).encode()
        way = self.way
        if not way:
            raise Refusal(f"{self._socket} is not there: systemctl start llm-unitctl.socket")
        try:
            reply = await asyncio.wait_for(self._through(line) if way == "helper" else _directly(line), DEADLINE_S)
        except asyncio.TimeoutError:
            raise Refusal(f"no answer to {verb} {unit} within {DEADLINE_S:.0f} s") from None
        except (OSError, ValueError) as error:
            raise Refusal(f"{verb} {unit}: {error}") from error
        if not reply.get("ok"):
            raise Refusal(f"{verb} {unit}: {reply.get('message') or 'refused without a reason'}")

    async def again(self, instance: str, start: str) -> str:
        """Have the launcher of the run `start`, which is over, begin the next one in its unit; where it will not, have
        systemd restart the unit, and return why. Raises Refusal.

        A launcher that was told and does not answer may have begun: it is left alone, and the next looks tell.
        """
        request = json.dumps({"verb": "again", "start": start}).encode() + b"\n"
        try:
            path = names.engine_evidence(instance, self._places.run)
            reader, writer = await asyncio.wait_for(asyncio.open_unix_connection(path), WORD_S)
        except (OSError, asyncio.TimeoutError) as error:
            refusal = f"its launcher does not listen: {error}"
        else:
            refusal = await _answer_to(request, reader, writer)
        if refusal:
            await self.ask("restart", names.engine_unit(instance))
        return refusal

    async def _through(self, line: bytes) -> dict[str, object]:
        """One connection to the helper."""
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(line + b"\n")
            await writer.drain()
            answer = json.loads(await reader.readline() or b"{}")
        finally:
            writer.close()
        return answer if isinstance(answer, dict) else {}


async def _directly(line: bytes) -> dict[str, object]:
    """What the helper would do, in this process."""
    try:
        done = await systemd.ask_async(parse(line).command)
    except Refused as refusal:
        return {"ok": False, "message": f"refused: {refusal}"}
    except ApplianceError as error:
        return {"ok": False, "message": error.message}
    return {"ok": done.status == 0, "message": done.errors.strip()[:500]}


async def _answer_to(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Why a launcher refused; empty where it did not, or did not say."""
    try:
        writer.write(request)
        answer = json.loads(await asyncio.wait_for(reader.readline(), WORD_S))
    except (OSError, ValueError, RecursionError, asyncio.TimeoutError):
        return ""
    finally:
        writer.close()
    refused = isinstance(answer, dict) and answer.get("ok") is False
    return str(answer.get("message") or "its launcher refused") if refused else ""


class Requests:
    """What was asked for and has shown no effect yet. An empty instance is the runtime's unit."""

    def __init__(self, runtime_pause_s: float) -> None:
        self._made: dict[str, tuple[float, UnitState, str]] = {}  # instant, and what was seen then
        self._runtime_pause_s = runtime_pause_s

    def made(self, instance: str, seen: Seen) -> None:
        """One was made just now."""
        self._made[instance] = (clock.monotonic(), seen.unit, seen.run)

    def ages(self, seen: Mapping[str, Seen]) -> dict[str, float]:
        """Seconds since each; those of which an effect is seen are forgotten."""
        now, ages = clock.monotonic(), {}
        for instance, (at, *before) in list(self._made.items()):
            current = seen.get(instance, Seen())
            if instance and [current.unit, current.run] != before:
                del self._made[instance]
            else:
                ages[instance] = now - at
        if "" in ages:
            ages[""] = 0.0 if ages[""] < self._runtime_pause_s else ages[""]
        return ages

    def forget(self) -> None:
        """What was asked before delays nothing any more."""
        self._made.clear()
