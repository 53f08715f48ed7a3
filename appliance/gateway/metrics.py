"""The gateway's own metrics: counted once for each finished call, written when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from appliance.wire.promtext import Rows, family, label_block, number

from .record import Record
from .throughput import FirstTokenTimes

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Histogram:
    """Counts of observations by upper bound, for each value of one label."""

    def __init__(self, name: str, text: str, label: str) -> None:
        self.name, self.text, self.label = name, text, label
        self._series: dict[str, list[float]] = {}  # counts for each bound, one beyond, then the sum

    def observe(self, key: str, seconds: float) -> None:
        """Count one observation."""
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = [0.0] * (len(SECONDS) + 2)
        series[bisect_left(SECONDS, seconds)] += 1
        series[-1] += seconds

    def text_lines(self) -> str:
        """The family in Prometheus' format; nothing without observations."""
        lines = [f"# HELP {self.name} {self.text}\n# TYPE {self.name} histogram\n"] if self._series else []
        for key, series in self._series.items():
            total = 0.0
            for bound, count in zip((*map(number, SECONDS), "+Inf"), series, strict=False):
                total += count
                lines.append(f"{self.name}_bucket{label_block({self.label: key, 'le': bound})} {number(total)}\n")
            labels = label_block({self.label: key})
            lines.append(f"{self.name}_sum{labels} {series[-1]!r}\n{self.name}_count{labels} {number(total)}\n")
        return "".join(lines)


class Metrics:
    """Counters since the process began."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int, str]] = Counter()  # engine, status, outcome
        self.refused: Counter[str] = Counter()
        self.tokens: Counter[tuple[str, str]] = Counter()  # engine, kind
        self.events: Counter[str] = Counter()
        self.given: Counter[str] = Counter()  # engine; tokens as it told them, events where it did not
        self.first_tokens = FirstTokenTimes()
        self.resent: Counter[str] = Counter()
        self.ttft = Histogram(
            "llm_appliance_request_ttft_seconds", "Time from admission to the first byte of the answer.", "engine"
        )
        self.queued = Histogram("llm_appliance_request_queue_seconds", "Time from arrival to admission.", "engine")
        self.duration = Histogram(
            "llm_appliance_request_duration_seconds", "Time from arrival to the end of the answer.", "engine"
        )

    def finish(self, record: Record) -> None:
        """Count a finished call."""
        engine = record.engine or "none"
        self.requests[engine, record.status, record.outcome] += 1
        if record.outcome == "refused" and record.code:
            self.refused[record.code] += 1
        self.events[engine] += record.events
        if record.resent:
            self.resent[engine] += record.resent
        if record.prompt_tokens is not None:
            self.tokens[engine, "prompt"] += record.prompt_tokens
        if record.cached_tokens is not None:
            self.tokens[engine, "cached"] += record.cached_tokens
        if record.completion_tokens is not None:
            self.tokens[engine, "completion"] += record.completion_tokens
        self.given[engine] += record.events if record.completion_tokens is None else record.completion_tokens
        self.first_tokens.ended(record)
        if record.queue_ms is not None:
            self.queued.observe(engine, record.queue_ms / 1000)
        if record.first_token_ms is not None:
            self.ttft.observe(engine, record.first_token_ms / 1000)
        if record.engine:
            self.duration.observe(engine, record.total_ms / 1000)

    def exposition(self, live: Iterable[tuple[str, str, str, Rows]]) -> str:
        """Everything in Prometheus' format; `live` are families read now: name, kind, text, rows."""
        counted: list[tuple[str, str, Rows]] = [
            ("requests_total", "Calls that ended.", [
                ({"engine": engine, "status": str(status), "outcome": outcome}, float(count))
                for (engine, status, outcome), count in self.requests.items()
            ]),
            ("admission_refused_total", "Calls that were refused, by code.", [
                ({"reason": code}, float(count)) for code, count in self.refused.items()
            ]),
            ("tokens_total", "Tokens as the engines reported them; counts of events where a call was aborted.", [
                ({"engine": engine, "kind": kind}, float(count)) for (engine, kind), count in self.tokens.items()
            ]),
            ("stream_events_total", "Token events passed on.", [
                ({"engine": engine}, float(count)) for engine, count in self.events.items()
            ]),
            ("requests_resent_total", "Calls sent to an engine again after a loss.", [
                ({"engine": engine}, float(count)) for engine, count in self.resent.items() if count
            ]),
        ]  # fmt: skip
        parts = [family(f"llm_appliance_{name}", "counter", text, rows) for name, text, rows in counted]
        parts += [histogram.text_lines() for histogram in (self.ttft, self.queued, self.duration)]
        parts += [family(f"llm_appliance_{name}", kind, text, rows) for name, kind, text, rows in live]
        return "".join(parts)
