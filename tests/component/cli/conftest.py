"""Stages that commands run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stage import CHAT, EMBED, Stage, staged


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
