"""A gateway for hostile clients: what must not have happened to it is looked at when they are done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.wire.openai import ROUTES
from tests.component.gateway.conftest import QUICK
from tests.support.gatewayprocess import FakeEngine, Gateway, config, remote

QUICKER = QUICK.replace("connect =", 'head = "1s"\nbody = "1s"\nconnect =') + 'keepalive = "60s"\n'


@pytest.fixture(scope="module")
def gateway(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("clients"), config(remote(engine.url), gateway=QUICKER))
    yield made
    assert made.process.poll() is None, made.text()[-2000:]
    log = made.text()
    made.kill()
    assert "Traceback" not in log and "failed: " not in log, log[-3000:]
    assert not [entry for entry in engine.log if entry["headers"].get("x-request-id") == "SMUGGLED"]
    assert {entry["path"] for entry in engine.log} <= set(ROUTES)
