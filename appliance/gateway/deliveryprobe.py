"""Answers a delivery probe: events, comments and a silence at moments that the answer itself names.

It shows what stands between a client and the gateway before any model serves. A probe costs no engine, so no allowance
is taken; a few at once are enough for anybody who mends a proxy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from appliance import clock
from appliance.errors import ApiError
from appliance.wire.deliveryprobe import COMMENTS, Plan, Seen, Told, event, whole

from .answer import Answer
from .finish import COMPLETE, Finish

AT_ONCE = 8
STEP = 0.5  # seconds after which a stopping gateway is noticed


class DeliveryProbes:
    """All probes of the process. `keepalive` gives seconds between comments, `stopping` whether to end."""

    def __init__(self, keepalive: Callable[[], float], stopping: Callable[[], bool]) -> None:
        self._keepalive, self._stopping = keepalive, stopping
        self._running = 0

    def answer_whole(self, answer: Answer, size: int) -> Finish:
        """One object at once."""
        answer.reply(200, whole(answer.request_id, size), [("Content-Type", "application/json")])
        return COMPLETE

    async def answer_stream(self, answer: Answer, plan: Plan, seen: Seen) -> Finish:
        """The stream, in the time that the plan takes. Cancelled when the client leaves. Raises ApiError."""
        if self._running >= AT_ONCE:
            raise ApiError("concurrency_limit", f"{AT_ONCE} delivery probes run already", retry_after=10)
        self._running += 1
        try:
            answer.begin_stream()
            await _Probe(answer, plan, seen).run(self._keepalive(), self._stopping)
        finally:
            self._running -= 1
        return COMPLETE


class _Probe:
    def __init__(self, answer: Answer, plan: Plan, seen: Seen) -> None:
        self.answer, self.plan, self.seen = answer, plan, seen
        self.begun = clock.monotonic()
        self.number = self.comments = 0

    async def run(self, keepalive: float, stopping: Callable[[], bool]) -> None:
        plan = self.plan
        for _ in range(plan.events):
            self._event()
            await _wait(plan.interval, stopping)
        for _ in range(COMMENTS):
            self._comment()
            await _wait(plan.interval, stopping)
        left = plan.silence
        while left > 0:
            await _wait(min(left, keepalive), stopping)
            left -= keepalive
            if left > 0:
                self._comment()
        self._event(last=True)
        self.answer.end(self.answer.frame(b"data: [DONE]\n\n"))

    def _event(self, *, last: bool = False) -> None:
        sent = clock.monotonic() - self.begun
        told = Told(self.number, sent, self.comments, self.seen if self.number == 0 else None)
        self.answer.send(event(self.answer.request_id, told, last=last))
        self.number += 1

    def _comment(self) -> None:
        self.answer.comment("")
        self.comments += 1


async def _wait(seconds: float, stopping: Callable[[], bool]) -> None:
    """Raises ApiError when the gateway stops meanwhile."""
    end = clock.monotonic() + seconds
    while (left := end - clock.monotonic()) > 0:
        if stopping():
            raise ApiError("gateway_draining", "the gateway is being stopped", retry_after=2)
        await asyncio.sleep(min(left, STEP))
