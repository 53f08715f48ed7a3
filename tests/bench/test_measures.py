"""Bars and tables: what is made of rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import __main__, report
from tests.bench.load import FAULTS
from tests.bench.measures import MEASURES, Bar, Measure, Rows, Verdict, bend, judge, per_request
from tests.bench.scenarios import DIRECT, GATEWAY, NGINX, OWN, ROUTER, USUAL, Row

MACHINE = {"cores": 2, "load": 0.1, "processor": "P", "system": "S", "python": "3", "nginx": "1", "vllm-router": "2"}
PER_REQUEST = Measure("each", "µs", 1, ("json",), per_request("json"), (Bar(0.75, ROUTER), Bar(100.0)))


def row(rep: int, proxy: str, scenario: str = "json", cpu: float = 0.0, size: int = 0, **fields: object) -> Row:
    times = {"p50": 100, "p99": 200}
    load: dict[str, object] = {"requests": 1000, "tokens": 1000, "left": 200, "first_us": times, "transit_us": times}
    engine = {"left": 200, "left_tokens_p50": 5, "left_tokens_max": 6, "longest_left_us": 510_000}
    made = Row(rep, proxy, scenario, size, cpu, resident=50 << 20, load=load | dict.fromkeys(FAULTS, 0), engine=engine)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def everything() -> list[Row]:
    """A good run of all scenarios through all proxies."""
    found = []
    for rep in (1, 2, 3):
        for scenario in USUAL:
            costs = {DIRECT: 0.0, NGINX: 0.02, ROUTER: 0.04, GATEWAY: 0.024}
            dearer = 0.01 if scenario.name in ("prompt", "large") else 0.0
            found += [row(rep, proxy, scenario.name, costs[proxy] + dearer) for proxy in (DIRECT, *scenario.through)]
        for own in OWN:
            found += [row(rep, GATEWAY, own.name, 0.02, size, work=1000) for size in own.sizes]
    return found


def verdict(rows: list[Row], measure: Measure = PER_REQUEST) -> Verdict:
    return judge(Rows(rows), measure)


def test_ratios_are_taken_within_a_repetition_and_then_their_median() -> None:
    """Here the second repetition is five times slower for both, which a ratio of medians would turn into 1."""
    pairs = [(0.010, 0.020), (0.100, 0.200), (0.020, 0.020)]
    ours = [row(rep, GATEWAY, cpu=cost) for rep, (cost, _) in enumerate(pairs)]
    theirs = [row(rep, ROUTER, cpu=cost) for rep, (_, cost) in enumerate(pairs)]
    found = verdict(ours + theirs)
    assert found.values == {GATEWAY: pytest.approx(20.0), ROUTER: pytest.approx(20.0)}
    assert found.ratios == {ROUTER: pytest.approx(0.5)} and found.word == "pass"


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [(0.030, 0.040, "pass"), (0.031, 0.040, "short"), (0.101, 0.400, "short"), (0.100, 0.400, "pass")],
)
def test_every_bar_must_be_met(ours: float, theirs: float, word: str) -> None:
    assert verdict([row(1, GATEWAY, cpu=ours), row(1, ROUTER, cpu=theirs)]).word == word


def test_what_is_not_here_is_said_and_does_not_hide_a_shortfall() -> None:
    away = row(1, ROUTER, here=False, error="no matching distribution")
    found = verdict([row(1, GATEWAY, cpu=0.05), away])
    assert (found.word, found.why) == ("not here", "vllm-router: no matching distribution")
    assert report.cells(found)[4:] == ("not here", "not here")
    assert verdict([row(1, GATEWAY, cpu=0.15), away]).word == "short"


def test_one_failed_run_of_the_gateway_fails_its_measures() -> None:
    good = [row(1, GATEWAY, cpu=0.01), row(1, ROUTER, cpu=0.04)]
    found = verdict([*good, row(2, GATEWAY, error="it ended with 1")])
    assert (found.word, found.why) == ("failed", "it ended with 1")
    assert report.cells(found)[-1] == "failed: it ended with 1"


def test_what_was_not_run_has_no_verdict() -> None:
    assert verdict([row(1, ROUTER, cpu=0.04)]).word == "not run"
    assert {judge(Rows([]), measure).word for measure in MEASURES} == {"not run"}


@pytest.mark.parametrize(
    ("costs", "expected"),
    [((10, 10, 10, 10), 1.0), ((10, 12.5, 15, 20), 1.0), ((20, 15, 12, 10), 0.5), ((10, 10, 10, 20), 2.0)],
)
def test_a_bend_is_what_a_straight_line_does_not_explain(costs: tuple[float, ...], expected: float) -> None:
    assert bend(list(zip((0.0, 1.0, 2.0, 4.0), costs, strict=True))) == pytest.approx(expected, abs=0.01)


def test_a_good_run_passes_every_measure_and_fills_the_table() -> None:
    verdicts = [judge(Rows(everything()), measure) for measure in MEASURES]
    assert {found.word for found in verdicts} == {"pass"}
    text = report.table(verdicts)
    assert all(measure.words in text for measure in MEASURES)
    assert "0.60 x vllm-router, 1.20 x nginx" in text
    assert "10,000: 20.0 µs" in text
    assert {entry["verdict"] for entry in report.as_json(verdicts)} == {"pass"}


@pytest.mark.parametrize(
    ("scenario", "change", "measure"),
    [
        ("many", {"load": {"missing": 1}}, "answers or tokens missing"),
        ("starved", {"beside": {**dict.fromkeys(FAULTS, 0), "doubled": 1}}, "answers or tokens missing"),
        ("leave", {"engine": {"left_tokens_max": 7}}, "200 clients leave: tokens made in vain, most"),
        ("leave", {"engine": {"left": 199}}, "200 clients leave: answers made to the end"),
        ("prefill", {"engine": {"longest_left_us": 700_000}}, "clients leave in a prefill"),
        ("prefill", {"engine": {"left": 0, "longest_left_us": 0}}, "clients leave in a prefill"),
    ],
)
def test_one_fault_in_one_repetition_is_enough(scenario: str, change: dict[str, dict[str, int]], measure: str) -> None:
    rows = everything()
    chosen = next(one for one in rows if (one.rep, one.proxy, one.scenario) == (2, GATEWAY, scenario))
    for name, values in change.items():
        setattr(chosen, name, {**getattr(chosen, name), **values})
    short = [found for found in (judge(Rows(rows), one) for one in MEASURES) if found.word == "short"]
    assert [found.measure.words.startswith(measure) for found in short] == [True]


def test_the_readme_gets_the_table_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    text = report.markdown([judge(Rows(everything()), measure) for measure in MEASURES], MACHINE, 3)
    report.write_readme(path, text)
    assert path.read_text() == f"before\n{report.BEGIN}\n{text}\n{report.END}\nafter\n"
    assert "medians of 3 interleaved runs" in text and "| CPU per JSON request | 0.75 x vllm-router |" in text
    assert "other work" not in text and "other work" in report.markdown([], {**MACHINE, "load": 4.0}, 3)
    path.write_text("nothing\n")
    with pytest.raises(RuntimeError, match="no place for the table"):
        report.write_readme(path, text)


@pytest.mark.parametrize("path", __main__.READMES, ids=lambda path: path.name)
def test_our_readmes_have_the_place(path: Path) -> None:
    text = path.read_text()
    assert text.index(report.BEGIN) < text.index(report.END)


def test_a_file_is_shown_again_with_its_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"machine": MACHINE, "rows": [row.json() for row in everything()]}))
    assert __main__.main(["--show", "--json", str(path)]) == 0
    assert "short" not in capsys.readouterr().out
    kept = json.loads(path.read_text())
    assert kept["machine"] == MACHINE
    assert len(kept["rows"]) == len(everything()) and len(kept["measures"]) == len(MEASURES)
    for one in kept["rows"]:
        one["cpu"] = 0.5 if one["proxy"] == GATEWAY else one["cpu"]
    path.write_text(json.dumps(kept))
    assert __main__.main(["--show", "--json", str(path)]) == 1
    assert "short" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [(["nonsense"], "no scenario nonsense"), (["--show"], "need --json"), (["--repetitions", "0"], "1 or more")],
)
def test_words_that_make_no_sense_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        __main__.main(words)
    assert said in capsys.readouterr().err
