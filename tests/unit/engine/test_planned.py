from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.engine.planned import planned
from tests.support.publishedlogs import LOGS

FLAGS: dict[str, object] = {
    "max_model_len": 20000, "max_num_batched_tokens": 20000, "max_num_seqs": 4, "gpu_memory_utilization": 0.9,
}  # fmt: skip
GPU = {"uuid": "GPU-a", "pci": "0000:65:00", "name": "NVIDIA GeForce RTX 3090", "mem_total_mib": 24576.0}


def stage(directory: Path, *gpus: dict[str, Any]) -> tuple[str, str]:
    """The model of the first published log, and what the supervisor saw of the GPUs."""
    log = LOGS[0]
    (directory / "config.json").write_text(json.dumps(log.config))
    index = {"metadata": {"total_size": log.checkpoint}, "weight_map": {"x": "model-1.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "gpus.json").write_text(json.dumps({"v": 1, "gpus": list(gpus)}))
    return str(directory), str(directory / "gpus.json")


def test_the_plan_of_a_start_is_near_what_vllm_said(tmp_path: Path) -> None:
    model, state = stage(tmp_path, GPU)
    told = planned("org/x", model, FLAGS, ["GPU-a"], state)
    assert told is not None and (told["model"], told["gpu"], told["context"]) == ("org/x", "RTX 3090", 20000)
    said = LOGS[0]
    assert told["weights_gib"] == pytest.approx(said.weights, abs=0.05)
    assert told["kv_gib"] == pytest.approx(said.kv, abs=0.7)
    assert isinstance(told["kv_tokens"], int) and told["at_once"] == pytest.approx(told["kv_tokens"] / 20000, abs=0.01)


@pytest.mark.parametrize(
    ("own", "gpus", "what"),
    [
        (["GPU-b"], [GPU], "another GPU"),
        (["GPU-a", "GPU-b"], [GPU], "one of two"),
        (["0"], [GPU], "a number"),
        (["GPU-a"], [{**GPU, "name": "ACME 9000"}], "a card that is not in the table"),
        (["GPU-a"], [], "no GPU is known"),
    ],
)
def test_what_cannot_be_told_is_none(tmp_path: Path, own: list[str], gpus: list[dict[str, Any]], what: str) -> None:
    model, state = stage(tmp_path, *gpus)
    assert planned("org/x", model, FLAGS, own, state) is None, what


@pytest.mark.parametrize(
    "break_it",
    [
        lambda d: (d / "config.json").unlink(),
        lambda d: (d / "config.json").write_text("[]"),
        lambda d: (d / "config.json").write_text('{"model_type": "unheard of"}'),
        lambda d: (d / "model.safetensors.index.json").write_text("{"),
        lambda d: (d / "model-1.safetensors").write_bytes(b"short"),
    ],
)
def test_a_damaged_model_is_no_fault_here(tmp_path: Path, break_it: Any) -> None:
    model, state = stage(tmp_path, GPU)
    break_it(tmp_path)
    assert planned("org/x", model, FLAGS, ["GPU-a"], state) is None


@pytest.mark.parametrize(
    "flags", [{"kv_cache_dtype": "of tomorrow"}, {"tensor_parallel_size": 7}, {"max_model_len": "lots"}, {}]
)
def test_odd_flags_never_raise(tmp_path: Path, flags: dict[str, object]) -> None:
    model, state = stage(tmp_path, GPU)
    planned("org/x", model, flags, ["GPU-a"], state)
