"""The supervisor's hand: one request to systemd at a time, each with a deadline.

As the packaged user it goes through the root helper's socket; as root without that socket, for development, it asks
systemctl itself by the same table of what is allowed.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from appliance.errors import ApplianceError
from appliance.host import systemd

from .unitctl import Refused, parse

DEADLINE_S = 20.0


class Refusal(ApplianceError):
    """systemd or the helper did not take a request; the message is theirs."""


class Hand:
    """Asks for changes of units. `socket` is where the helper listens."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

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
