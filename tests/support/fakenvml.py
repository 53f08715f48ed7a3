"""A stand-in for NVIDIA's driver: a `libnvidia-ml.so.1` that pynvml loads, and the script that tells it what to say."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
NAME = "libnvidia-ml.so.1"
# A box as it should be; what a test says comes after it, and the last word on a figure counts.
TWO_GPUS = """
driver=580.95.05
gpus=2
gpu0.uuid=GPU-aaaa
gpu1.uuid=GPU-bbbb
gpu0.pci=00000000:3B:00.0
gpu1.pci=00000000:D8:00.0
gpu.name=NVIDIA Test 80GB
gpu.util=97
gpu.memutil=41
gpu.power=312500
gpu.limit=350000
gpu.temp=66
gpu.used=64424509440
gpu.total=85899345920
gpu.pids=
gpu.recovery=0
gpu.rows=0,0,0,0
gpu.ecc=0
gpu.throttle=4
"""


def library() -> Path:
    """The directory that holds the library; compiled once for each version of its source."""
    version = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    made = Path(tempfile.gettempdir(), f"llm-appliance-fakenvml-{os.geteuid()}-{version}")
    if not (made / NAME).exists():
        made.mkdir(mode=0o700, exist_ok=True)
        unfinished = made / f".{os.getpid()}"
        flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
        subprocess.run(["cc", *flags, "-o", str(unfinished), str(SOURCE)], check=True, timeout=60)
        unfinished.replace(made / NAME)
    return made


class FakeNvml:
    """One driver with its script in `directory`."""

    def __init__(self, directory: Path, script: str = TWO_GPUS) -> None:
        self._script = directory / "nvml"
        self.say(script)

    def say(self, script: str) -> None:
        """From the next call on; a call that is under way stays as it is."""
        new = self._script.with_suffix(".new")
        new.write_text(script)
        new.replace(self._script)

    @property
    def environment(self) -> dict[str, str]:
        """For a process that shall meet this driver."""
        return {**os.environ, "LD_LIBRARY_PATH": str(library()), "FAKE_NVML_SCRIPT": str(self._script),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # fmt: skip
