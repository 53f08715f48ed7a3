"""Whether this process serves: what decides if the watchdog is fed.

Nobody is asked over the network: an address may be closed to the process's own packets. Instead each public listener is
looked at (do connections wait that nobody accepts?) and asked for its health over a pair of sockets, through everything
that a client's connection goes through once it is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from appliance.host import journal

from .listeners import Listener
from .sockets import Sockets

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n"


class SelfProbe:
    """Looks when it is asked; a change is told."""

    def __init__(self, sockets: Sockets, calls_run: Callable[[], bool], log: journal.Journal) -> None:
        self._sockets, self._calls_run, self._log = sockets, calls_run, log
        self._fault = ""

    async def serves(self, limit: float) -> bool:
        """Whether every public listener works; within `limit` seconds for each."""
        faults = [await self._fault_of(listener, limit) for listener in self._sockets.public]
        fault = next(filter(None, faults), "")
        if fault and fault != self._fault:
            self._log.log(journal.ERR, f"the watchdog is not fed: {fault}", LLM_EVENT="gateway-not-serving")
        self._fault = fault
        return not fault

    async def _fault_of(self, listener: Listener, limit: float) -> str:
        if listener.stuck(calls_run=self._calls_run()):
            return f"connections wait and are not accepted on {listener.address}"
        try:
            answer = await asyncio.wait_for(listener.ask(REQUEST), limit)
        except (OSError, asyncio.TimeoutError, TimeoutError) as error:
            return f"a request for our own health got no answer: {error or f'none within {limit:g} s'}"
        # 503: more connections than are allowed, which is load and no fault.
        good = answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 "))
        return "" if good else f"our own health is answered with {answer[:20]!r}"
