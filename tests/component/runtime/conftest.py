"""The builder's machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.buildstage import BALLAST, MINOR, Bench
from tests.support.fakewheels import vllm_wheels, write_locks


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    for name in ("house", "locks", "model"):
        (tmp_path / name).mkdir()
    made = Bench(tmp_path, vllm_wheels(tmp_path / "house", ballast=BALLAST))
    write_locks(tmp_path / "locks", made.wheels, python=MINOR)
    (tmp_path / "model" / "config.json").write_text("{}")
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents:
        if parent.owner() == tmp_path.owner() and parent != Path("/"):
            os.chmod(parent, parent.stat().st_mode | 0o055)
    return made
