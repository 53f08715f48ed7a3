"""The two programs in C, compiled once for each state of their sources."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from tests.support import provisions

SOURCES = Path(__file__).parent / "tools"
PARTS = {
    "engine": ("engine", "orders", "generation", "timers", "common"),
    "load": ("load", "request", "answer", "histogram", "timers", "common"),
}
COMPILER = ("cc", "-std=gnu11", "-O2", "-Wall", "-Wextra")


def compile_all(directory: Path, *flags: str) -> None:
    """Make both programs in a directory. Raises RuntimeError with the compiler's words."""
    for program, parts in PARTS.items():
        sources = [str(SOURCES / f"{part}.c") for part in parts]
        done = subprocess.run(
            [*COMPILER, *flags, "-o", str(directory / program), *sources], capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            raise RuntimeError(f"{program} cannot be compiled: {done.stderr}")


def program(name: str) -> Path:
    """`engine` or `load`, made if it is not there."""
    stamp = hashlib.sha256(" ".join(COMPILER).encode())
    for source in sorted(SOURCES.iterdir()):
        stamp.update(source.read_bytes())

    def make(directory: Path) -> None:
        directory.mkdir()
        compile_all(directory)

    return provisions.once(f"bench-{stamp.hexdigest()[:12]}", make) / name
