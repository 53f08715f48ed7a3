from __future__ import annotations

from pathlib import Path

import pytest

from appliance.host import device


def machine(root: Path, *, module: bool, node: bool, container: bool) -> tuple[str, str, str]:
    for name in ("proc/driver/nvidia", "dev", "run/systemd"):
        (root / name).mkdir(parents=True)
    for wanted, name in (
        (module, "proc/driver/nvidia/version"),
        (node, "dev/nvidiactl"),
        (container, "run/systemd/container"),
    ):
        if wanted:
            (root / name).touch()
    return str(root / "proc"), str(root / "dev"), str(root / "run")


@pytest.mark.parametrize(
    ("module", "node", "container", "present"),
    [
        (False, False, False, False),
        (False, True, False, False),  # a leftover node without its driver
        (True, False, False, True),  # a host where nobody used the GPU since boot
        (True, True, False, True),
        (True, False, True, False),  # a container that was not given the GPU
        (True, True, True, True),
    ],
)
def test_driver_present(tmp_path: Path, module: bool, node: bool, container: bool, present: bool) -> None:
    assert device.nvidia_driver_present(*machine(tmp_path, module=module, node=node, container=container)) is present


def test_a_configured_device_is_not_questioned(tmp_path: Path) -> None:
    proc, dev, _ = machine(tmp_path, module=True, node=True, container=False)
    assert device.resolve("cpu", proc, dev) == "cpu"
    assert device.resolve("auto", proc, dev) == "cuda"
    assert device.resolve("cuda", str(tmp_path), str(tmp_path)) == "cuda"
    assert device.resolve("auto", str(tmp_path), str(tmp_path)) == "cpu"
