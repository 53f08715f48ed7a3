"""GPUs and their driver in `llm-appliance status`; nothing at all on a machine without them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from . import output

_WANTS = {1: "needs a reset", 2: "needs a reboot", 4: "needs a reset", 6: "needs a reset", 7: "needs a reboot"}


def lines(value: Mapping[str, Any], columns: int) -> Iterator[str]:
    """A table, what is wrong with single GPUs, and what is wrong with the driver."""
    driver, gpus = value.get("driver") or {}, value.get("gpus") or ()
    if gpus:
        yield ""
        rows = [_row(gpu) for gpu in gpus]
        yield from output.lines(rows, ("GPU", "MEMORY", "BUSY", "POWER", "TEMP", "NAME"), columns)
    for gpu in gpus:
        for fault in _faults(gpu):
            yield output.cut(f"GPU {output.clean(gpu.get('pci') or gpu.get('idx'))}: {fault}", columns)
    if driver.get("error"):
        yield ""
        yield output.cut(f"no readings of GPUs: {output.clean(driver['error'])}", columns)


def _row(gpu: Mapping[str, Any]) -> list[object]:
    used, total = gpu.get("mem_used_mib"), gpu.get("mem_total_mib")
    memory = f"{used / 1024:.1f}/{total / 1024:.0f} GiB" if _known(used, total) else "-"
    power, limit, busy, heat = (gpu.get(key) for key in ("power_w", "power_limit_w", "util", "temp_c"))
    return [
        output.clean(gpu.get("pci") or gpu.get("idx")),
        memory,
        f"{busy:.0f} %" if _known(busy) else "-",
        (f"{power:.0f}/{limit:.0f} W" if _known(limit) else f"{power:.0f} W") if _known(power) else "-",
        f"{heat:.0f} C" if _known(heat) else "-",
        output.clean(gpu.get("name")),
    ]


def _faults(gpu: Mapping[str, Any]) -> Iterator[str]:
    if gpu.get("error"):
        yield output.clean(gpu["error"])
    action = gpu.get("recovery_action")
    if isinstance(action, int) and action:
        yield _WANTS.get(action, f"the driver asks for recovery action {action}")
    rows = gpu.get("remapped_rows")
    if isinstance(rows, list) and len(rows) == 4:
        if rows[3]:
            yield "rows of its memory cannot be remapped: replace it"
        elif rows[2]:
            yield "rows of its memory are remapped at its next reset"


def _known(*figures: object) -> bool:
    return all(isinstance(figure, (int, float)) for figure in figures)
