"""Stages that commands run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stage import CHAT, EMBED, Stage, staged
from tests.support.toldstatus import Gateway


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, CHAT + EMBED) as made:
        made.start()
        made.serving("chat")
        made.serving("embed")
        yield made


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Stage]:
    """Nothing runs."""
    with staged(tmp_path) as made:
        yield made


@pytest.fixture
def gateway(still: Stage) -> Iterator[Gateway]:
    """Its admin listener is the one that the stage's configuration names."""
    made = Gateway()
    still.write(f'[gateway]\nadmin_listen = "{made.address}"\n' + CHAT)
    try:
        yield made
    finally:
        made.close()
