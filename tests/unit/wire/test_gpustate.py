from __future__ import annotations

import pytest

from appliance.wire.gpustate import driver, gpus, metrics

GPU = {"uuid": "GPU-a", "pci": "0000:65:00", "util": 50.0, "power_w": 300.5, "mem_used_mib": 2, "remapped_rows": [0, 0]}


@pytest.mark.parametrize("value", [{}, {"gpus": None}, {"gpus": "x", "driver": 3, "error": ""}, {"gpus": [1, "x"]}])
def test_what_is_no_state_shows_nothing(value: dict[str, object]) -> None:
    assert (driver(value), gpus(value)) == (None, [])
    assert [row for *_, rows in metrics(value) for row in rows] == []


def test_what_nobody_said_is_null() -> None:
    (shown,) = gpus({"gpus": [{**GPU, "temp_c": True, "name": 7, "pids": [1]}]})
    assert {name for name, figure in shown.items() if figure is not None} == set(GPU)
    assert "pids" not in shown


def test_a_driver_with_an_error() -> None:
    value: dict[str, object] = {"at": 5.0, "driver": None, "error": "no answer from NVML", "code": None}
    assert driver(value) == {"at": 5.0, "version": None, "error": "no answer from NVML", "code": None}


def test_metrics_are_in_base_units() -> None:
    told = {name: list(rows) for name, _, _, rows in metrics({"gpus": [GPU]})}
    label = {"gpu": "GPU-a"}
    assert told == {
        "gpu_memory_used_bytes": [(label, 2097152)],
        "gpu_memory_total_bytes": [],
        "gpu_utilization_ratio": [(label, 0.5)],
        "gpu_power_watts": [(label, 300.5)],
        "gpu_temperature_celsius": [],
    }
