"""Gateways that tests of one file share, and fresh ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.gatewayprocess import FakeEngine, Gateway, config, remote

QUICK = """[gateway.timeouts]
connect = "1s"
first_token = "1s"
stall = "1s"
drain = "2s"
[gateway.admission]
max_in_flight = 64
queue_timeout = "500ms"
[gateway.stream]
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    """A fake engine on TCP."""
    fake = FakeEngine()
    yield fake
    fake.close()


@pytest.fixture(scope="module")
def gateway(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Short deadlines, no comments before they pass."""
    made = Gateway(tmp_path_factory.mktemp("calm"), config(remote(engine.url), gateway=QUICK + 'keepalive = "60s"\n'))
    yield made
    made.kill()


@pytest.fixture(scope="module")
def chatty(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Comments every 200 ms."""
    made = Gateway(
        tmp_path_factory.mktemp("chatty"), config(remote(engine.url), gateway=QUICK + 'keepalive = "200ms"\n')
    )
    yield made
    made.kill()


Start = Callable[..., Gateway]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a gateway of the test's own; it is stopped afterwards."""
    made: list[Gateway] = []

    def begin(text: str, **options: object) -> Gateway:
        made.append(Gateway(tmp_path / f"gateway{len(made)}", text, **options))  # type: ignore[arg-type]
        return made[-1]

    yield begin
    for one in made:
        one.kill()
