from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from appliance.host import files
from appliance.policy.planerror import PlanError
from appliance.supervisor.planerrors import KEPT, PlanErrors

ONE = PlanError("org/x", "L4", "0.32.0-cuda", 1, 1, -0.5)


def kept(path: Path) -> list[float]:
    return [one["kv_gib"] for one in (files.read_json(path) or {"errors": []})["errors"]]  # type: ignore[union-attr, attr-defined]


def test_the_newest_start_counts_and_outlives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "planerrors.json"
    errors = PlanErrors(str(path))
    errors.see([ONE])
    errors.see([replace(ONE, kv_gib=-0.4), replace(ONE, tp=2)])
    assert kept(path) == [-0.4, -0.5]
    again = PlanErrors(str(path))
    path.unlink()
    again.see([replace(ONE, kv_gib=-0.4)])
    assert not path.exists()  # no news
    again.see([replace(ONE, kv_gib=0.1)])
    assert kept(path) == [-0.5, 0.1]


def test_garbage_is_forgotten_and_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    path = tmp_path / "planerrors.json"
    path.write_text('{"v": 1, "errors": [3, {}, {"model": 1}]}')
    errors = PlanErrors(str(path))
    errors.see(replace(ONE, model=f"org/{n}") for n in range(KEPT + 5))
    assert len(kept(path)) == KEPT
    lost = PlanErrors(str(tmp_path / "none/planerrors.json"))
    lost.see([ONE])
    assert "cannot be written" in lost.fault
