"""How many files a gateway may have to hold open for its configuration."""

from __future__ import annotations

from appliance.config.model import Config

from .admission import limit_of
from .flagnumbers import batch_limit

SPARE = 256  # listeners, logs, health questions, connections of people who look


def descriptors_needed(config: Config) -> int:
    """Descriptors when every engine is as full as it may be: a running call holds two, one that waits its client's."""
    admission = config.gateway.admission
    running = sum(
        limit_of(admission.max_in_flight, batch_limit(engine.vllm)) * len(engine.instances) for engine in config.engines
    )
    return 2 * running + admission.queue_size * len(config.engines) + SPARE
