"""Which device this machine's engines run on: CUDA where the NVIDIA driver is loaded, else the CPU.

Asked without NVML, so that a sick driver cannot block the answer, and without running anything.
"""

from __future__ import annotations

import os
from typing import Literal

Device = Literal["cuda", "cpu"]


def nvidia_driver_present(proc: str = "/proc", dev: str = "/dev", run: str = "/run") -> bool:
    """Whether the NVIDIA kernel driver is loaded for this machine. Never raises, never blocks.

    On the host the loaded module is enough: its control device may appear only when root first uses it. A container
    sees the host's module too, so there the device has to be there as well.
    """
    if not os.path.exists(f"{proc}/driver/nvidia/version"):
        return False
    return os.path.exists(f"{dev}/nvidiactl") or not os.path.exists(f"{run}/systemd/container")


def resolve(configured: Literal["auto", "cuda", "cpu"], proc: str = "/proc", dev: str = "/dev") -> Device:
    """The device that `[runtime] device` means on this machine."""
    if configured != "auto":
        return configured
    return "cuda" if nvidia_driver_present(proc, dev) else "cpu"
