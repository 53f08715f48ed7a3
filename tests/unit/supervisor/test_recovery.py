from __future__ import annotations

from pathlib import Path

import pytest

from appliance.host import files
from appliance.supervisor.recovery import Case, read, write

CASE = Case(at=1.5, run="r", kind="kill", incident="20261129T173000Z-chat-hang-kernel", start="s", cause="hang-kernel",
            reason="no token", verdict="hung", action="restart", evidence=("a",), group="/system.slice/x", pids=(7, 8),
            recorded=True, aborted=2.5, killed=None)  # fmt: skip


def test_a_case_comes_back(tmp_path: Path) -> None:
    path = str(tmp_path / "recoveries/chat")
    write(path, CASE)
    assert read(path) == CASE


@pytest.mark.parametrize("value", [{}, {"run": 3}])
def test_what_is_no_case(tmp_path: Path, value: dict[str, object]) -> None:
    assert read(str(tmp_path / "nowhere")) is None
    files.replace_json(tmp_path / "chat", value)
    assert read(str(tmp_path / "chat")) is None


def test_strange_fields_keep_their_defaults(tmp_path: Path) -> None:
    files.replace_json(tmp_path / "chat", {"run": "r", "pids": ["x", 3], "aborted": "soon", "recorded": 1})
    case = read(str(tmp_path / "chat"))
    assert case is not None
    assert (case.pids, case.aborted, case.recorded) == ((3,), None, False)
