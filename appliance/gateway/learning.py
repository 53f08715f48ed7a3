"""A light look at the metrics of each engine that has calls, about once a second: for its adaptive limit and `status`.

An engine without calls is looked at once more and then left alone: nothing changes there. The other half of what a
limit learns, first-token times, comes from the calls (`Exchange.tick`). An engine that does not answer in time, or
not with a metric, leaves UNKNOWN, which freezes its limit; it costs the other engines nothing but the wait.
"""

from __future__ import annotations

import asyncio

from appliance import clock
from appliance.policy.concurrency import Reading
from appliance.wire.vllmmetrics import EngineMetrics, read_metrics

from .engines import Engines, Group, Replica
from .fetch import get
from .upstream import ConnectFailed

EVERY = 1.0  # seconds between two looks
DEADLINE = 1.0  # seconds for one


async def learn(engines: Engines) -> None:
    """Look again and again."""
    while True:
        await asyncio.sleep(EVERY)
        await asyncio.gather(
            *(
                _look(engines, group, replica)
                for group in list(engines.groups.values())
                for replica in list(group.replicas.values())
                if replica.up and (group.admission.in_flight(replica.name) or not replica.idle_seen)
            )
        )


async def _look(engines: Engines, group: Group, replica: Replica) -> None:
    replica.idle_seen = not group.admission.in_flight(replica.name)
    metrics = await _metrics(replica)
    replica.metrics, replica.metrics_at = metrics, clock.wall()
    now = clock.monotonic()
    if group.replicas.get(replica.name) is not replica or not engines.adapts or replica.idle_seen:
        return  # the configuration changed meanwhile, or there is nothing to learn from
    reading = Reading(
        waiting=metrics.waiting,
        kv_usage=metrics.kv_usage,
        preemptions=metrics.preemptions,
        generated=metrics.generated_tokens,
    )
    replica.adaptive.step(reading, group.admission.in_flight(replica.name), now)
    engines.tell_admission(group, replica)
    group.admit_waiting(now)


async def _metrics(replica: Replica) -> EngineMetrics:
    try:
        code, body = await get(replica, "/metrics", DEADLINE)
    except ConnectFailed:
        return EngineMetrics()
    return read_metrics(body.decode("utf-8", "replace")) if code == 200 else EngineMetrics()
