"""What is made of the rows: each measure beside its bar. Pure.

A value belongs to one repetition of one proxy, None where it cannot be had; a ratio is between two proxies in one
repetition. What is judged is the median of all repetitions, of counts of faults the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from .load import FAULTS
from .scenarios import DIRECT, GATEWAY, GONE, NGINX, OTHERS, PREFILL, ROUTER, Row

MIB = 1 << 20


class Rows:
    """All rows, found by what they are of."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.all = list(rows)
        self.reps = sorted({row.rep for row in self.all})

    def of(self, scenario: str, proxy: str, rep: int) -> list[Row]:
        """The good ones, in the order of sizes."""
        found = [row for row in self.all if (row.scenario, row.proxy, row.rep) == (scenario, proxy, rep)]
        return sorted((row for row in found if not row.error), key=lambda row: row.size)

    def one(self, scenario: str, proxy: str, rep: int) -> Row | None:
        """The only good one."""
        return next(iter(self.of(scenario, proxy, rep)), None)

    def errors(self, scenarios: Sequence[str], proxy: str) -> list[Row]:
        """Those that say why there is nothing."""
        return [row for row in self.all if row.error and row.proxy == proxy and row.scenario in scenarios]


Value = Callable[[Rows, str, int], "float | None"]


@dataclass(frozen=True)
class Bar:
    """The most that is allowed; `of` another proxy, or in the measure's own unit."""

    most: float
    of: str = ""


@dataclass(frozen=True)
class Measure:
    """`scenarios`: those that it needs. `through`: proxies that it has values for. `over`: all repetitions."""

    words: str
    unit: str
    digits: int
    scenarios: tuple[str, ...]
    value: Value
    bars: tuple[Bar, ...]
    through: tuple[str, ...] = OTHERS
    over: Callable[[Iterable[float]], float] = median
    detail: Callable[[Rows], str] = lambda rows: ""


@dataclass(frozen=True)
class Verdict:
    """`values` by proxy, `ratios` of the gateway to another; `word`: pass, short, not run, failed or not here."""

    measure: Measure
    values: dict[str, float]
    ratios: dict[str, float]
    word: str
    why: str = ""
    detail: str = ""


def judge(rows: Rows, measure: Measure) -> Verdict:
    """What came out, beside the bar."""

    def over(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return measure.over(known) if known else None

    values, ratios = dict[str, float](), dict[str, float]()
    for proxy in measure.through:
        found = over(measure.value(rows, proxy, rep) for rep in rows.reps)
        if found is not None:
            values[proxy] = found
    for other in {bar.of for bar in measure.bars if bar.of}:
        found = over(_ratio(measure, rows, other, rep) for rep in rows.reps)
        if found is not None:
            ratios[other] = found
    word, why = _word(rows, measure, values, ratios)
    return Verdict(measure, values, ratios, word, why, measure.detail(rows) if GATEWAY in values else "")


def _ratio(measure: Measure, rows: Rows, other: str, rep: int) -> float | None:
    ours, theirs = measure.value(rows, GATEWAY, rep), measure.value(rows, other, rep)
    return ours / theirs if ours is not None and theirs is not None and theirs > 0 else None


def _word(rows: Rows, measure: Measure, values: dict[str, float], ratios: dict[str, float]) -> tuple[str, str]:
    failed = [row for row in rows.errors(measure.scenarios, GATEWAY) if row.here]
    if failed:
        return "failed", failed[0].error
    if GATEWAY not in values:
        return "not run", ""
    known = [(bar, ratios.get(bar.of) if bar.of else values[GATEWAY]) for bar in measure.bars]
    if any(value is not None and value > bar.most for bar, value in known):
        return "short", ""
    for bar, value in known:
        if value is None:
            missing = rows.errors(measure.scenarios, bar.of)
            return "not here", f"{bar.of}: {missing[0].error if missing else 'not run'}"
    return "pass", ""


# --- values ----------------------------------------------------------------------------------------------------------
def per_token(scenario: str) -> Value:
    """Microseconds of processor time for each streamed token."""

    def value(rows: Rows, proxy: str, rep: int) -> float | None:
        row = rows.one(scenario, proxy, rep)
        return row.cpu / row.load["tokens"] * 1e6 if row and row.load["tokens"] else None

    return value


def per_request(scenario: str) -> Value:
    """Microseconds of processor time for each request."""

    def value(rows: Rows, proxy: str, rep: int) -> float | None:
        row = rows.one(scenario, proxy, rep)
        return row.cpu / row.load["requests"] * 1e6 if row else None

    return value


def less(one: Value, other: Value) -> Value:
    """The difference of two values of the same repetition."""

    def value(rows: Rows, proxy: str, rep: int) -> float | None:
        left, right = one(rows, proxy, rep), other(rows, proxy, rep)
        return left - right if left is not None and right is not None else None

    return value


def added(scenario: str, what: str, quantile: str) -> Value:
    """Milliseconds more than without a proxy, in the same repetition."""

    def value(rows: Rows, proxy: str, rep: int) -> float | None:
        row, plain = rows.one(scenario, proxy, rep), rows.one(scenario, DIRECT, rep)
        return (row.load[what][quantile] - plain.load[what][quantile]) / 1000 if row and plain else None

    return value


def of_row(scenario: str, figure: Callable[[Row], float]) -> Value:
    """Any figure of a row."""

    def value(rows: Rows, proxy: str, rep: int) -> float | None:
        row = rows.one(scenario, proxy, rep)
        return figure(row) if row else None

    return value


def _goes_on(row: Row) -> float:
    """Seconds for which the engine works for clients that left in the middle of a prefill."""
    to_the_end = row.engine["left"] < row.load["left"]
    return max((PREFILL if to_the_end else row.engine["longest_left_us"] / 1e6) - GONE, 0.0)


def wrong(rows: Rows, proxy: str, rep: int) -> float | None:
    """Answers and tokens that were not as they should be, in all scenarios."""
    found = [row for row in rows.all if (row.proxy, row.rep) == (proxy, rep) and not row.error]
    reports = [report for row in found for report in (row.load, row.beside) if report]
    return float(sum(report[kind] for report in reports for kind in FAULTS)) if found else None


def bend(points: Sequence[tuple[float, float]]) -> float:
    """How much dearer the last point is than the line through the others goes there, or than the dearest of them."""
    *before, (last, cost) = points
    count = len(before)
    mean_x, mean_y = sum(x for x, _ in before) / count, sum(y for _, y in before) / count
    spread = sum((x - mean_x) ** 2 for x, _ in before)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in before) / spread if spread else 0.0
    return cost / max(mean_y + slope * (last - mean_x), *(y for _, y in before))


