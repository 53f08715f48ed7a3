"""Which Python of the host a runtime is built with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from appliance.errors import Failed
from appliance.runtime import bootstrap
from appliance.runtime.faults import Impossible

OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"


def program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_tells_its_version(tmp_path: Path) -> None:
    assert bootstrap.python_version(sys.executable) == OWN
    assert bootstrap.python_version(program(tmp_path / "broken", "exit 1")) is None
    assert bootstrap.python_version(str(tmp_path / "missing")) is None
    assert bootstrap.find_python([OWN], sys.executable) == (sys.executable, OWN)


def test_one_that_is_late_is_not_one_that_is_missing(tmp_path: Path) -> None:
    """It may answer at the next start, so this is no end that the service manager keeps."""
    with pytest.raises(Failed, match=r"within 0\.1 s") as caught:
        bootstrap.python_version(program(tmp_path / "python3", "exec sleep 30"), 0.1)
    assert not isinstance(caught.value, Impossible) and caught.value.hint


def test_without_a_tested_one_nothing_is_built(tmp_path: Path) -> None:
    with pytest.raises(Impossible, match=r"no files for Python 2\.7"):
        bootstrap.find_python([OWN], program(tmp_path / "python3", "echo 2.7"))
