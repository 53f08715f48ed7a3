"""The gateway's own metrics: counted once for each finished call, written when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

from appliance.wire.promtext import Rows, family, label_block, number

from .record import Record
from .throughput import FirstTokenTimes

NONE = "none"  # the engine of calls that came to none
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Histogram:
    """Counts of observations by upper bound."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)  # for each bound, and one beyond
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds


def histogram_family(name: str, text: str, label: str, series: Mapping[str, Histogram]) -> str:
    """The family in Prometheus' format, by the values of one label; nothing of those without observations."""
    lines: list[str] = []
    for value, histogram in series.items():
        total = 0
        rows: list[str] = []
        for bound, count in zip((*map(number, SECONDS), "+Inf"), histogram.counts, strict=True):
            total += count
            rows.append(f"{name}_bucket{label_block({label: value, 'le': bound})} {total}\n")
        labels = label_block({label: value})
        rows.append(f"{name}_sum{labels} {histogram.sum!r}\n{name}_count{labels} {total}\n")
        lines += rows if total else []
    return "".join([f"# HELP {name} {text}\n# TYPE {name} histogram\n", *lines]) if lines else ""


class _Engine:
    """What was counted of the calls of one engine."""

    __slots__ = ("duration", "ended", "events", "given", "queued", "resent", "tokens", "ttft")

    def __init__(self) -> None:
        self.ended: Counter[tuple[int, str]] = Counter()  # status, outcome
        self.tokens: Counter[str] = Counter()  # kind
        self.events = self.resent = 0
        self.given = 0  # tokens as it told them, events where it did not
        self.ttft, self.queued, self.duration = Histogram(), Histogram(), Histogram()


class Metrics:
    """Counters since the process began."""

    def __init__(self) -> None:
        self._engines: dict[str, _Engine] = {}  # by the label's value
        self._refused: Counter[str] = Counter()
        self.first_tokens = FirstTokenTimes()

    def finish(self, record: Record) -> None:
        """Count a finished call."""
        name, status, outcome, code, stream, queue, first, total, events, prompt, cached, completion, _, resent = (
            record[6:]
        )
        label = name or NONE
        engine = self._engines.get(label)
        if engine is None:
            engine = self._engines[label] = _Engine()
        engine.ended[status, outcome] += 1
        engine.events += events
        engine.given += events if completion is None else completion
        tokens = engine.tokens
        if prompt is not None:
            tokens["prompt"] += prompt
        if cached is not None:
            tokens["cached"] += cached
        if completion is not None:
            tokens["completion"] += completion
        if resent:
            engine.resent += resent
        if queue is not None:
            engine.queued.observe(queue / 1000)
        if first is not None:
            engine.ttft.observe(first / 1000)
        if name:
            engine.duration.observe(total / 1000)
        if stream:
            self.first_tokens.ended(record)
        if code and outcome == "refused":
            self._refused[code] += 1

    @property
    def requests(self) -> int:
        """Calls that ended."""
        return sum(sum(engine.ended.values()) for engine in self._engines.values())

    @property
    def given(self) -> Counter[str]:
        """Tokens that each engine gave, as it told them; events where it did not."""
        return Counter({name: engine.given for name, engine in self._engines.items()})

    def exposition(self, live: Iterable[tuple[str, str, str, Rows]]) -> str:
        """Everything in Prometheus' format; `live` are families read now: name, kind, text, rows."""
        engines = list(self._engines.items())
        counted: list[tuple[str, str, Rows]] = [
            ("requests_total", "Calls that ended.", [
                ({"engine": name, "status": str(status), "outcome": outcome}, float(count))
                for name, engine in engines for (status, outcome), count in engine.ended.items()
            ]),
            ("admission_refused_total", "Calls that were refused, by code.", [
                ({"reason": code}, float(count)) for code, count in self._refused.items()
            ]),
            ("tokens_total", "Tokens as the engines reported them; counts of events where a call was aborted.", [
                ({"engine": name, "kind": kind}, float(count))
                for name, engine in engines for kind, count in engine.tokens.items()
            ]),
            ("stream_events_total", "Token events passed on.", [
                ({"engine": name}, float(engine.events)) for name, engine in engines
            ]),
            ("requests_resent_total", "Calls sent to an engine again after a loss.", [
                ({"engine": name}, float(engine.resent)) for name, engine in engines if engine.resent
            ]),
        ]  # fmt: skip
        parts = [family(f"llm_appliance_{name}", "counter", text, rows) for name, text, rows in counted]
        parts += [
            histogram_family(f"llm_appliance_request_{name}_seconds", text, "engine", series)
            for name, text, series in (
                ("ttft", "Time from admission to the first byte of the answer.", {n: e.ttft for n, e in engines}),
                ("queue", "Time from arrival to admission.", {n: e.queued for n, e in engines}),
                ("duration", "Time from arrival to the end of the answer.", {n: e.duration for n, e in engines}),
            )
        ]
        parts += [family(f"llm_appliance_{name}", kind, text, rows) for name, kind, text, rows in live]
        return "".join(parts)
