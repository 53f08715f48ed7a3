from __future__ import annotations

from typing import Any

import pytest

from appliance.cli.gpulines import lines

GPU: dict[str, Any] = {
    "uuid": "GPU-a", "pci": "0000:65:00", "idx": 0, "name": "NVIDIA H200", "util": 97.0, "power_w": 612.4,
    "power_limit_w": 700.0, "temp_c": 66.0, "mem_used_mib": 131072.0, "mem_total_mib": 143771.0, "recovery_action": 0,
    "remapped_rows": [0, 0, False, False], "error": None,
}  # fmt: skip


def shown(driver: dict[str, Any] | None, *gpus: dict[str, Any]) -> list[str]:
    return list(lines({"driver": driver, "gpus": list(gpus)}, 80))


@pytest.mark.parametrize("value", [{}, {"driver": None, "gpus": []}, {"driver": {"version": "580", "error": None}}])
def test_a_machine_without_gpus_is_told_nothing(value: dict[str, Any]) -> None:
    assert list(lines(value, 80)) == []


def test_a_healthy_gpu_is_a_row() -> None:
    assert shown({"version": "580", "error": None}, GPU) == [
        "",
        "GPU         MEMORY         BUSY  POWER      TEMP  NAME",
        "0000:65:00  128.0/140 GiB  97 %  612/700 W  66 C  NVIDIA H200",
    ]


def test_what_nobody_said_is_no_zero() -> None:
    unknown = dict.fromkeys(GPU) | {"pci": "0000:65:00", "name": "NVIDIA GB10"}
    assert shown(None, unknown)[2].split() == ["0000:65:00", "-", "-", "-", "-", "NVIDIA", "GB10"]
    assert "612 W" in shown(None, {**GPU, "power_limit_w": None})[2]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"error": "GPU is lost"}, ["GPU 0000:65:00: GPU is lost"]),
        ({"recovery_action": 4}, ["GPU 0000:65:00: needs a reset"]),
        ({"recovery_action": 2}, ["GPU 0000:65:00: needs a reboot"]),
        ({"recovery_action": 5}, ["GPU 0000:65:00: the driver asks for recovery action 5"]),
        ({"remapped_rows": [1, 0, True, False]}, ["GPU 0000:65:00: rows of its memory are remapped at its next reset"]),
        (
            {"remapped_rows": [1, 0, True, True]},
            ["GPU 0000:65:00: rows of its memory cannot be remapped: replace it"],
        ),
    ],
)
def test_faults_stand_below_the_table(found: dict[str, Any], words: list[str]) -> None:
    assert shown(None, {**GPU, **found})[3:] == words


def test_a_driver_that_is_silent() -> None:
    assert shown({"version": "580", "error": "no answer from\x1b NVML"}) == [
        "",
        "no readings of GPUs: no answer from? NVML",
    ]
