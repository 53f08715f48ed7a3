"""Verdicts as a table for the terminal, for the README, and as JSON."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import provisions

from . import packaged
from .measures import Measure, Verdict
from .scenarios import GATEWAY, NGINX, ROUTER

BEGIN, END = "<!-- what tests/run --bench --readme writes begins here -->", "<!-- and ends here -->"
OURS, WIDE = 2, 48  # the gateway's column, and characters that it takes at most
HEADS = ("measure", "at most", "gateway", "nginx", "vllm-router", "")


def machine() -> dict[str, Any]:
    """What it was measured on, and with what."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    debian = Path("/etc/debian_version")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": model[1].strip() if model else platform.machine(),
        "system": f"Debian {debian.read_text().strip()}" if debian.exists() else platform.system(),
        "kernel": platform.release(),
        "python": packaged.version(),
        "load": os.getloadavg()[0],
        "nginx": _nginx_version(),
        "vllm-router": re.search(r"vllm-router==(\S+)", provisions.ROUTER.read_text())[1],  # type: ignore[index]
    }


def busy(about: Mapping[str, Any]) -> bool:
    """Whether other work makes times longer than they are; ratios bear it."""
    return bool(about["load"] > 0.5 * about["cores"])


def _nginx_version() -> str:
    try:
        done = subprocess.run([str(provisions.nginx()), "-v"], capture_output=True, text=True, timeout=10)
    except (OSError, RuntimeError):
        return "(not here)"
    found = re.search(r"nginx/(\S+)", done.stderr)
    return found[1] if found else "(unknown)"


def cells(verdict: Verdict) -> tuple[str, ...]:
    """One row of the table."""
    measure, values = verdict.measure, verdict.values
    ours = number(measure, values[GATEWAY]) if GATEWAY in values else "-"
    if verdict.ratios:
        ratios = sorted(verdict.ratios.items(), reverse=True)
        ours += "; " + ", ".join(f"{ratio:.2f} x {other}" for other, ratio in ratios)
    if verdict.detail:
        ours += f" ({verdict.detail})"
    others = [
        number(measure, values[other]) if other in values else _missing(verdict, other) for other in (NGINX, ROUTER)
    ]
    word = f"{verdict.word}: {verdict.why}" if verdict.word == "failed" else verdict.word
    return (measure.words, bars(measure), ours, *others, word)


def _missing(verdict: Verdict, other: str) -> str:
    if other not in verdict.measure.through:
        return ""
    return "not here" if verdict.word == "not here" and verdict.why.startswith(other) else "-"


def bars(measure: Measure) -> str:
    """What is allowed, in words."""
    return ", ".join(f"{bar.most:.2f} x {bar.of}" if bar.of else number(measure, bar.most) for bar in measure.bars)


def number(measure: Measure, value: float) -> str:
    """With its unit."""
    return f"{value:,.{measure.digits}f} {measure.unit}".strip()


def table(verdicts: Sequence[Verdict]) -> str:
    """For the terminal."""
    rows = [HEADS, *(cells(verdict) for verdict in verdicts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    widths[OURS] = min(widths[OURS], WIDE)  # a longer text pushes the rest of its line to the right
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def markdown(verdicts: Sequence[Verdict], about: Mapping[str, Any], repetitions: int) -> str:
    """For the README."""
    lines = [
        f"Measured on {about['cores']} cores ({about['processor']}, {about['system']}, Python {about['python']}) with "
        f"nginx {about['nginx']} and vllm-router {about['vllm-router']}: medians of {repetitions} interleaved runs, "
        "ratios within a run."
        + (
            f" The machine had other work to do (load {about['load']:.1f}), so times are too long."
            if busy(about)
            else ""
        ),
        "",
        "| " + " | ".join((*HEADS[:-1], "verdict")) + " |",
        "|---" * len(HEADS) + "|",
        *("| " + " | ".join(cells(verdict)) + " |" for verdict in verdicts),
    ]
    return "\n".join(lines)


def write_readme(path: Path, text: str) -> None:
    """Put the text where the README's marks are. Raises RuntimeError when it has none."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RuntimeError(f"{path} has no place for the table: {BEGIN} ... {END}")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def as_json(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """For a machine."""
    return [
        {
            "measure": verdict.measure.words,
            "unit": verdict.measure.unit,
            "bars": [{"most": bar.most, "of": bar.of or None} for bar in verdict.measure.bars],
            "values": verdict.values,
            "ratios": verdict.ratios,
            "verdict": verdict.word,
            "why": verdict.why or None,
        }
        for verdict in verdicts
    ]


def say(text: str) -> None:
    """A line of progress, at once."""
    print(text, file=sys.stderr, flush=True)
