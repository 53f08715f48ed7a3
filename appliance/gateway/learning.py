"""What the adaptive limits learn from: a light look at the metrics of each engine that has calls, about once a second.

The other half, first-token times, comes from the calls (`Exchange.tick`). An engine that does not answer in time, or
not with a metric, leaves UNKNOWN, which freezes its limit; it costs the other engines nothing but the wait.
"""

from __future__ import annotations

import asyncio

from appliance import clock
from appliance.policy.concurrency import Reading
from appliance.wire.vllmmetrics import read_metrics

from .engines import Engines, Group, Replica
from .fetch import get
from .upstream import ConnectFailed

EVERY = 1.0  # seconds between two looks
DEADLINE = 1.0  # seconds for one


async def learn(engines: Engines) -> None:
    """Look again and again, while limits are learned."""
    while True:
        await asyncio.sleep(EVERY)
        if engines.adapts:
            await asyncio.gather(
                *(
                    _look(engines, group, replica)
                    for group in list(engines.groups.values())
                    for replica in list(group.replicas.values())
                    if replica.up and group.admission.in_flight(replica.name)
                )
            )


async def _look(engines: Engines, group: Group, replica: Replica) -> None:
    reading = await _reading(replica)
    now = clock.monotonic()
    if group.replicas.get(replica.name) is not replica or not engines.adapts:
        return  # the configuration changed meanwhile
    replica.adaptive.step(reading, group.admission.in_flight(replica.name), now)
    engines.tell_admission(group, replica)
    group.admit_waiting(now)


async def _reading(replica: Replica) -> Reading:
    try:
        code, body = await get(replica, "/metrics", DEADLINE)
    except ConnectFailed:
        return Reading()
    if code != 200:
        return Reading()
    metrics = read_metrics(body.decode("utf-8", "replace"))
    return Reading(
        waiting=metrics.waiting,
        kv_usage=metrics.kv_usage,
        preemptions=metrics.preemptions,
        generated=metrics.generated_tokens,
    )
