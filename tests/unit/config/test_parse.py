"""Mappings of any shape: a configuration or problems, never an exception, never a control character let through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.config.model import Config
from appliance.config.parse import parse
from appliance.config.table import ROWS, TABLES
from appliance.config.values import exact_duration
from appliance.quantity import parse_duration

WORDS = {row.key for row in ROWS} | {name.rpartition(".")[2] for name in TABLES} | {"x", "max_num_seqs"}
KEYS = st.sampled_from(sorted(WORDS))
SCALARS = st.sampled_from(
    [
        "",
        "auto",
        "off",
        "5s",
        "64MiB",
        "127.0.0.1:80",
        "/a",
        "a\nb",
        "http://h:1",
        "x/y",
        "GPU-1",
        0,
        1,
        -1,
        2.5,
        True,
        False,
    ]
)
VALUES = st.recursive(
    SCALARS | st.integers() | st.floats() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_mapping_is_judged(raw: dict[str, object]) -> None:
    config, problems = parse(raw)
    assert (config is None) == any(problem.severity == "error" for problem in problems)
    for problem in problems:
        assert problem.message
        assert "\n" not in str(problem)
    assert config is None or "\\n" not in repr(config)


@given(st.floats(0, 1e8))
def test_a_duration_is_spelt_exactly(seconds: float) -> None:
    seconds = round(seconds, 6)
    assert abs(parse_duration(exact_duration(seconds)) - seconds) < 1e-9


def test_nothing_is_the_default() -> None:
    assert parse({}) == (Config(), ())


def test_what_is_no_url_is_told_without_the_secrets_in_it() -> None:
    """Problems go to the journal. Each setting that takes URLs, and a text of every kind that is none."""
    rows = [row for row in ROWS if row.kind in ("url", "urls")]
    assert len(rows) > 3
    for row in rows:
        for text in (
            "http://h:1/x?key=s3cret",
            "ftp://u:s3cret@h",
            "https://s3cret@h h",
            "https://u:s3cret@h/v1/#s3cret",
        ):
            value: object = [text] if row.kind == "urls" else text
            table: object = {row.key: value}
            raw: dict[str, object] = {row.table: [table] if row.table == "engine" else table}
            _, problems = parse(raw)
            told = [str(problem) for problem in problems if row.key in problem.key]
            assert told and "s3cret" not in "".join(told), row.path
