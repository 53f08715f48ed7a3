from __future__ import annotations

from pathlib import Path

import pytest

from appliance.engine.weights import fault_of


def test_a_model_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert fault_of(str(tmp_path), str(tmp_path)) is None


@pytest.mark.parametrize(
    ("model", "words"),
    [("/models/none", "correct model"), ("builtin:smollm2-135m", "models pull builtin:smollm2-135m")],
)
def test_a_model_that_is_not_there(tmp_path: Path, model: str, words: str) -> None:
    fault = fault_of(model, str(tmp_path / "none"))
    assert fault is not None
    assert fault.cause == "model-not-found" and words in fault.remedy


def test_an_empty_directory_and_a_file(tmp_path: Path) -> None:
    empty = fault_of("org/model", str(tmp_path))
    (tmp_path / "file").touch()
    file = fault_of(str(tmp_path / "file"), str(tmp_path / "file"))
    assert empty is not None and file is not None
    assert (empty.cause, file.cause) == ("model-not-found", "model-not-found")


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    fault = fault_of(str(tmp_path), str(tmp_path))
    assert fault is not None
    assert fault.cause == "model-unreadable" and "model.safetensors" in fault.message
