from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from appliance.engine.report import Identity, Report, Start


def state(directory: Path) -> Any:
    return json.loads((directory / "engines/chat/state.json").read_text())


def test_a_notice_is_on_disk_at_once_and_repeats_are_gathered(tmp_path: Path) -> None:
    (tmp_path / "engines/chat").mkdir(parents=True)
    report = Report(Identity("chat", "run", "m", ("m",), str(tmp_path)), Start())
    report.noticed("jit")
    first = state(tmp_path)["notices"]
    assert first["jit"]["count"] == 1 and first["jit"]["at"] >= report.started
    for _ in range(1000):
        report.noticed("jit")
    report.noticed("shm-wait")  # another kind does not wait, and takes along what has gathered
    assert {kind: found["count"] for kind, found in state(tmp_path)["notices"].items()} == {"jit": 1001, "shm-wait": 1}
