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
    used, total, power = (
        _figure(gpu, "mem_used_mib", 1024, 1),
        _figure(gpu, "mem_total_mib", 1024),
        _figure(gpu, "power_w"),
    )
    busy, heat, limit = _figure(gpu, "util"), _figure(gpu, "temp_c"), _figure(gpu, "power_limit_w")
    return [
        output.clean(gpu.get("pci") or gpu.get("idx")),
        f"{used}/{total} GiB" if used and total else "-",
        f"{busy} %" if busy else "-",
        (f"{power}/{limit} W" if limit else f"{power} W") if power else "-",
        f"{heat} C" if heat else "-",
        output.clean(gpu.get("name")),
    ]


def _figure(gpu: Mapping[str, Any], name: str, unit: int = 1, digits: int = 0) -> str:
    """A figure in its unit; empty when nobody said."""
    value = gpu.get(name)
    return f"{value / unit:.{digits}f}" if isinstance(value, (int, float)) else ""


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
