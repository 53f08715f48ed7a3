from __future__ import annotations

from pathlib import Path

import pytest

from appliance.config.model import Config, Engine
from appliance.config.placement import own_gpus
from appliance.engine.device import build_of, device_of, models_of, present_gpus

PRESENT = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_runtime_knows_what_it_was_built_for(tmp_path: Path, device: str) -> None:
    (tmp_path / ".complete").write_text(f'{{"v": 1, "device": "{device}"}}')
    assert device_of(str(tmp_path), "auto") == device
    assert device_of(str(tmp_path), "cpu" if device == "cuda" else "cuda") == device


def test_without_a_record_the_file_decides(tmp_path: Path) -> None:
    assert device_of(str(tmp_path), "cuda") == "cuda"
    assert device_of(str(tmp_path), "cpu") == "cpu"


def gpu(directory: Path, address: str, uuid: str, model: str = "NVIDIA") -> None:
    (directory / address).mkdir()
    (directory / address / "information").write_text(f"Model: \t\t {model}\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\n")


def test_gpus_in_pci_order(tmp_path: Path) -> None:
    gpu(tmp_path, "0000:86:00.0", "GPU-second")
    gpu(tmp_path, "0000:3b:00.0", "GPU-first")
    gpu(tmp_path, "0001:01:00.0", "GPU-????????-????-????-????-????????????")
    assert present_gpus(str(tmp_path)) == ("GPU-first", "GPU-second", "2")


def test_no_driver_no_gpus(tmp_path: Path) -> None:
    assert present_gpus(str(tmp_path / "none")) == ()
    assert models_of(("GPU-a",), str(tmp_path / "none")) == ()


def test_models_of_an_engine_s_gpus(tmp_path: Path) -> None:
    gpu(tmp_path, "0000:3b:00.0", "GPU-first", "NVIDIA H200")
    gpu(tmp_path, "0000:86:00.0", "GPU-second", "NVIDIA H200")
    gpu(tmp_path, "0001:01:00.0", "GPU-????????-????-????-????-????????????", "NVIDIA L4")
    assert models_of(present_gpus(str(tmp_path)), str(tmp_path)) == ("NVIDIA H200", "NVIDIA L4")
    assert models_of(("GPU-second", "GPU-gone"), str(tmp_path)) == ("NVIDIA H200",)
    assert models_of((), str(tmp_path)) == ()


@pytest.mark.parametrize(
    ("engines", "instance", "own"),
    [
        ((Engine(),), "default", PRESENT),
        ((Engine(gpus=(1, "GPU-d")),), "default", ("GPU-b", "GPU-d")),
        ((Engine(gpus=(7,)),), "default", ("7",)),
        ((Engine(name="a", gpus=(0, 1, 2, 3), replicas=2),), "a-2", ("GPU-c", "GPU-d")),
        ((Engine(name="a"), Engine(name="b", gpus=(1, "GPU-c"))), "a", ("GPU-a", "GPU-d")),
        ((Engine(gpus=()),), "default", ()),
    ],
)
def test_own_gpus(engines: tuple[Engine, ...], instance: str, own: tuple[str, ...]) -> None:
    assert own_gpus(Config(engines=engines), instance, PRESENT) == own


def test_a_runtime_is_known_by_what_it_was_built_of(tmp_path: Path) -> None:
    assert build_of(str(tmp_path)) == ""
    (tmp_path / ".complete").write_text('{"v": 1, "device": "cuda", "python": "3.11", "lock": "ab12", "at": 7.0}')
    assert build_of(str(tmp_path)) == "3.11 ab12"
