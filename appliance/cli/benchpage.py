"""What a ladder has shown, for people (80 columns) and for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from appliance import clock
from appliance.policy.loadfigures import Spread, Step, Target
from appliance.policy.loadladder import KEPT, Best

from . import output
from .benchload import Measured

WIDTH = 24  # columns of the bar
LATE, TIMER = 0.05, 0.003  # of the times that are told; seconds by which any timer may be late
SHORT = 0.97  # of the wanted tokens
REFUSED = ("429", "503")


class Progress:
    """A line on the terminal while a step runs; in a pipe a line at the end of each step."""

    def __init__(self, requests: int | None, seconds: float | None) -> None:
        self._requests, self._seconds = requests, seconds
        self._shown = sys.stderr.isatty()

    def show(self, measured: Measured) -> None:
        """How far a step is."""
        if not self._shown:
            return
        count, passed = len(measured.requests), clock.monotonic() - measured.began
        share = max(
            count / self._requests if self._requests else 0.0, min(passed / self._seconds, 1.0) if self._seconds else 0
        )
        bar = "#" * round(share * WIDTH)
        tokens = sum(request.output_tokens for request in measured.requests) / max(passed, 1e-9)
        line = f"{measured.concurrency:>5} at once [{bar:-<{WIDTH}}] {count} requests, {tokens:,.0f} tokens/s"
        print(f"\r\x1b[K{output.cut(line, output.width())}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def ended(self, step: Step) -> None:
        """A step is over."""
        if not self._shown:
            output.note(
                f"{step.concurrency} at once: {step.completed} requests, {step.failed} failed, "
                f"{step.tokens_per_s:,.0f} tokens/s"
            )


def table(steps: Sequence[Step], target: Target) -> None:
    """The ladder."""
    headers = ["N", "REQ/S", "TOK/S", "TTFT p50", "p99", "ITL p50", "p99", "E2EL", "FAILED"]
    if target:
        headers.insert(3, "GOOD/S")
    rows: list[list[object]] = []
    for step in steps:
        row: list[object] = [
            f"{step.concurrency}{'*' if step.cut else ''}",
            f"{step.requests_per_s:.2f}",
            f"{step.tokens_per_s:,.0f}",
            *(_ms(spread, name) for spread in (step.ttft, step.itl) for name in ("p50", "p99")),
            _ms(step.e2el, "p50"),
            step.failed or "-",
        ]
        if target:
            row.insert(3, f"{step.goodput or 0:.2f}")
        rows.append(row)
    output.table(rows, headers)
    if any(step.cut for step in steps):
        print("* cut by Ctrl-C")


def _ms(spread: Spread | None, name: str) -> str | None:
    return None if spread is None else _seconds(getattr(spread, name))


def _seconds(value: float) -> str:
    """Three figures, like `102ms`, `9.87ms`, `2.41s`."""
    if value >= 1:
        return f"{value:.2f}s" if value < 100 else f"{value:.0f}s"
    shown = value * 1000
    return f"{shown:.0f}ms" if shown >= 100 else f"{shown:.1f}ms" if shown >= 10 else f"{shown:.2f}ms"


def remarks(steps: Sequence[Step], output_tokens: int) -> list[str]:
    """What a reader of the figures must know of them."""
    found: list[str] = []
    for step in steps:
        if step.failures:
            kinds = ", ".join(f"{count} {kind}" for kind, count in step.failures.items())
            asked = step.failed + step.completed
            found.append(f"{step.concurrency} at once: {step.failed} of {asked} requests failed: {kinds}")
    limited = [step for step in steps if any(kind.startswith(REFUSED) for kind in step.failures)]
    if limited:
        found.append(
            f"from {limited[0].concurrency} at once on a limit refused requests (429, 503), so these steps measure the "
            "limit and not the engine: see [gateway.admission] and the key's own limits (llm-appliance keys list)"
        )
    late = [step for step in steps if step.itl is not None and step.late > max(TIMER, LATE * step.itl.p99)]
    if late:
        found.append(
            f"with {late[0].concurrency} at once this program saw events up to {_seconds(late[0].late)} late (p99, at "
            f"{late[0].busy:.0%} of a core): these times are partly its own; let it run where nothing else does"
        )
    completed = sum(step.completed for step in steps)
    tokens = sum(step.output_tokens for step in steps)
    if completed and tokens < SHORT * output_tokens * completed:
        found.append(f"answers had {tokens / completed:.0f} tokens on average, not {output_tokens}")
    if any(step.estimated for step in steps):
        found.append("output tokens are counted by events where the endpoint told no usage")
    return found


def conclude(notes: Sequence[str], stopped: str, best: Best | None, target: Target) -> None:
    """What follows from the table."""
    for text in notes:
        print(f"note: {text}")
    if stopped:
        print(f"The ladder ended: {stopped}.")
    if best is not None:
        print(f"Best: {best.reason}.")
    else:
        within = "within the target " if target else ""
        print(f"No step answered {KEPT:.0%} of its requests {within}as it should.")


def as_json(
    steps: Sequence[Step], target: Target, best: Best | None, head: dict[str, object], notes: Sequence[str]
) -> dict[str, object]:
    """The object of --json: times in seconds, rates a second."""
    return {
        **head,
        "target": asdict(target),
        "steps": [_step(step) for step in steps],
        "best": None if best is None else {"concurrency": best.step.concurrency, "reason": best.reason},
        "notes": list(notes),
    }


def _step(step: Step) -> dict[str, object]:
    return {
        "concurrency": step.concurrency,
        "seconds": step.seconds,
        "completed": step.completed,
        "failed": step.failed,
        "failures": dict(step.failures),
        "requests_per_s": step.requests_per_s,
        "output_tokens_per_s": step.tokens_per_s,
        "goodput": step.goodput,
        "input_tokens": step.input_tokens,
        "output_tokens": step.output_tokens,
        "cached_tokens": step.cached_tokens,
        "estimated": step.estimated,
        **{name: None if (one := getattr(step, name)) is None else asdict(one)
           for name in ("ttft", "itl", "tpot", "e2el")},
        "load_busy": step.busy,
        "load_late": step.late,
        "cut": step.cut,
    }  # fmt: skip
