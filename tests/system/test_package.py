"""The package on a machine that serves: on Debian 13, and the purge of one that was in use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from box import Box, roots

from tests.support import layers
from tests.support.machine import PARIS, Appliance

# What apt, dpkg and systemd write whatever is installed.
OTHERS = ("/var/lib/dpkg", "/var/lib/apt", "/var/cache", "/var/log", "/var/lib/systemd", "/root", "/tmp", "/var/tmp")
OTHERS += ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/ld.so.cache", "/etc/subuid", "/etc/subgid")
OTHERS += (
    "/etc/machine-id",
    "/var/lib/dbus/machine-id",
    "/etc/ssl",
    "/usr/local/share/ca-certificates",
    "/run",
    "/dev",
    "/proc",
    "/sys",
)


@pytest.mark.full
def test_serves_on_debian_13(deb: Path) -> None:
    layer = layers.installed_layer("trixie", deb)
    with Box.start("trixie", [layer], network="private") as box:
        machine = Appliance(box)
        machine.wait_ready()
        assert "Paris" in machine.sdk("chat", PARIS)["text"]


@pytest.mark.vllm
def test_purge_leaves_only_what_is_the_operator_s(appliance: Appliance) -> None:
    """After all other tests, on the same machine."""
    box = appliance.box
    box.sh("mkdir -p /var/lib/llm-appliance/models/mine && echo weights > /var/lib/llm-appliance/models/mine/x")
    box.sh("apt-get purge -y llm-appliance", timeout=180)
    assert box.sh("systemctl list-units --all --plain --no-legend 'llm-*'").out.strip() == ""
    assert box.sh("curl -s -m 5 http://127.0.0.1:8080/healthz", check=False).status != 0
    for user in ("llm-gateway", "llm-engine", "llm-supervisor", "llm-runtime"):
        alive = box.sh(f"find /proc -maxdepth 1 -user {user} -name '[0-9]*'", check=False).out.strip()
        assert alive == "" or "unknown user" in alive or "is not the name" in alive
    assert box.read("/var/lib/llm-appliance/models/mine/x") == "weights\n"
    kept = ("/var/lib/llm-appliance/models/mine", "/var/lib/llm-appliance/models/mine/x")
    allowed = (*kept, "/var/lib/llm-appliance", "/var/lib/llm-appliance/models")
    assert [path for path in _unowned(box) if path not in allowed] == []


def _unowned(box: Box) -> list[str]:
    """Files that neither the base root nor an installed package accounts for."""
    prune = " -o ".join(f"-path {path}" for path in OTHERS)
    here = box.sh(f"find / -xdev \\( {prune} \\) -prune -o -print", timeout=120).out.splitlines()
    owned = set(box.sh("cat /var/lib/dpkg/info/*.list", timeout=60).out.splitlines())
    base = roots.base("bookworm")
    new = [path for path in here if path not in owned and not os.path.lexists(base / path.lstrip("/"))]
    return [path for path in new if not path.endswith(".pyc") and "__pycache__" not in path]
