"""GPUs as the supervisor's file and the driver's files tell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.host import files
from appliance.host.gpus import Found, found
from appliance.quantity import UNKNOWN

INFORMATION = "Model: \t\t NVIDIA L4\nIRQ:   \t\t 5\nGPU UUID: \t GPU-{n}\n"


def driver(tmp_path: Path, count: int) -> str:
    for n in range(count):
        path = tmp_path / f"proc/driver/nvidia/gpus/0000:0{n}:00.0/information"
        path.parent.mkdir(parents=True)
        path.write_text(INFORMATION.format(n=n))
    return str(tmp_path / "proc")


def test_the_supervisors_file_comes_first(tmp_path: Path) -> None:
    state = tmp_path / "gpus.json"
    files.replace_json(state, {"gpus": [
        {"pci": "0000:41:00", "name": "NVIDIA H100 PCIe", "uuid": "GPU-b", "mem_total_mib": 81559.0},
        {"pci": "0000:01:00", "name": "NVIDIA L4", "uuid": "GPU-a", "mem_total_mib": None},
        {"pci": "0000:02:00", "name": ""},
    ]})  # fmt: skip
    assert found(str(state), driver(tmp_path, 1)) == (
        Found("NVIDIA L4", "GPU-a", UNKNOWN),
        Found("NVIDIA H100 PCIe", "GPU-b", 81559 << 20),
    )


@pytest.mark.parametrize("text", [None, "{", '{"v": 1, "gpus": 5}', '{"v": 1, "gpus": []}', '{"v": 2, "gpus": [{}]}'])
def test_else_the_drivers(tmp_path: Path, text: str | None) -> None:
    state = tmp_path / "gpus.json"
    if text is not None:
        state.write_text(text)
    assert found(str(state), driver(tmp_path, 2)) == (Found("NVIDIA L4", "GPU-0"), Found("NVIDIA L4", "GPU-1"))
    assert found(str(state), str(tmp_path / "none")) == ()
