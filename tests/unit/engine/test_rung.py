from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.engine.rung import Rung, read
from appliance.host.places import Places
from appliance.policy.ladder import Place

PLACE = Place("d1", "0.32.0-cuda", ("GPU-1",))
GOOD: dict[str, object] = {
    "v": 1, "digest": "d1", "runtime": "0.32.0-cuda", "gpus": ["GPU-1"], "flags": {"max_num_seqs": 32},
    "env": {"NCCL_DEBUG": "INFO"}, "caches": "", "told": "max_num_seqs 64 -> 32",
}  # fmt: skip


@pytest.fixture
def where(tmp_path: Path) -> Places:
    (tmp_path / "run/engines/chat").mkdir(parents=True)
    (tmp_path / "supervisor/rungs").mkdir(parents=True)
    return Places(run=str(tmp_path / "run"), state=str(tmp_path))


@pytest.mark.parametrize("path", ["supervisor/rungs/chat.json", "run/engines/chat/rung.json"])
def test_it_is_found_where_it_was_written_and_where_it_is_copied_to(tmp_path: Path, where: Places, path: str) -> None:
    (tmp_path / path).write_text(json.dumps(GOOD))
    found = read("chat", where, where.run, PLACE)
    assert (found.change.flags, found.change.env) == (GOOD["flags"], GOOD["env"])
    assert found.told == GOOD["told"]


@pytest.mark.parametrize(
    "value",
    [
        GOOD | {"digest": "d2"},
        GOOD | {"runtime": "0.33.0-cuda"},
        GOOD | {"gpus": ["GPU-2"]},
        GOOD | {"gpus": None},
        GOOD | {"v": 2},
        GOOD | {"flags": {"max_num_seqs": 32, "model": "/etc/shadow"}},
        GOOD | {"env": {"LD_PRELOAD": "/tmp/x.so"}},
        {"v": 1},
    ],
)
def test_what_is_not_for_this_start_changes_nothing(tmp_path: Path, where: Places, value: dict[str, object]) -> None:
    (tmp_path / "supervisor/rungs/chat.json").write_text(json.dumps(value))
    assert read("chat", where, where.run, PLACE) == Rung()
    assert read("other", where, where.run, replace(PLACE, digest="")) == Rung()
