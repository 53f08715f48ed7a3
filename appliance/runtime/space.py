"""Room on the disk, asked before gigabytes are fetched, with numbers in the answer."""

from __future__ import annotations

import os
from collections.abc import Iterable

from appliance.errors import Failed
from appliance.quantity import format_size

# Measured with vLLM 0.32: bytes on the disk after unpacking and byte-compiling, by bytes of wheels. CUDA's libraries
# are packed less tightly than Python and the CPU's.
UNPACKED_RATIO, UNPACKED_RATIO_CUDA = 4.3, 2.4
SPARE = 256 << 20  # for logs, state and what others write meanwhile


def free(path: str) -> int:
    """Bytes that this user may still write below `path`. Raises OSError."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def require(path: str, needed: int, purpose: str, available: int | None = None) -> None:
    """Raise Failed when `needed` bytes and a reserve do not fit below `path`."""
    have = free(path) if available is None else available
    if have >= needed + SPARE:
        return
    raise Failed(
        f"not enough disk space for {purpose}: {format_size(needed + SPARE)} are needed in {path}, "
        f"{format_size(have)} are free",
        hint=f"make room for {format_size(needed + SPARE - have)}; llm-appliance runtime prune removes old runtimes",
    )


def unpacked_estimate(sizes: Iterable[int], *, has_cuda: bool) -> int:
    """Bytes that wheels of these lengths will take, before they are there to be looked into."""
    return int(sum(sizes) * (UNPACKED_RATIO_CUDA if has_cuda else UNPACKED_RATIO))
