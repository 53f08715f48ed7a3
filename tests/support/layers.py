"""Disks of boxes that many tests start from.

    runtime-DISTRO-KEY     the vLLM runtime and the builtin models, made by the real llm-runtime.service
    installed-DISTRO-KEY   on it: the package as built, installed by apt, serving once, then powered off

KEY of the first comes from the runtime's locks and code, of the second from the package's bytes as well; what is there
already is taken.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

from box import Box, wheels
from box.machine import has_layer
from box.places import place

from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
STATE = "/var/lib/llm-appliance"
KEY_FILE = "/root/key"
WHEELHOUSE = "/srv/wheels"
KEPT_S = 2 * 3600.0  # since its last use
APT = "apt-get install -y --no-install-recommends"  # its Depends alone must do
DROPIN = "/etc/llm-appliance/config.d/50-test.toml"
# The box that makes the runtime shares the host's network, where the usual ports may be taken.
OTHER_PORTS = """
[gateway]
listen = ["127.0.0.1:18080"]
admin_listen = "127.0.0.1:18081"
"""
BOTH = """
[[engine]]
name = "default"
model = "builtin:smollm2-135m"
[[engine]]
name = "embed"
model = "builtin:minilm-l6-v2"
"""


def runtime_layer(distro: str, deb: Path) -> str:
    """The layer with a runtime for that distribution; made by a real installation when missing (minutes)."""
    sources = sorted((ROOT / "appliance/runtime").rglob("*.py")) + sorted((ROOT / "appliance/runtime").rglob("*.txt"))
    name = f"runtime-{distro}-{_digest(*sources)}"
    if _is_there(distro, name):
        return name
    _say(f"making {name}: vLLM and the models, once")
    with Box.start(distro, network="host") as box:
        wheels.offer(box, WHEELHOUSE, DROPIN)
        box.write("/etc/llm-appliance/config.d/60-test.toml", OTHER_PORTS + BOTH)
        download(box, deb)
        install(box, deb)
        wait_until(lambda: wheels.keep(box) or runtime_complete(box), 1500, "the runtime complete", pause=1)
        box.snapshot(name, only=(f"{STATE}/runtimes", f"{STATE}/models"))
    _forget(f"runtime-{distro}-", name)
    return name


def installed_layer(distro: str, deb: Path) -> str:
    """The layer of a machine on which the package was installed and has served; made when missing (about a minute)."""
    below = runtime_layer(distro, deb)
    name = f"installed-{distro}-{hashlib.sha256(below.encode() + deb.read_bytes()).hexdigest()[:8]}"
    if _is_there(distro, name):
        return name
    _say(f"making {name}")
    with Box.start(distro, [below], network="host") as box:
        download(box, deb)
        box.stop()
        box.boot(network="private")
        install(box, deb)
        made = json.loads(box.sh("llm-appliance keys create tests --json").out)
        box.write(KEY_FILE, made["key"] + "\n")
        wait_until(lambda: ready(box), 240, "the gateway ready", pause=1)
        box.snapshot(name)
    _forget(f"installed-{distro}-", name)
    return name


def download(box: Box, deb: Path) -> None:
    """Put the package into the box and fetch what it depends on, so that it can be installed without a network."""
    box.put(deb, f"/root/{deb.name}")
    box.sh(f"apt-get -qq update && {APT} --download-only /root/{deb.name}", timeout=300)


def install(box: Box, deb: Path) -> str:
    """The real `apt install` of a package file that was downloaded for; what apt said."""
    return box.sh(f"{APT} /root/{deb.name}", timeout=300).out


def runtime_complete(box: Box) -> bool:
    """Whether llm-runtime says that it is done. Raises when it says that it cannot be."""
    try:
        state = json.loads(box.read("/run/llm-appliance/runtime/state.json"))
    except (OSError, ValueError):
        return False
    if state["phase"] == "failed" and box.sh("systemctl is-failed llm-runtime", check=False).status == 0:
        raise AssertionError(f"the runtime: {state['message']}")
    return bool(state["phase"] == "complete")


def ready(box: Box) -> bool:
    """Whether /readyz says 200."""
    return box.sh("curl -sf -m 5 -o /dev/null http://127.0.0.1:8080/readyz", check=False).status == 0


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def _is_there(distro: str, name: str) -> bool:
    """Whether that layer is there; it counts as used now."""
    if not has_layer(distro, name):
        return False
    os.utime(place("layers", name))
    return True


def _forget(prefix: str, but: str) -> None:
    """Delete older layers of the same kind, for the runtime's are gigabytes; not what another checkout works with."""
    used = [state.read_text() for state in place("boxes", "x").parent.glob("*/state.json")]
    used += [layer.read_text() for layer in place("layers", "x").parent.glob("*/layer.json")]
    for layer in place("layers", "x").parent.glob(f"{prefix}*"):
        fresh = time.time() - layer.stat().st_mtime < KEPT_S
        if layer.name != but and not fresh and not any(layer.name in text for text in used):
            shutil.rmtree(layer, ignore_errors=True)


def _say(words: str) -> None:
    print(f"[{words}]", file=sys.__stderr__, flush=True)