def growth(scenario: str) -> Value:
    """The bend of the cost of a token or request over all sizes."""

    def value(rows: Rows, proxy: str, rep: int) -> float | None:
        found = [(float(row.size), row.cpu / row.work) for row in rows.of(scenario, proxy, rep) if row.work]
        return bend(found) if len(found) > 2 else None

    return value


def costs(scenario: str) -> Callable[[Rows], str]:
    """What a token or request costs at each size, in words."""

    def detail(rows: Rows) -> str:
        found = [row for rep in rows.reps for row in rows.of(scenario, GATEWAY, rep) if row.work]
        sizes = sorted({row.size for row in found})
        middle = [median(row.cpu / row.work * 1e6 for row in found if row.size == size) for size in sizes]
        return ", ".join(f"{size:,}: {cost:.1f} µs" for size, cost in zip(sizes, middle, strict=True))

    return detail


def _token(scenario: str, words: str, router: float, over_nginx: float) -> Measure:
    bars = (Bar(router, ROUTER), Bar(over_nginx, NGINX))
    return Measure(f"CPU per token, {words}", "µs", 1, (scenario,), per_token(scenario), bars)


def _extra(scenario: str, words: str) -> Measure:
    value = less(per_request(scenario), per_request("short"))
    return Measure(f"CPU more for a prompt of {words}", "µs", 0, ("short", scenario), value, (Bar(1.0, ROUTER),))


def _added(scenario: str, words: str, what: str, quantile: str, most: float) -> Measure:
    return Measure(words, "ms", 3 if most < 1 else 2, (scenario,), added(scenario, what, quantile), (Bar(most),))


def _growth(scenario: str, words: str) -> Measure:
    return Measure(words, "x the straight line", 2, (scenario,), growth(scenario), (Bar(1.25),), (GATEWAY,),
                   detail=costs(scenario))  # fmt: skip


MEASURES: tuple[Measure, ...] = (
    _token("streams", "64 streams x 50/s", 0.85, 1.35),
    _token("step", "64 streams in step", 0.85, 1.35),
    _token("many", "1,000 streams x 20/s", 0.90, 1.45),
    Measure("CPU per JSON request", "µs", 1, ("json",), per_request("json"), (Bar(0.75, ROUTER),)),
    Measure("CPU per stream of one token", "µs", 1, ("short",), per_request("short"), (Bar(0.75, ROUTER),)),
    _extra("prompt", "32 kB"),
    _extra("large", "1 MB"),
    _added("streams", "delay of a token, 64 streams, median", "transit_us", "p50", 0.05),
    _added("streams", "delay of a token, 64 streams, 99 of 100", "transit_us", "p99", 1.0),
    _added("many", "delay of a token, 1,000 streams, 99 of 100", "transit_us", "p99", 10.0),
    _added("streams", "delay of the first token, 64 streams, median", "first_us", "p50", 0.6),
    Measure("first token of new clients, processors starved, the unit's priority, 99 of 100", "s", 2, ("starved",),
            of_row("starved", lambda row: row.load["first_us"]["p99"] / 1e6), (Bar(0.7),), (GATEWAY,)),
    Measure("200 clients leave: answers made to the end", "", 0, ("leave",),
            of_row("leave", lambda row: float(row.load["left"] - row.engine["left"])), (Bar(0),), over=max),
    Measure("200 clients leave: tokens made in vain, median", "", 0, ("leave",),
            of_row("leave", lambda row: float(row.engine["left_tokens_p50"] - 5)), (Bar(0),)),
    Measure("200 clients leave: tokens made in vain, most", "", 0, ("leave",),
            of_row("leave", lambda row: float(row.engine["left_tokens_max"] - 5)), (Bar(1),), over=max),
    Measure("clients leave in a prefill: the engine goes on for", "s", 2, ("prefill",),
            of_row("prefill", _goes_on), (Bar(0.1),), over=max),
    Measure("memory with 1,000 streams", "MiB", 0, ("many",),
            of_row("many", lambda row: row.resident / MIB), (Bar(80),)),
    Measure("memory with 10,000 idle connections", "MiB", 0, ("idle",),
            of_row("idle", lambda row: row.resident / MIB), (Bar(200),), (GATEWAY,)),
    Measure("answers or tokens missing, wrong, doubled or out of order, in all runs", "", 0, (), wrong, (Bar(0),),
            over=max),
    _growth("growth-streams", "CPU per token, 100 to 4,000 streams, 20,000 tokens/s in all"),
    _growth("growth-keys", "CPU per request, 10 to 10,000 keys"),
    _growth("growth-engines", "CPU per request, 1 to 64 engines"),
)  # fmt: skip
