"""Which device this machine's engines run on: CUDA where the NVIDIA driver is loaded, else the CPU.

Asked without NVML, so that a sick driver cannot block the answer, and without running anything.
"""

from __future__ import annotations

import os
from typing import Literal

Device = Literal["cuda", "cpu"]


def nvidia_driver_present(proc: str = "/proc", dev: str = "/dev") -> bool:
    """Whether the NVIDIA kernel driver is loaded and has made its control device. Never raises, never blocks.

    The kernel module alone is not enough: without `nvidiactl` no CUDA program can start, as in a container that was
    not given the device.
    """
    return os.path.exists(f"{proc}/driver/nvidia/version") and os.path.exists(f"{dev}/nvidiactl")


def resolve(configured: Literal["auto", "cuda", "cpu"], proc: str = "/proc", dev: str = "/dev") -> Device:
    """The device that `[runtime] device` means on this machine."""
    if configured != "auto":
        return configured
    return "cuda" if nvidia_driver_present(proc, dev) else "cpu"
