from __future__ import annotations

import json
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


def test_what_is_hidden_is_no_part_of_a_model(tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/model.safetensors").write_bytes(b"half")
    (tmp_path / ".#config.json").symlink_to("someone@host.1:2")
    empty = fault_of("org/model", str(tmp_path))
    assert empty is not None and empty.cause == "model-not-found"
    (tmp_path / "config.json").write_text("{}")
    assert fault_of("org/model", str(tmp_path)) is None


def weights(header: bytes, data: int) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(data)


HEADER = json.dumps({"__metadata__": {}, "a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (weights(HEADER, 8), ""),
        (weights(HEADER, 7), "was cut off"),
        (weights(HEADER, 8)[:40], "is no whole safetensors file: 40 bytes"),
        (b"", "is no whole safetensors file: 0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "is no whole safetensors file"),
        (weights(b"{" + HEADER, 8), "has a header that cannot be read"),
        (weights(b'{"a": {"data_offsets": [0]}}', 8), "has a header that cannot be read"),
        (weights(b"[]", 8), "has a header that cannot be read"),
    ],
)
def test_weights_that_are_broken_are_named_before_vllm_meets_them(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    fault = fault_of(str(tmp_path), str(tmp_path))
    if not words:
        assert fault is None
        return
    assert fault is not None and fault.cause == "model-unreadable"
    assert f"{tmp_path}/model.safetensors {words}" in fault.message


LONG = b'{"model": {"vocab": {' + b'"a": 1, ' * 200_000


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize(
    ("content", "good"),
    [
        (b'{"a": 1}\n', True),
        (b'{"a": 1', False),
        (b"", False),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", False),
        (LONG + b'"a": 1}}}\n', True),
        (LONG, False),
        (bytes(1 << 21), False),
    ],
    ids=["whole", "cut", "empty", "pointer", "long", "long and cut", "zeros"],
)
def test_a_file_that_is_no_json_is_named(tmp_path: Path, name: str, content: bytes, good: bool) -> None:
    (tmp_path / name).write_bytes(content)
    fault = fault_of(str(tmp_path), str(tmp_path))
    assert (fault is None) == good
    if fault is not None:
        assert (fault.cause, fault.message) == ("model-unreadable", f"{tmp_path}/{name} is not JSON")


def test_what_a_start_does_not_need_is_not_looked_at(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "model.safetensors.index.json"):
        (tmp_path / name).write_bytes(b"{")
    assert fault_of(str(tmp_path), str(tmp_path), {"tokenizer": "/models/other", "load_format": "dummy"}) is None
